"""Random workloads under every cut: the bits are the calm reference's.

`make chaos` plays 2,000 of them; otherwise a few, which `BAMBOO_TEST_SEED` moves.
"""

import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bamboo.config.tree import CheckpointConfig, ClusterConfig, JobConfig, ModelConfig, TrainConfig
from bamboo.core.state import Outcome
from bamboo.models import Gradients, Tensors
from bamboo.models.untrained import Untrained
from bamboo.runtime.device.staging import DataOnDevice
from bamboo.runtime.step import operations
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.stage import Pending, Stage
from bamboo.runtime.wire.messages import Message
from bamboo.topology.slots import Slot
from testbed import random_workloads
from testbed.calm import calm
from testbed.random_workloads import Recipe
from testbed.simulated import World

pytestmark = pytest.mark.timeout(120)

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1")) * 1_000_000
STEPS = 3
REDUNDANT = ("stash", "gap", "eager", "full")


def job_of(seed: int) -> JobConfig:
    draw = random.Random(f"job {seed}")
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=ModelConfig(model=f"{random_workloads.__file__}:build"),
        train=TrainConfig(
            steps=STEPS,
            batch=8,
            microbatch=draw.choice((1, 2)),
            virtual_nodes=draw.choice((1, 2, 4)),
            seed=seed,
            warmup_steps=1,
            clip_norm=draw.choice((0.0, 0.5)),
            precision=draw.choice(("fp32", "fp32", "bf16")),
        ),
        cluster=ClusterConfig(step_timeout_s=1e9, redundancy="off"),
    )


