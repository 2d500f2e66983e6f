"""How a step's gradients pass between pipelines and to shadows, under a workload's strategy.

Rule: bytes and times come from `planner.sync`. Where a strategy says nothing, or nothing is known
of the parameters, all goes by `tree` and `dense` in one bucket, and `step_floor` counts it itself.
What counts with arrays is imported where it is used, so that such a plan does not wait for numpy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import add
from typing import TYPE_CHECKING

from bamboo.errors import InputError
from bamboo.ids import NodeId
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.links import Link
from bamboo.planner.sync.situation import Situation
from bamboo.planner.sync.worth import least_sent, may_win, partial_sums
from bamboo.topology.assignment import Assignment
from bamboo.topology.shards import FLOAT_BYTES
from bamboo.topology.strategy import AUTO
from bamboo.topology.sync import Sync

if TYPE_CHECKING:
    from bamboo.planner.sync.resolved import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedStep:
    """The exchange and the ship of each stage, in the busiest pipeline."""

    sent_bytes: tuple[float, ...]
    """To other pipelines."""
    ship_bytes: tuple[float, ...]
    peers_s: tuple[float, ...]
    """On the wire, from the end of the last backward."""
    work_s: tuple[float, ...]
    """What its node does for both before its optimizer's step."""
    rebuild_s: tuple[float, ...]
    """What its shadow computes beside the optimizer's step."""
    links_bytes: tuple[tuple[tuple[float, ...], ...], ...]
    """From each pipeline to each other one."""


def parameters_of(workload: WorkloadFigures) -> tuple[ParameterFacts, ...]:
    """What is known of the parameters."""
    return tuple(one for layer in workload.layers for one in layer.synced)


def is_plain(workload: WorkloadFigures) -> bool:
    """Whether the exchange needs no look at parameters: without a strategy, or facts, or where
    `auto` stays with `tree` because no link takes time (`most_won`)."""
    if workload.syncing.is_plain or not any(layer.synced for layer in workload.layers):
        return True
    times = (workload.bytes_per_s, workload.node_bytes_per_s, workload.latency_s, workload.far)
    syncing = workload.syncing
    return syncing.sync == AUTO and not any((*times, syncing.billed_s_per_byte))


def is_plain_in(workload: WorkloadFigures, situation: Situation) -> bool:
    """The same on one grid."""
    parameters = parameters_of(workload)
    return workload.syncing.sync == AUTO and not may_win(parameters, situation)


def situation_of(
    workload: WorkloadFigures,
    cut: Sequence[int],
    shares: tuple[int, ...],
    *,
    replica: bool,
    ends_s: Sequence[float],
    link: Link | None = None,
) -> Situation:
    """The grid of a workload with these shares. `ends_s`: of each stage's last backward; `link`:
    the one between zones, or of all pairs where the zones of the pipelines are not known."""
    syncing = workload.syncing
    zones = syncing.zones if len(syncing.zones) == len(shares) else ()
    near = Link(latency_s=workload.latency_s, bytes_per_s=workload.bytes_per_s)
    far = workload.far.others if workload.far is not None and zones else None
    if link is not None:
        near, far = (near, link) if zones else (link, None)
    count = max(shares) * workload.shape.microbatches
    steps_s = workload.sums(workload.steps_s, cut)
    passed_s: list[float] = []
    for first, stop in pairwise(cut):
        passed_s += [0.0, *accumulate(workload.back_s[first:stop])][:-1]
    both_s = workload.sums(workload.both_s, cut)
    whole_s = put_together_s(workload, cut, len(shares))
    after_s = tuple(map(add, steps_s, whole_s))
    return Situation(
        cut=tuple(cut),
        shares=shares,
        microbatches=workload.shape.microbatches,
        zones=zones,
        replica=replica,
        factor_bytes=syncing.factor_bytes,
        latency_s=near.latency_s,
        bytes_per_s=near.bytes_per_s,
        node_bytes_per_s=workload.node_bytes_per_s,
        far=far,
        flops_per_s=syncing.flops_per_s,
        added_per_s=syncing.added_per_s,
        written_per_s=syncing.written_per_s,
        copied_bytes_per_s=syncing.copied_bytes_per_s,
        message_s=syncing.message_s,
        billed_s_per_byte=syncing.billed_s_per_byte,
        sums_early=syncing.sums_early,
        ends_s=tuple(ends_s),
        passed_s=tuple(passed_s),
        busy_s=tuple(count * both + own for both, own in zip(both_s, after_s, strict=True)),
        after_s=after_s,
        sources=(("times", workload.source), *syncing.sources),
    )


