"""Random workloads under every cut: the bits are the calm reference's.

`make chaos` plays 2,000 of them; otherwise a few, which `BAMBOO_TEST_SEED` moves.
"""

import itertools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from torch import Tensor

from bamboo.config.check_train import check_optimizer, check_own
from bamboo.config.resolve import resolve
from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    Group,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.core.state import Outcome
from bamboo.data.dataset import load_data
from bamboo.errors import InputError
from bamboo.models import Gradients, Tensors, build_layer, build_model, named_parameters
from bamboo.models.untrained import Untrained
from bamboo.runtime.check.optimizer_contract import check_training
from bamboo.runtime.device.staging import DataOnDevice
from bamboo.runtime.step import operations
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.stage import Pending, Stage
from bamboo.runtime.wire.messages import Message
from bamboo.topology.slots import Slot
from bamboo.topology.sync import Sync, entries
from testbed import random_workloads
from testbed.calm import calm
from testbed.random_workloads import Recipe, Sentences
from testbed.simulated import NO_RULES, World
from tests.runtime.test_layouts import go, to_the_end, world_of

pytestmark = pytest.mark.timeout(120)

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1")) * 1_000_000
STEPS = 3
REDUNDANT = ("stash", "gap", "eager", "full")


def job_of(seed: int) -> JobConfig:
    draw = random.Random(f"job {seed}")
    microbatch, virtual_nodes = draw.choice((1, 2)), draw.choice((1, 2, 4))
    job = JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=ModelConfig(model=f"{random_workloads.__file__}:build"),
        train=TrainConfig(
            steps=STEPS,
            batch=max(virtual_nodes * draw.choice((1, 2)), 2) * microbatch,
            microbatch=microbatch,
            virtual_nodes=virtual_nodes,
            seed=seed,
            warmup_steps=1,
            clip_norm=draw.choice((0.0, 0.5)),
            precision=draw.choice(("fp32", "fp32", "bf16")),
            **random_workloads.drawn_training(draw),
            group=random_workloads.drawn_groups(draw, random_workloads.drawn(seed)),
        ),
        cluster=ClusterConfig(step_timeout_s=1e9, redundancy="off"),
    )
    weighted = random_workloads.drawn(seed).weighted
    data = load_data(job, own=Sentences(seed, weighted=weighted))
    try:
        for step in range(STEPS):
            data.count(step)
    except InputError:  # none of a step's few samples has a label
        return replace(job, train=replace(job.train, batch=4 * job.train.batch))
    return job


# ---------------------------------------------------------------- what is drawn

DRAWN = frozenset(
    {
        *random_workloads.OPTIMIZERS,
        *random_workloads.SCHEDULES,
        *random_workloads.WORKING,
        *random_workloads.PLAIN,
        *(f"{kind} between layers" for kind in random_workloads.FLOATING),
        *(f"{kind} between layers" for kind in random_workloads.WHOLE),
        *("own optimizer", "own schedule", "momentum", "nesterov", "clipped", "bf16"),
        *("rate of a group", "decay of a group", "frozen group", "group of tied", "two groups"),
        *("layer norm", "batch norm", "dropout", "buffers", "fp32 frozen", "bf16 frozen"),
        *("tied layers", "tied head", "labels count", "samples count", "mask to the loss"),
    }
)
LOOKED_AT = 500
LEAST = 10  # of them, which is 40 of 2,000


def features(seed: int) -> set[str]:
    """Which of `DRAWN` a seed has."""
    recipe, job = random_workloads.drawn(seed), job_of(seed)
    train, names = job.train, random_workloads.parameters(recipe)
    found = {step.operation for step in recipe.steps}
    found.add("own optimizer" if "train.optimizer" in job.own else train.optimizer)
    found.add("own schedule" if "train.schedule" in job.own else train.schedule)
    found.add("labels count" if recipe.weighted else "samples count")
    for group in train.group:
        tied = {name for pair in random_workloads.tied_names(recipe) for name in pair}
        flags = {
            "rate of a group": group.learning_rate_factor != 1.0,
            "decay of a group": not isinstance(group.weight_decay, str),
            "frozen group": group.frozen and any(_matched(group, names)),
            "group of tied": any(name in tied for name in _matched(group, names)),
            "two groups": len(train.group) == 2,
        }
        found |= {name for name, flag in flags.items() if flag}
    for step in recipe.steps:
        working = step.operation in random_workloads.WORKING
        if step.operation == "number" or (step.operation == "cast" and train.precision == "fp32"):
            found.add(f"{step.dtype} between layers")
        flags = {
            f"{step.norm} norm": working,
            "dropout": working and step.dropout > 0,
            "buffers": working and step.buffers,
            f"{step.frozen} frozen": bool(step.frozen) and (working or step.operation == "unused"),
        }
        found |= {name for name, flag in flags.items() if flag}
    flags = {
        "momentum": train.momentum > 0,
        "nesterov": train.nesterov,
        "clipped": train.clip_norm > 0,
        "bf16": train.precision == "bf16",
        "mask to the loss": recipe.masked_output,
        "tied layers": any(owner > 0 for owner, _ in recipe.tied),
        "tied head": any(owner == 0 for owner, _ in recipe.tied),
    }
    return found | {name for name, flag in flags.items() if flag}