def cuts(layers: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut so many layers into stages."""
    for count in range(layers):
        for inner in itertools.combinations(range(1, layers), count):
            yield (0, *inner, layers)


def played(job: JobConfig, cut: tuple[int, ...], draw: random.Random, **cluster: object) -> World:
    stages = len(cut) - 1
    mode = "off" if stages == 1 else draw.choice(("off", "stash", "eager", "full"))
    settings = {
        "stages": stages,
        "redundancy": mode,
        "device": draw.choice(("cpu", "lagging")),
        "recompute": draw.choice(("off", "layer")),
    }
    changed = replace(job.cluster, **(settings | cluster))  # type: ignore[arg-type]
    return World(replace(job, cluster=changed), draw, cut=cut)


def calmly(world: World, job: JobConfig) -> None:
    world.settle()
    expected = calm(job, STEPS)
    assert world.state.outcome is Outcome.DONE, world.report()
    assert world.losses() == expected.losses
    for pipeline in range(world.state.grid.pipelines):
        found = world.tensors(pipeline)
        assert found.keys() == expected.tensors.keys()
        for name, tensor in expected.tensors.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(_bits(found[name]), _bits(tensor)), f"{name} of pipeline {pipeline}"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize(
    "seed",
    [
        *range(SEED, SEED + 6),
        *(pytest.param(seed, marks=pytest.mark.full) for seed in range(SEED + 6, SEED + 2000)),
    ],
)
def test_every_cut_gives_the_calm_bits(seed: int) -> None:
    job, draw = job_of(seed), random.Random(seed)
    layers = len(random_workloads.drawn(seed).steps) + 1
    for cut in cuts(layers):
        world = played(job, cut, draw)
        world.run_in_order()
        calmly(world, job)


# ---------------------------------------------------------------- losses


def loses_a_node(job: JobConfig, draw: random.Random, **cluster: object) -> World:
    """A run of three stages, half of which is done when one of its nodes is lost."""
    layers = len(random_workloads.drawn(job.train.seed).steps) + 1
    cut = draw.choice([cut for cut in cuts(layers) if len(cut) == 4])
    world = played(job, cut, draw, **({"redundancy": draw.choice(REDUNDANT)} | cluster))
    done = STEPS * 3 * (2 * job.train.batch // job.train.microbatch + 1)
    world.run(until=lambda: world.operations >= done // 2)
    assert world.state.assignment is not None
    world.kill(world.state.assignment.owner(Slot(pipeline=0, stage=draw.randrange(3))))
    world.run(until=lambda: False)
    return world


def seeds_of(wanted: Callable[[Recipe], bool], count: int) -> list[int]:
    """The first seeds of three layers or more whose recipe is such a one."""
    fitting = (
        seed
        for seed in itertools.count(SEED)
        if len((recipe := random_workloads.drawn(seed)).steps) >= 3 and wanted(recipe)
    )
    return list(itertools.islice(fitting, count))


def _any(recipe: Recipe) -> bool:
    del recipe
    return True


@pytest.mark.parametrize(
    "seed",
    [
        *seeds_of(_any, 4),
        *(pytest.param(seed, marks=pytest.mark.full) for seed in seeds_of(_any, 400)[4:]),
    ],
)
def test_a_node_is_lost_and_the_bits_are_the_calm_ones(seed: int) -> None:
    job = job_of(seed)
    calmly(loses_a_node(job, random.Random(seed)), job)


# ---------------------------------------------------------------- planted faults


def lost_mask(patch: pytest.MonkeyPatch) -> None:
    received = operations.output_in
    patch.setattr(
        operations,
        "output_in",
        lambda message: tuple(
            torch.ones_like(t) if t.dtype is torch.bool else t for t in received(message)
        ),
    )


def swapped_tensors(patch: pytest.MonkeyPatch) -> None:
    received = operations.output_in

    def swapped(message: Message) -> Tensors:
        first, second, *rest = received(message)
        alike = (first.shape, first.dtype) == (second.shape, second.dtype)
        return (second, first, *rest) if alike else (first, second, *rest)

    patch.setattr(operations, "output_in", swapped)


def wrong_count(patch: pytest.MonkeyPatch) -> None:
    count, forward = DataOnDevice.count, Stage.forward

    def miscounted(self: Stage, x: Tensors, step: int, microbatch: int) -> Pending:
        with pytest.MonkeyPatch.context() as during:
            during.setattr(DataOnDevice, "count", lambda data, at: count(data, at) + 1)
            return forward(self, x, step, microbatch)

    patch.setattr(Stage, "forward", miscounted)


def stale_buffer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Untrained, "step", lambda *_: None)


def _after_update(patch: pytest.MonkeyPatch, change: Callable[[SlotRun], None]) -> None:
    update = operations.Operations._update

    def changed(
        self: operations.Operations, run: SlotRun, gradient: list[Tensor], factor: float
    ) -> None:
        update(self, run, gradient, factor)
        change(run)

    patch.setattr(operations.Operations, "_update", changed)


def left_behind_state(patch: pytest.MonkeyPatch) -> None:
    def change(run: SlotRun) -> None:
        if not run.owner:
            for kept in run.kept.tensors.values():
                kept["exp_avg_sq"].zero_()

    _after_update(patch, change)


def drifting_frozen_tensor(patch: pytest.MonkeyPatch) -> None:
    def change(run: SlotRun) -> None:
        for _, layer in run.stage.layers:
            for parameter in layer.parameters():
                if not parameter.requires_grad:
                    parameter.data.add_(0.5)

    _after_update(patch, change)


def statistics_counted_twice(patch: pytest.MonkeyPatch) -> None:
    backward = SlotRun.backward

    def twice(self: SlotRun, local: int, gradients: Gradients | None) -> Gradients:
        if not self.owner:
            self.stage.untrained.add(self.pending[local].statistics)
        return backward(self, local, gradients)

    patch.setattr(SlotRun, "backward", twice)


def _masks(recipe: Recipe) -> bool:
    return recipe.masked_output


def _two_tensors(recipe: Recipe) -> bool:
    rest = {step.operation for step in recipe.steps[2:]}
    return recipe.steps[1].operation == "branch" and not rest & {"merge", "drop", "narrow"}


def _frozen(recipe: Recipe) -> bool:
    return any(s.frozen and s.operation in ("block", "branch", "merge") for s in recipe.steps)


def _batch_norms(recipe: Recipe) -> bool:
    return any(s.norm == "batch" and s.operation == "block" for s in recipe.steps[1:])


@pytest.mark.parametrize(
    ("fault", "wanted", "cluster"),
    [
        (lost_mask, _masks, {}),
        (swapped_tensors, _two_tensors, {}),
        (wrong_count, _any, {}),
        (stale_buffer, _batch_norms, {}),
        (left_behind_state, _any, {}),
        (drifting_frozen_tensor, _frozen, {}),
        (statistics_counted_twice, _batch_norms, {"redundancy": "full"}),
    ],
)
def test_a_planted_fault_shows(
    fault: Callable[[pytest.MonkeyPatch], None],
    wanted: Callable[[Recipe], bool],
    cluster: dict[str, object],
) -> None:
    """In one of ten workloads at the latest: a fault may be in a stage that is not lost."""
    assert any(_shows(fault, job_of(seed), cluster) for seed in seeds_of(wanted, 10))


def _shows(
    fault: Callable[[pytest.MonkeyPatch], None], job: JobConfig, cluster: dict[str, object]
) -> bool:
    calm(job, STEPS)  # without the fault
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        try:
            calmly(loses_a_node(job, random.Random(job.train.seed), **cluster), job)
        except AssertionError:
            return True
    return False