def put_together_s(
    workload: WorkloadFigures, cut: Sequence[int], pipelines: int
) -> tuple[float, ...]:
    """The time in which the node of each stage puts its whole gradient together after an exchange
    and squares it, whatever the kinds."""
    numbers = workload.sums([layer.gradient_bytes / FLOAT_BYTES for layer in workload.layers], cut)
    rate = workload.syncing.written_per_s
    return tuple(x / rate if rate and pipelines > 1 else 0.0 for x in numbers)


def plain_work_s(
    workload: WorkloadFigures, cut: Sequence[int], pipelines: int, partials: int
) -> tuple[float, ...]:
    """What the node of each stage computes for an exchange by `tree` with so many partial sums in
    all. Where nothing is known of a node's memory it is left out."""
    whole_s = put_together_s(workload, cut, pipelines)
    if not workload.syncing.written_per_s:
        return whole_s
    return tuple(map(add, whole_s, _tree_s(workload, cut, pipelines, partials)))


def _tree_s(
    workload: WorkloadFigures, cut: Sequence[int], pipelines: int, partials: int
) -> tuple[float, ...]:
    """The sums and messages of `tree` in the node of each stage."""
    syncing, others = workload.syncing, pipelines - 1
    if not others:
        return (0.0,) * (len(cut) - 1)
    added = [layer.gradient_bytes / FLOAT_BYTES for layer in workload.layers]
    rate = syncing.added_per_s and syncing.added_per_s * pipelines / (partials - 1)
    return tuple(
        (numbers / rate if rate else 0.0) + 4 * others * syncing.message_s
        for numbers in workload.sums(added, cut)
    )


def resolved_in(workload: WorkloadFigures, situation: Situation) -> "Resolved":
    """The workload's strategy there; a builder makes one, and `tree` stands for one that cannot be
    made on this grid. Raises ValueError for rules that do not fit the parameters."""
    from bamboo.planner.sync.builders import build
    from bamboo.planner.sync.resolved import resolve

    sync = workload.syncing.sync
    if isinstance(sync, str):
        try:
            sync = build(sync, parameters_of(workload), situation)
        except InputError:
            sync = Sync()
    beside = {
        index: layer.statistics + (0 if layer.synced else layer.parameters)
        for index, layer in enumerate(workload.layers)
    }
    return resolve(sync, parameters_of(workload), situation, statistics=beside)


def works_of_tree(workload: WorkloadFigures, situation: Situation) -> tuple[float, ...]:
    """Seconds of the sums and messages of `tree` in each stage, which a plan without a strategy
    does not count; 0 where `plain_work_s` counts them. They are taken off the work of a strategy,
    so that plans with and without one can be compared."""
    if situation.written_per_s:
        return (0.0,) * situation.stages
    partials = sum(partial_sums(situation.shares))
    return _tree_s(workload, situation.cut, situation.pipelines, partials)