def _matched(group: Group, names: Mapping[str, bool]) -> list[str]:
    return [name for name, trained in names.items() if trained and fnmatchcase(name, group.match)]


def test_all_that_there_is_to_draw_is_drawn() -> None:
    count = Counter(name for seed in range(SEED, SEED + LOOKED_AT) for name in features(seed))
    rare = {name: count[name] for name in sorted(DRAWN) if count[name] < LEAST}
    assert not rare, f"of {LOOKED_AT} seeds"


def test_a_launch_accepts_what_is_drawn() -> None:
    for seed in range(SEED, SEED + 20):
        job = resolve(job_of(seed))
        check_own(job)
        check_optimizer(job)
        workload = build_model(job)
        layers = [(i, build_layer(workload, i, seed)) for i in range(len(workload.layers))]
        named = dict(named_parameters(layers))
        assert sorted(named) == sorted(random_workloads.parameters(random_workloads.drawn(seed)))
        check_training(job, workload, {name: p.shape for name, p in named.items()})
        assert any(p.requires_grad for p in named.values())
        recipe = random_workloads.drawn(seed)
        names = random_workloads.trained_names(recipe, job.train.group)
        sync = random_workloads.drawn_sync(random.Random(seed), recipe, job.train.group, 3)
        assert entries(sync, sorted(names)).keys() == names


# ---------------------------------------------------------------- every cut


