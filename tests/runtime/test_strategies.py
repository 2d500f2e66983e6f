"""Every way of synchronising, on every grid, gives the bits of the calm run.

`make chaos` plays all combinations of kinds or builders, grids, redundancy and jobs; otherwise a
few, in which, with the runs in which faults are planted, each kind comes up.
"""

import itertools
import random
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from bamboo.config.resolve import resolve as resolve_job
from bamboo.config.tree import JobConfig
from bamboo.core.state import Outcome
from bamboo.errors import InputError
from bamboo.models import build_layer, build_model
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import BUILDERS, build
from bamboo.planner.sync.resolved import resolve
from bamboo.planner.sync.situation import Situation
from bamboo.runtime.check.whole import Whole
from bamboo.runtime.step import exchange_plan, factors, rows
from bamboo.runtime.step.exchange_plan import SyncSchedule
from bamboo.runtime.step.numerics import prepare
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.topology.shards import Bucket, Synced
from bamboo.topology.slots import Slot
from bamboo.topology.sync import DENSE, FACTORS, OWNER, ROWS, TREE, ZONED, Sync, SyncRule
from testbed import strategy_jobs
from testbed.calm import trained_by
from testbed.simulated import World, builder_of
from tests.runtime.test_interleavings import calmly

pytestmark = pytest.mark.timeout(120)

STAGES = 2
GRIDS: dict[str, tuple[int, ...]] = {
    "1": (8,),
    "2": (4, 4),
    "3": (3, 3, 2),
    "4": (2, 2, 2, 2),
    "5/2/1": (5, 2, 1),
}
"""Virtual nodes of each pipeline."""
MODES = ("off", "stash", "eager")
MOST_ROUNDS = 500
"""Several times what any of these runs takes."""
ZONES = (0, 0, 1, 1)
KINDS = (TREE, OWNER, ROWS, FACTORS, ZONED, "all")
QUICK = {
    ("tree", "5/2/1", "stash", "tied GPT"),
    ("owner", "3", "eager", "CNN"),
    ("rows", "4", "off", "GPT"),
    ("factors", "5/2/1", "eager", "mixed"),
    ("zoned", "4", "off", "CNN"),
    ("all", "3", "stash", "mixed"),
    ("all", "2", "eager", "tied GPT"),
}


QUICK_BUILT = {("auto", "4", "stash", "mixed"), ("sparse-hybrid", "5/2/1", "eager", "GPT")}