def zones_of(assignment: Assignment, zone_of: Mapping[NodeId, str]) -> tuple[int, ...]:
    """The zone of each pipeline, numbered in the order of pipelines; empty unless each pipeline's
    owners are all in one zone."""
    grid = assignment.grid
    numbers: dict[str, int] = {}
    found = []
    for pipeline in range(grid.pipelines):
        first = pipeline * grid.stages
        own = {zone_of.get(x, "") for x in assignment.owners[first : first + grid.stages]}
        if len(own) > 1:
            return ()
        found.append(numbers.setdefault(own.pop(), len(numbers)))
    return tuple(found)


def in_zones(workload: WorkloadFigures, zones: tuple[int, ...]) -> WorkloadFigures:
    """The same with pipelines in these zones, if they are known."""
    if not zones or workload.syncing.zones == zones:
        return workload
    return replace(workload, syncing=replace(workload.syncing, zones=zones))


def plain_step(
    workload: WorkloadFigures,
    cut: Sequence[int],
    pipelines: int,
    partials: int,
    link: Link | None = None,
    *,
    replica: bool,
) -> SyncedStep:
    """Without a strategy an owner sends every peer its partials of that peer's part, and the result
    of its own part. Each pair has a link of its own, and all links share the node's send rate.
    `replica`: it also copies its gradient into messages to a shadow."""
    peers, none = pipelines - 1, (0.0,) * (len(cut) - 1)
    link = link or Link(latency_s=workload.latency_s, bytes_per_s=workload.bytes_per_s)
    gradient = workload.sums([float(layer.gradient_bytes) for layer in workload.layers], cut)
    seconds, sent = [], []
    for size in gradient:
        each = size * (partials + 1) / pipelines if peers else 0.0
        link_s = each / link.bytes_per_s if link.bytes_per_s else 0.0
        rate = workload.node_bytes_per_s
        node_s = peers * each / rate if rate else 0.0
        seconds.append(2 * link.latency_s + max(link_s, node_s) if peers else 0.0)
        sent.append(peers * each)
    copied = workload.syncing.copied_bytes_per_s if replica else 0.0
    copied_s = [size / copied if copied else 0.0 for size in gradient]
    work_s = plain_work_s(workload, cut, pipelines, pipelines * partials)
    return SyncedStep(
        sent_bytes=tuple(sent),
        ship_bytes=tuple(gradient),
        peers_s=tuple(seconds),
        work_s=tuple(map(add, work_s, copied_s)),
        rebuild_s=none,
        links_bytes=(),
    )


def least_step(workload: WorkloadFigures, situation: Situation) -> SyncedStep:
    """A lower bound of what `auto` may send there, with an exchange that takes no time."""
    none = (0.0,) * situation.stages
    sent, shipped = least_sent(parameters_of(workload), situation)
    return SyncedStep(
        sent_bytes=sent,
        ship_bytes=shipped,
        peers_s=none,
        work_s=none,
        rebuild_s=none,
        links_bytes=(),
    )


def synced_step(
    resolved: "Resolved", works_of_tree_s: Sequence[float], whole_s: Sequence[float]
) -> SyncedStep:
    """What a dry run needs of a strategy on a grid. `whole_s`: see `put_together_s`."""
    from bamboo.planner.sync.price import stage_price

    prices = [stage_price(stage, resolved.situation) for stage in resolved.stages]
    count = resolved.situation.pipelines
    none = ((0.0,) * count,) * count
    return SyncedStep(
        sent_bytes=tuple(stage.most_sent for stage in resolved.stages),
        ship_bytes=tuple(stage.shipped.bytes for stage in resolved.stages),
        peers_s=tuple(max(0.0, one.exposed_s - one.work_s) for one in prices),
        work_s=tuple(
            max(0.0, min(one.work_s, one.exposed_s) - tree_s) + own_s + one.copied_s
            for one, tree_s, own_s in zip(prices, works_of_tree_s, whole_s, strict=True)
        ),
        rebuild_s=tuple(one.rebuild_s for one in prices),
        links_bytes=tuple(
            tuple(tuple(map(float, row)) for row in stage.bytes) if stage.buckets else none
            for stage in resolved.stages
        ),
    )