def cuts(layers: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut so many layers into stages."""
    for count in range(layers):
        for inner in itertools.combinations(range(1, layers), count):
            yield (0, *inner, layers)


def played(
    job: JobConfig,
    cut: tuple[int, ...],
    draw: random.Random,
    sync: Sync = NO_RULES,
    **cluster: object,
) -> World:
    stages = len(cut) - 1
    mode = "off" if stages == 1 else draw.choice(("off", "stash", "eager", "full"))
    settings = {
        "stages": stages,
        "redundancy": mode,
        "device": draw.choice(("cpu", "lagging")),
        "recompute": draw.choice(("off", "off", "off", "layer")),
    }
    changed = replace(job.cluster, **(settings | cluster))  # type: ignore[arg-type]
    return World(replace(job, cluster=changed), draw, cut=cut, sync=sync)


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


def loses_a_node(
    job: JobConfig,
    draw: random.Random,
    sync: Sync = NO_RULES,
    pipelines: int = 0,
    **cluster: object,
) -> World:
    """A run of three stages, by default in one or two pipelines, half of which is done when one of
    its nodes is lost; in mode `full` one whose shadow has computed backwards ahead."""
    layers = len(random_workloads.drawn(job.train.seed).steps) + 1
    cut = draw.choice([cut for cut in cuts(layers) if len(cut) == 4])
    pipelines = pipelines or min(draw.choice((1, 1, 2)), job.train.virtual_nodes)
    settings = {
        "pipelines": pipelines,
        "redundancy": draw.choice(REDUNDANT),
        "replica_moments": draw.choice(("device", "host")),
        "check_replicas": draw.random() < 0.3,
    }
    world = played(job, cut, draw, sync, **(settings | cluster))
    done = STEPS * 3 * (2 * job.train.batch // job.train.microbatch + pipelines)
    full = world.state.redundancy == "full"
    world.run(
        until=lambda: world.operations >= done // 2 and (not full or bool(computed_ahead(world)))
    )
    assert world.state.assignment is not None
    lost = Slot(pipeline=draw.randrange(pipelines), stage=draw.randrange(3))
    if full and not world.over:
        lost = draw.choice(computed_ahead(world))
    world.kill(world.state.assignment.owner(lost))
    world.run(until=lambda: False)
    return world


def computed_ahead(world: World) -> list[Slot]:
    """Slots whose shadow has computed backwards of the step in which it is; those with batch norms
    where there are any."""
    shadows = [run for n in world.nodes.values() for run in n.trainer.executor.shadowed.values()]
    ahead = [run for run in shadows if run.backed]
    normed = [run for run in ahead if run.stage.untrained.norms.names]
    return sorted(run.slot for run in normed or ahead)


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


@pytest.mark.parametrize(
    "seed",
    [
        *seeds_of(_any, 2),
        *(pytest.param(seed, marks=pytest.mark.full) for seed in seeds_of(_any, 200)[2:]),
    ],
)
def test_pipelines_come_while_it_trains(seed: int) -> None:
    """What a new layout needs is sent while all train, and follows each step."""
    job, draw = job_of(seed), random.Random(seed)
    stages = draw.choice((2, 3))
    cluster = {"stages": stages, "redundancy": draw.choice((*REDUNDANT, "peer"))}
    settings = replace(
        job,
        train=replace(job.train, steps=STEPS + 1, batch=4 * job.train.microbatch, virtual_nodes=4),
        cluster=replace(job.cluster, **cluster),  # type: ignore[arg-type]
    )
    world = world_of(settings, draw, extra=2 * stages, pipelines=3)
    for node in world.standbys:
        if draw.random() < 0.5:
            go(world)
        if not world.over:
            world.join(node)
    to_the_end(world, settings)


@pytest.mark.parametrize(
    "seed",
    [
        *seeds_of(_any, 3),
        *(pytest.param(seed, marks=pytest.mark.full) for seed in seeds_of(_any, 1000)[3:]),
    ],
)
def test_any_strategy_gives_the_calm_bits_where_a_node_is_lost(seed: int) -> None:
    job, draw = job_of(seed), random.Random(f"sync {seed}")
    batch = max(job.train.batch, 4 * job.train.microbatch)
    job = replace(job, train=replace(job.train, batch=batch, virtual_nodes=4))
    pipelines = draw.choice((1, 2, 2, 3, 4))
    recipe = random_workloads.drawn(seed)
    sync = random_workloads.drawn_sync(draw, recipe, job.train.group, pipelines)
    calmly(loses_a_node(job, draw, sync, pipelines), job)


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

    def miscounted(self: Stage, *args: Any) -> Pending:
        with pytest.MonkeyPatch.context() as during:
            during.setattr(DataOnDevice, "count", lambda data, at: count(data, at) + 1)
            return forward(self, *args)

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
                for tensor in kept.values():
                    tensor.zero_()

    _after_update(patch, change)


def drifting_frozen_tensor(patch: pytest.MonkeyPatch) -> None:
    def change(run: SlotRun) -> None:
        for _, layer in run.stage.layers:
            for parameter in layer.parameters():
                if not parameter.requires_grad:
                    parameter.data.add_(0.5)

    _after_update(patch, change)


def statistics_counted_twice(patch: pytest.MonkeyPatch) -> None:
    backward = SlotRun.backward_parts

    def twice(self: SlotRun, local: int, gradients: Gradients | None) -> Iterator[Any]:
        if not self.owner:
            self.stage.untrained.add(self.pending[local].statistics)
        return backward(self, local, gradients)

    patch.setattr(SlotRun, "backward_parts", twice)


def _masks(recipe: Recipe) -> bool:
    return recipe.masked_output


def _two_tensors(recipe: Recipe) -> bool:
    rest = {step.operation for step in recipe.steps[2:]}
    return recipe.steps[1].operation == "branch" and not rest & {"merge", "drop", "cast"}


def _frozen(recipe: Recipe) -> bool:
    return any(s.frozen and s.operation in ("block", "branch", "merge") for s in recipe.steps)


def _batch_norms(recipe: Recipe) -> bool:
    return any(s.norm == "batch" and s.operation == "block" for s in recipe.steps[1:])


def _two_batch_norms(recipe: Recipe) -> bool:
    working = [s for s in recipe.steps if s.operation in random_workloads.WORKING]
    return sum(s.norm == "batch" for s in working) >= 2


@pytest.mark.parametrize(
    ("fault", "wanted", "cluster"),
    [
        (lost_mask, _masks, {}),
        (swapped_tensors, _two_tensors, {}),
        (wrong_count, _any, {}),
        (stale_buffer, _batch_norms, {}),
        (left_behind_state, _any, {}),
        (drifting_frozen_tensor, _frozen, {}),
        (statistics_counted_twice, _two_batch_norms, {"redundancy": "full"}),
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