def cells(ways: Collection[str], quick: Collection[tuple[str, ...]]) -> list[object]:
    """All combinations, of which most are for `make chaos`."""
    found = itertools.product(ways, GRIDS, MODES, strategy_jobs.NAMES)
    return [
        pytest.param(*cell, marks=() if cell in quick else pytest.mark.full, id="-".join(cell))
        for cell in found
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tokens")
    strategy_jobs.write_small(made)
    return made


def job_of(name: str, shares: tuple[int, ...], mode: str, folder: Path) -> JobConfig:
    job = strategy_jobs.small(name, folder)
    cluster = replace(
        job.cluster, pipelines=len(shares), stages=STAGES, redundancy=mode, check_replicas=True
    )
    train = replace(job.train, virtual_nodes=sum(shares))
    return replace(job, train=train, cluster=cluster)


def sync_of(kind: str, job: JobConfig) -> Sync:
    """One kind wherever it can be; `all`: rows for tables, factors for most linear layers, an owner
    for vectors, and the rest in two zones; each layer leaves by itself."""
    tables, linear, vectors, rest = parameters(job)
    zones = ZONES[: job.cluster.pipelines]
    if kind == TREE:
        return Sync()
    if kind == "all":
        rules = [
            *(SyncRule(match=name, exchange=ROWS, ship=ROWS) for name in tables),
            *(SyncRule(match=name, exchange=FACTORS, ship=FACTORS) for name in linear[1:]),
            *(SyncRule(match=name, exchange=OWNER, owners=(0, 1)) for name in vectors),
            *(SyncRule(match=name, exchange=ZONED) for name in (*linear[:1], *rest)),
        ]
        return Sync(rules=tuple(rules), bucket=0, zones=zones)
    chosen = {
        OWNER: (*tables, *linear, *vectors, *rest),
        ZONED: (*tables, *linear, *vectors, *rest),
        ROWS: (*tables, *linear, *rest),
        FACTORS: linear,
    }[kind]
    ship = kind if kind in (ROWS, FACTORS) else DENSE
    owners = (1, 0) if kind == OWNER else ()
    rules = [SyncRule(match=name, exchange=kind, ship=ship, owners=owners) for name in chosen]
    return Sync(rules=tuple(rules), bucket=None if kind == OWNER else 1000, zones=zones)


def parameters(job: JobConfig) -> tuple[list[str], list[str], list[str], list[str]]:
    """Global names: tables of embeddings; weights of linear layers that are used once; vectors; the
    others."""
    workload = build_model(job)
    tied = {f"{tie.user_layer}.{tie.user_name}" for tie in workload.tied}
    tied |= {f"{tie.owner_layer}.{tie.owner_name}" for tie in workload.tied}
    tables, linear, vectors, rest = [], [], [], []
    for number in range(len(workload.layers)):
        layer = build_layer(workload, number, job.train.seed)
        for where, module in layer.named_modules():
            for local, parameter in module.named_parameters(recurse=False):
                name = ".".join(part for part in (str(number), where, local) if part)
                if parameter.ndim < 2:
                    vectors.append(name)
                elif isinstance(module, nn.Embedding):
                    tables.append(name)
                elif isinstance(module, nn.Linear) and name not in tied:
                    linear.append(name)
                else:
                    rest.append(name)
    return tables, linear, vectors, rest


def play(kind: str, shares: tuple[int, ...], mode: str, name: str, folder: Path) -> World:
    """A run to its end, whose bits are the calm run's."""
    job = job_of(name, shares, mode, folder)
    if kind == "all":  # on a device that is done with operations and copies only later
        job = replace(job, cluster=replace(job.cluster, device="lagging"))
    return play_by(sync_of(kind, job), job, shares)


def play_by(sync: Sync, job: JobConfig, shares: tuple[int, ...]) -> World:
    """Likewise, by these rules."""
    world = World(job, random.Random(1), sync=sync, shares=shares)
    world.run_in_order(limit=MOST_ROUNDS)
    assert world.state.outcome is Outcome.DONE, world.report()
    calmly(world, job, job.train.steps)
    return world


def play_a_step(kind: str, shares: tuple[int, ...], name: str, folder: Path) -> World:
    """Likewise, of a run of one step."""
    job = job_of(name, shares, "stash", folder)
    return play_by(sync_of(kind, job), replace(job, train=replace(job.train, steps=1)), shares)


play_a_step_once = lru_cache(play_a_step)
"""Likewise, where it was not played yet."""


@pytest.mark.parametrize(("kind", "grid", "mode", "name"), cells(KINDS, QUICK))
def test_every_kind_gives_the_calm_bits(
    kind: str, grid: str, mode: str, name: str, folder: Path
) -> None:
    world = play(kind, GRIDS[grid], mode, name, folder)
    assert world.state.shares == GRIDS[grid]


# ---------------------------------------------------------------- builders


@lru_cache
def facts_of(name: str, folder: Path) -> tuple[ParameterFacts, ...]:
    """What a look at the model finds."""
    job = resolve_job(job_of(name, (8,), "off", folder))
    prepare(job.cluster)
    workload, data = trained_by(job.model, job.data, job.train)
    whole = Whole(job, workload, data)
    whole.run(0, 0)
    return tuple(one for of_layer in whole.parameters() for one in of_layer)


def built(builder: str, job: JobConfig, shares: tuple[int, ...], name: str, folder: Path) -> Sync:
    """What a builder makes of the job on slow links, where bytes decide. Raises InputError where it
    can save nothing."""
    cut = builder_of(job, (), Sync(), shares).strategy.placement.cut
    situation = Situation(
        cut=cut,
        shares=shares,
        microbatches=1,
        zones=ZONES[: len(shares)],
        replica=job.cluster.redundancy != "off",
        latency_s=1e-4,
        bytes_per_s=1e6,
        flops_per_s=50e9,
        added_per_s=1e9,
        message_s=1e-5,
    )
    return build(builder, facts_of(name, folder), situation)


PLAYED: set[tuple[Sync, JobConfig, tuple[int, ...]]] = set()
"""What was played here: builders often make the same rules."""


@pytest.mark.parametrize(("builder", "grid", "mode", "name"), cells(BUILDERS, QUICK_BUILT))
def test_every_builder_gives_the_calm_bits(
    builder: str, grid: str, mode: str, name: str, folder: Path
) -> None:
    job, shares = job_of(name, GRIDS[grid], mode, folder), GRIDS[grid]
    try:
        sync = built(builder, job, shares, name, folder)
    except InputError:
        assert builder == ZONED
        assert grid != "4", "whose zones add siblings"
        return
    if (sync, job, shares) not in PLAYED:
        assert play_by(sync, job, shares).state.shares == shares
        PLAYED.add((sync, job, shares))


def test_builders_make_different_rules(folder: Path) -> None:
    """Of the mixed job in four pipelines: so what is played above is no one thing seven times."""
    job = job_of("mixed", GRIDS["4"], "stash", folder)
    found = {name: built(name, job, GRIDS["4"], "mixed", folder) for name in BUILDERS}
    assert len(set(found.values())) == len(BUILDERS)
    kinds = {rule.exchange for rule in found["auto"].rules}
    assert {ROWS, FACTORS} <= kinds


def test_what_is_sent_is_what_the_planner_counts(folder: Path) -> None:
    """Factors, zones and owners, of what is exchanged and of what is shipped."""
    shares = GRIDS["4"]
    world = play("all", shares, "stash", "CNN", folder)
    job = job_of("CNN", shares, "stash", folder)
    sync = sync_of("all", job)
    workload = build_model(job)
    layers = [build_layer(workload, n, job.train.seed) for n in range(len(workload.layers))]
    linear = parameters(job)[1]
    facts = [
        ParameterFacts(
            name=(name := f"{number}.{local}"),
            shape=tuple(parameter.shape),
            layer=number,
            rows_k=int(name in linear) * job.train.microbatch,
        )
        for number, layer in enumerate(layers)
        for local, parameter in layer.named_parameters()
    ]
    statistics = {
        number: sum(2 * x.num_features for x in layer.modules() if isinstance(x, nn.BatchNorm2d))
        for number, layer in enumerate(layers)
    }
    cut = builder_of(job, (), sync, shares).strategy.placement.cut
    situation = Situation(cut=cut, shares=shares, microbatches=1, zones=sync.zones)
    expected = resolve(sync, facts, situation, statistics=statistics)
    sent, steps = world.sent_bytes(), job.train.steps
    exchange = sum(sent.get(x, 0) for x in ("partial", "shard", "merged", "relayed", "factors"))
    assert exchange == steps * expected.exchanged_bytes
    assert sent["ship"] == steps * expected.shipped_bytes


# ---------------------------------------------------------------- planted faults


def dropped_row(patch: pytest.MonkeyPatch) -> None:
    rows_of = rows._rows_of

    def fewer(tensor: Tensor, width: int) -> tuple[Tensor, ...] | None:
        return (found := rows_of(tensor, width)) and tuple(part[1:] for part in found)

    patch.setattr(rows, "_rows_of", fewer)


def doubled_factor(patch: pytest.MonkeyPatch) -> None:
    summed = factors.summed
    patch.setattr(factors, "summed", lambda found, *rest: summed([*found, found[-1]], *rest))


def microbatches_in_another_order(patch: pytest.MonkeyPatch) -> None:
    summed = factors.summed
    patch.setattr(factors, "summed", lambda found, *rest: summed(found[::-1], *rest))


def bucket_before_its_layer(patch: pytest.MonkeyPatch) -> None:
    """A bucket leaves with the first of its layers that a backward passes, not with the last."""
    buckets_of = exchange_plan.buckets_of

    def early(tensors: Sequence[Synced], **rest: Any) -> tuple[Bucket, ...]:
        return tuple(
            replace(bucket, lowest=max(tensors[place].layer for place in bucket.positions))
            for bucket in buckets_of(tensors, **rest)
            if bucket.positions
        )

    patch.setattr(exchange_plan, "buckets_of", early)


def stale_strategy(patch: pytest.MonkeyPatch) -> None:
    """One pipeline goes by `tree`, whatever the others do."""
    build = SlotBuilder.build

    def stale(self: SlotBuilder, slot: Slot, **rest: Any) -> SlotRun:
        if slot.pipeline == 1:
            self = copy(self)
            self.schedule = SyncSchedule(Sync())
        return build(self, slot, **rest)

    patch.setattr(SlotBuilder, "build", stale)


TWO = (1, 1)
"""Pipelines of one virtual node each, which has four microbatches."""
ONE = (2,)
"""Nothing is exchanged: what is wrong is wrong at the shadow."""


@pytest.mark.parametrize(
    ("fault", "kind", "shares", "name"),
    [
        (dropped_row, "rows", TWO, "mixed"),
        (dropped_row, "rows", ONE, "mixed"),
        (doubled_factor, "factors", TWO, "CNN"),
        (microbatches_in_another_order, "factors", TWO, "CNN"),
        (microbatches_in_another_order, "factors", ONE, "CNN"),
        (bucket_before_its_layer, "rows", TWO, "CNN"),
        (stale_strategy, "factors", TWO, "GPT"),
    ],
)
def test_a_planted_fault_shows(
    fault: Callable[[pytest.MonkeyPatch], None],
    kind: str,
    shares: tuple[int, ...],
    name: str,
    folder: Path,
) -> None:
    play_a_step_once(kind, shares, name, folder)
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        with pytest.raises(AssertionError):
            play_a_step(kind, shares, name, folder)
