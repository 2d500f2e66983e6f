"""The step time of an assignment, from one dry run for each shape.

Rule: pipelines wait for each other at the end of a step only, so a step takes as long as the
slowest of them. A dry run covers one pipeline; the same nodes in the same pattern, whatever their
names, are one shape. A node that works for several pipelines is counted in each of them with all
the stages that it owns.

`calm_s` is THE time of a calm step: plan, price list, dry run, budget, simulation, receipt and
report quote it. It counts a node's total send rate, the cores that the nodes share, and a step's
share of evaluations.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, compress, count
from operator import ne
from typing import TypeVar

from bamboo.ids import NodeId, ZoneId
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.evaluation import evaluation_s
from bamboo.planner.step.figures import STEADY_STEPS, busy, computed_ahead, plan_run, step_time_s
from bamboo.planner.step.layout import Costs, Layout
from bamboo.planner.step.links import Far, Link, ZoneLinks
from bamboo.planner.step.step_floor import StepFloor
from bamboo.planner.step.synced import SyncedStep, is_plain, plain_step
from bamboo.planner.step.timeline import Timeline
from bamboo.schedule.one_f_one_b import one_f_one_b
from bamboo.schedule.redundancy import has_replica
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import modes_of

Of = TypeVar("Of")
_Ahead = tuple[tuple[float, float], ...]
DRY_STEPS = 2
"""Simulated steps; the first one does not count for the step time."""
UNLIKE_STEPS = STEADY_STEPS
"""Simulated steps if steps differ from each other: as many as the plan's own dry run counts."""
UNLIKE_MODES = frozenset({"eager", "full"})
"""A redundant operation that is not done when a step ends is done in the next step."""
SETTLED_STEPS = 8
"""Simulated steps, of which the first half does not count, if a gradient may take longer to ship
than a step takes. That shows only in a step that begins while the gradient before the last one is
still in transit."""
SLOW = 0.5
"""Share of a step: a gradient that takes longer to ship makes SETTLED_STEPS necessary."""
IDLE_SHADOWS = ("off", "peer", "stash")
"""Modes in which a shadow computes nothing until it takes over. If neither bytes nor the optimizer
take time either, a pipeline steps as if it had no shadows, and each of its steps takes as long as
the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What the dry run of one pipeline depends on."""

    stages: int
    microbatches: int
    owners: tuple[int, ...]
    """The owner of each stage, numbered in order of appearance."""
    shadows: tuple[int | None, ...]
    elsewhere: tuple[int, ...]
    """Stages that each owner has in other pipelines."""
    synced: SyncedStep
    """How each stage's gradient passes to the other pipelines and to its shadow."""
    steps: int
    """Number of simulated steps."""
    zones: tuple[str, ...] = ()
    """The zone of each owner: by name if pairs of zones differ from each other, otherwise numbered
    in order of appearance. Empty if zones do not matter, or all are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRuns:
    """Finished dry runs of layers on links. Step times of one cut and mode may share them if they
    differ only in a node's total send rate."""

    step_s: dict[_Shape, float] = field(default_factory=dict)
    ahead: dict[_Shape, _Ahead] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """An assignment and the step time of each of its pipelines."""

    assignment: Assignment
    shares: tuple[int, ...]
    seconds: tuple[float, ...]

    def comparable(self, assignment: Assignment, shares: tuple[int, ...]) -> bool:
        """Whether pipelines that are the same in both take the same time in both."""
        return assignment.grid == self.assignment.grid and shares == self.shares

    def unlike(self, assignment: Assignment, *, idle: bool) -> set[int]:
        """Pipelines whose time may differ: those with another owner, or another shadow unless
        shadows are `idle`, and those with an owner that now has more or fewer stages."""
        old, grid = self.assignment, assignment.grid
        moved = _unlike(old.owners, assignment.owners)
        if not idle:
            moved |= _unlike(old.shadows, assignment.shadows)
        nodes = {owners[number] for number in moved for owners in (old.owners, assignment.owners)}
        owned = assignment.roles.owned
        touched = {*moved, *(number for node in nodes for number in owned.get(node, ()))}
        return {number // grid.stages for number in touched}


class StepTimes(StepFloor):
    """Step times of one workload in one redundancy mode, or one for each stage. `known`: dry runs
    to use and add to."""

    def __init__(
        self, workload: WorkloadFigures, mode: str, *, known: DryRuns | None = None
    ) -> None:
        super().__init__(workload, mode)
        self._steps = UNLIKE_STEPS if UNLIKE_MODES & set(modes_of(mode)) else DRY_STEPS
        rates = workload.bytes_per_s or workload.node_bytes_per_s
        takes_time = rates or workload.latency_s or workload.far
        works = any(workload.steps_s) or not is_plain(workload)
        self._idle = mode in IDLE_SHADOWS and not takes_time and not works
        self._known = known or DryRuns()
        self._grids_steps: dict[tuple[Grid, tuple[int, ...]], int] = {}
        self._calm_s: dict[tuple[int, int, tuple[int, ...]], float] = {}
        self._calm_ahead: dict[tuple[int, int, tuple[int, ...]], _Ahead] = {}
        self._seen: dict[tuple[Grid, tuple[int, ...], Link | None], SyncedStep] = {}
        self._last: _Timed | None = None
        self._whole: dict[tuple[int, ...], _Shape] = {}
        self.dry_runs = 0

    def calm_s(self, grid: Grid, shares: tuple[int, ...]) -> float:
        """The step time with a node for every slot, each shadowed by the node before it."""
        key = (grid.pipelines, grid.stages, shares)
        if key not in self._calm_s:
            self._calm_s[key] = self.of(self.calm(grid), shares)
        return self._calm_s[key]

    def calm(self, grid: Grid) -> Assignment:
        """A node for every slot, named like it, each shadowed by the node before it."""
        slots = grid.slots()
        replica = has_replica(self._mode)
        return Assignment(
            grid=grid,
            owners=tuple(NodeId(str(slot)) for slot in slots),
            shadows=tuple(NodeId(str(grid.protector(s))) if replica else None for s in slots),
        )

    def calm_ahead(self, grid: Grid, shares: tuple[int, ...]) -> _Ahead:
        """The shares of each stage's forwards and backwards that its shadow has also done by the
        commit of a calm step. A takeover at the end of a step does not need to repeat them."""
        key = (grid.pipelines, grid.stages, shares)
        if key not in self._calm_ahead:
            busiest = max(range(grid.pipelines), key=lambda pipeline: shares[pipeline])
            shape = self._shape(self.calm(grid), busiest, shares)
            self._pipeline_s(shape)
            self._calm_ahead[key] = self._known.ahead[shape]
        return self._calm_ahead[key]

    def with_peers_s(self, grid: Grid, nodes: int) -> float:
        """The step time if a stage of `grid` has only `nodes` nodes, which share its microbatches,
        and no other stage has fewer: all pipelines together, with a node for each stage."""
        leaves = self._workload.shape
        shape = _Shape(
            stages=grid.stages,
            microbatches=-(-leaves.total // nodes),
            owners=tuple(range(grid.stages)),
            shadows=(None,) * grid.stages,
            elsewhere=(0,) * grid.stages,
            synced=self._shared(grid),
            steps=self._steps,
        )
        return self._pipeline_s(shape)

    def of(
        self,
        assignment: Assignment,
        shares: tuple[int, ...],
        zone_of: Mapping[NodeId, ZoneId] | None = None,
    ) -> float:
        """Seconds of a step. `shares`: virtual nodes of each pipeline; `zone_of`: the zone of each
        node, which counts if links between zones differ from the others."""
        far = self._workload.far
        zones = zone_of if far is not None else None
        exchange = exchange_link(assignment, zones or {}, far) if far is not None else None
        last = self._last
        if last is not None and zones is None and last.comparable(assignment, shares):
            seconds, pipelines = list(last.seconds), last.unlike(assignment, idle=self._idle)
        else:
            seconds = [0.0] * assignment.grid.pipelines
            pipelines = set(range(assignment.grid.pipelines))
        for pipeline in pipelines:
            shape = self._shape(assignment, pipeline, shares)
            if zones is not None:
                owners = _part(assignment.owners, pipeline, assignment.grid)
                named = far is not None and bool(far.pairs)
                where = zones_in_order(owners, zones, named=named)
                synced = self._alike(assignment.grid, shares, exchange)
                shape = replace(shape, zones=where, synced=synced)
            seconds[pipeline] = self._pipeline_s(shape)
        # Decisions change one or two pipelines, and a cluster may have hundreds.
        if zones is None:
            self._last = _Timed(assignment=assignment, shares=shares, seconds=tuple(seconds))
        least_s = 0.0
        if self._is_whole(assignment):
            bound_s = self.floor_s if zones is None else self.sent_s
            least_s = bound_s(assignment.grid, shares)
        return max(least_s, *seconds) + self.evaluation_share_s(assignment.grid, shares)

    def evaluation_share_s(self, grid: Grid, shares: tuple[int, ...]) -> float:
        """What evaluations add to a step on average."""
        work = self._workload
        if not work.eval_every:
            return 0.0
        return evaluation_s(work, self._cut(grid.stages), grid, shares) / work.eval_every

    def _is_whole(self, assignment: Assignment) -> bool:
        """Whether each slot has a node of its own and, in a mode with replicas, a shadow."""
        shadowed = not has_replica(self._mode) or None not in assignment.shadows
        return shadowed and not assignment.roles.several

    def _shape(self, assignment: Assignment, pipeline: int, shares: tuple[int, ...]) -> _Shape:
        owners = _part(assignment.owners, pipeline, assignment.grid)
        grid = assignment.grid
        if self._idle and assignment.roles.several.isdisjoint(owners):
            return self._whole_shape(grid, shares, shares[pipeline])
        owned = assignment.roles.owned
        names = {node: number for number, node in enumerate(dict.fromkeys(owners))}
        here = Counter(owners)
        return _Shape(
            stages=grid.stages,
            microbatches=shares[pipeline] * self._workload.shape.microbatches,
            owners=tuple(names[node] for node in owners),
            # A shadow without a stage in this pipeline costs its owners nothing here.
            shadows=tuple(
                None if shadow is None or self._idle else names.get(shadow)
                for shadow in _part(assignment.shadows, pipeline, grid)
            ),
            elsewhere=tuple(len(owned[node]) - here[node] for node in names),
            synced=self._alike(grid, shares),
            steps=self._steps_of(grid, shares),
        )

    def _whole_shape(self, grid: Grid, shares: tuple[int, ...], share: int) -> _Shape:
        """The shape of a pipeline with a node for each stage that works for no other stage."""
        key = (grid.stages, share)
        if key not in self._whole:
            self._whole[key] = _Shape(
                stages=grid.stages,
                microbatches=share * self._workload.shape.microbatches,
                owners=tuple(range(grid.stages)),
                shadows=(None,) * grid.stages,
                elsewhere=(0,) * grid.stages,
                synced=self._alike(Grid(pipelines=1, stages=grid.stages), (1,)),
                steps=1,
            )
        return self._whole[key]

    def _shared(self, grid: Grid) -> SyncedStep:
        """The exchange where pipelines share the microbatches of nodes that are lost."""
        if is_plain(self._workload):
            cut = self._cut(grid.stages)
            replica = has_replica(self._mode)
            return _seen(plain_step(self._workload, cut, grid.pipelines, 1, replica=replica))
        return self._alike(grid, equal_shares(self._workload.shape.virtual_nodes, grid.pipelines))

    def _alike(self, grid: Grid, shares: tuple[int, ...], link: Link | None = None) -> SyncedStep:
        """What one pipeline's dry run sees of the exchange and the ship."""
        key = (grid, shares, link)
        if key not in self._seen:
            self._seen[key] = _seen(self.synced(grid, shares, link))
        return self._seen[key]

    def _pipeline_s(self, shape: _Shape) -> float:
        known_s = self._known.step_s
        if shape not in known_s:
            self.dry_runs += 1
            known_s[shape] = self._dry_s(shape)
        return known_s[shape]

    def _steps_of(self, grid: Grid, shares: tuple[int, ...]) -> int:
        """A gradient that takes longer than a step delays the step after the next."""
        key = (grid, shares)
        if key not in self._grids_steps:
            slow = self.shipped_s(grid, shares) > SLOW * self.floor_s(grid, shares)
            self._grids_steps[key] = SETTLED_STEPS if slow else self._steps
        return self._grids_steps[key]

    def _dry_s(self, shape: _Shape) -> float:
        grid = Grid(pipelines=1, stages=shape.stages)
        named = [NodeId(str(number)) for number in range(len(shape.elsewhere))]
        layout = Layout(
            assignment=Assignment(
                grid=grid,
                owners=tuple(named[number] for number in shape.owners),
                shadows=tuple(None if s is None else named[s] for s in shape.shadows),
            ),
            programs=(one_f_one_b(shape.stages, shape.microbatches),),
            mode=self._mode,
        )
        timeline = plan_run(layout, self._costs(shape), steps=shape.steps)
        self._known.ahead[shape] = computed_ahead(timeline)
        commit_ns = timeline.commit_ns
        step_s = step_time_s(timeline)
        if len(commit_ns) > UNLIKE_STEPS:
            half = len(commit_ns) // 2
            step_s = (commit_ns[-1] - commit_ns[half - 1]) / (len(commit_ns) - half) / 1e9
        return step_s * self._on_cores(timeline, shape)

    def _on_cores(self, timeline: Timeline, shape: _Shape) -> float:
        """The factor by which a step takes longer if nodes share cores. The other pipelines are
        assumed to compute at the same time, each in proportion to its part of the batch."""
        work = self._workload
        if not work.cores:
            return 1.0
        alike = work.shape.total / shape.microbatches
        return longer_on(busy(timeline), cores=work.cores / (work.core_share * alike))

    def _costs(self, shape: _Shape) -> Costs:
        workload, cut = self._workload, self._cut(shape.stages)
        # A node that also works elsewhere has less time for a stage of this pipeline.
        here = Counter(shape.owners)
        slower = [1 + shape.elsewhere[owner] / here[owner] for owner in shape.owners]
        return Costs.of(
            shape.stages,
            forward_s=_times(workload.sums(workload.forward_s, cut), slower),
            backward_s=_times(workload.sums(workload.back_s, cut), slower),
            step_s=_times(workload.sums(workload.steps_s, cut), slower),
            latency_s=workload.latency_s,
            bytes_per_s=workload.bytes_per_s,
            boundary_bytes=self._boundary_bytes(shape.stages),
            back_bytes=self._back_bytes(shape.stages),
            gradient_bytes=shape.synced.ship_bytes,
            exchange_s=_times(shape.synced.work_s, slower),
            rebuild_s=shape.synced.rebuild_s,
            peers_s=shape.synced.peers_s,
            far=self._far(shape),
        )

    def _far(self, shape: _Shape) -> Far | None:
        links = self._workload.far
        if not shape.zones or links is None:
            return None
        return Far(links=links, zone_of={NodeId(str(n)): z for n, z in enumerate(shape.zones)})


def _seen(synced: SyncedStep) -> SyncedStep:
    """Without what goes to pipelines that are not simulated."""
    return replace(synced, sent_bytes=(), links_bytes=())


def longer_on(busy_shares: Sequence[float], *, cores: float) -> float:
    """The factor by which a step takes longer on `cores` cores: whenever more nodes compute at once
    than there are cores, the time grows by their ratio. Bubbles cost nothing while others compute;
    a core is idle where a pipeline fills and drains. `busy_shares`: for each number of nodes from 0
    on, the share of the time in which exactly that many compute."""
    return sum(share * max(1.0, nodes / cores) for nodes, share in enumerate(busy_shares))


def _part(by_slot: Sequence[Of], pipeline: int, grid: Grid) -> Sequence[Of]:
    """The part of one pipeline, by stage."""
    return by_slot[pipeline * grid.stages : (pipeline + 1) * grid.stages]


def _unlike(some: Sequence[Of], others: Sequence[Of]) -> set[int]:
    """Indices at which two sequences differ."""
    return set() if some == others else set(compress(count(), map(ne, some, others)))


def _times(figures: tuple[float, ...], factors: list[float]) -> list[float]:
    return [figure * factor for figure, factor in zip(figures, factors, strict=True)]


def exchange_link(
    assignment: Assignment, zone_of: Mapping[NodeId, ZoneId], links: ZoneLinks
) -> Link | None:
    """The longest latency and the lowest rate of the exchange, for which all owners wait; None if
    it crosses no zone."""
    stages = assignment.grid.stages
    columns = (assignment.owners[stage::stages] for stage in range(stages))
    zones = {frozenset(zone_of.get(owner, ZoneId("")) for owner in column) for column in columns}
    crossed = {pair for together in zones for pair in combinations(sorted(together), 2)}
    if not crossed:
        return None
    used = [links.between(*pair) for pair in crossed]
    rates = [link.bytes_per_s for link in used if link.bytes_per_s]
    latency_s = max(link.latency_s for link in used)
    return Link(latency_s=latency_s, bytes_per_s=min(rates, default=0.0))


def zones_in_order(
    owners: Sequence[NodeId], zone_of: Mapping[NodeId, ZoneId], *, named: bool
) -> tuple[str, ...]:
    """The zone of each owner, in the order of their first stages; empty if all are in one zone."""
    zones = [zone_of.get(node, ZoneId("")) for node in dict.fromkeys(owners)]
    numbers = {zone: str(number) for number, zone in enumerate(dict.fromkeys(zones))}
    if len(numbers) < 2:
        return ()
    return tuple(zones) if named else tuple(numbers[zone] for zone in zones)
