"""How long a step takes with an assignment: a dry run for each shape, made once.

Rule: pipelines wait for each other at the end of a step only, so a step takes as long as that of
the slowest one. The dry run is that of one pipeline; the same nodes in the same pattern, whatever
their names, are one shape. A node that works for several pipelines is counted in each of them with
the stages that it owns in all.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, count, pairwise
from operator import ne
from typing import TypeVar

from bamboo.ids import NodeId, ZoneId
from bamboo.planner.apart import exchange_link, zones_in_order
from bamboo.planner.cost import sent_bytes
from bamboo.planner.memory import partials_at_end
from bamboo.planner.profile import FLOAT_BYTES
from bamboo.planner.workload import Workload
from bamboo.planner.zones import crossing_bytes
from bamboo.schedule.figures import STEADY_STEPS, computed_ahead, plan_run, step_time_s
from bamboo.schedule.layout import Costs, Layout
from bamboo.schedule.links import Far, Link
from bamboo.schedule.one_f_one_b import one_f_one_b
from bamboo.schedule.redundancy import has_replica
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import modes_of
from bamboo.topology.virtual_nodes import blocks_of

Of = TypeVar("Of")
_Ahead = tuple[tuple[float, float], ...]
DRY_STEPS = 2
"""The first is left out of the step time."""
UNLIKE_STEPS = STEADY_STEPS
"""Where steps are unlike each other: as many as the plan's own dry run counts."""
UNLIKE_MODES = frozenset({"eager", "full"})
"""A redundant operation that is not done when a step ends is done in the next one."""
SETTLED_STEPS = 8
"""The first half is left out."""
IDLE_SHADOWS = ("off", "peer", "stash")
"""Modes in which a shadow computes nothing until it has to: where neither bytes nor the optimizer
take time either, a pipeline steps as if it had none, and each of its steps takes as long as the
first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Of one pipeline: what its dry run depends on."""

    stages: int
    pipelines: int
    """Of the grid: how many the exchange is with."""
    microbatches: int
    owners: tuple[int, ...]
    """Of each stage, numbered as they appear."""
    shadows: tuple[int | None, ...]
    elsewhere: tuple[int, ...]
    """Stages that each owner has in other pipelines."""
    most_partials: int
    zones: tuple[str, ...] = ()
    """Of each owner, by name where pairs of zones are unlike each other, else numbered as they
    appear; empty: they do not matter, or are all one."""
    exchange: Link | None = None
    """The longest and the narrowest that the owners of any stage have between zones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """An assignment and what a step of each of its pipelines takes."""

    assignment: Assignment
    shares: tuple[int, ...]
    seconds: tuple[float, ...]

    def comparable(self, assignment: Assignment, shares: tuple[int, ...]) -> bool:
        """Whether pipelines that are alike in both take as long in both."""
        return assignment.grid == self.assignment.grid and shares == self.shares

    def unlike(self, assignment: Assignment, *, idle: bool) -> set[int]:
        """Pipelines whose time may be another one: those with another owner, or shadow unless these
        are `idle`, and those in which an owner works who has more or fewer stages now."""
        old, grid = self.assignment, assignment.grid
        moved = _unlike(old.owners, assignment.owners)
        if not idle:
            moved |= _unlike(old.shadows, assignment.shadows)
        nodes = {owners[number] for number in moved for owners in (old.owners, assignment.owners)}
        owned = assignment.roles.owned
        touched = {*moved, *(number for node in nodes for number in owned.get(node, ()))}
        return {number // grid.stages for number in touched}


class StepTimes:
    """Of one workload in one redundancy mode, or one for each stage. `steps` of a dry run are
    played, and the second half of them counts: more than two where gradients may take longer to
    ship than a step takes, which shows only when one begins whose last but one is still on its way
    (SETTLED_STEPS)."""

    def __init__(self, workload: Workload, mode: str, *, steps: int = DRY_STEPS) -> None:
        self._workload, self._mode = workload, mode
        self._steps = max(steps, UNLIKE_STEPS) if UNLIKE_MODES & set(modes_of(mode)) else steps
        takes_time = workload.bytes_per_s or workload.latency_s or workload.far
        self._idle = mode in IDLE_SHADOWS and not takes_time and not any(workload.optimizer_s)
        self._cuts: dict[int, tuple[int, ...]] = {}
        self._partials: dict[tuple[int, ...], int] = {}
        self._known_s: dict[_Shape, float] = {}
        self._known_ahead: dict[_Shape, _Ahead] = {}
        self._calm_s: dict[tuple[int, int, tuple[int, ...]], float] = {}
        self._calm_ahead: dict[tuple[int, int, tuple[int, ...]], _Ahead] = {}
        self._last: _Timed | None = None
        self._whole: dict[tuple[int, ...], _Shape] = {}
        self._zones: Mapping[NodeId, ZoneId] = {}
        self._many_zones = False
        self.dry_runs = 0

    def calm_s(self, grid: Grid, shares: tuple[int, ...]) -> float:
        """With a node for every slot, each shadowed by the one before it."""
        key = (grid.pipelines, grid.stages, shares)
        if key not in self._calm_s:
            self._calm_s[key] = self.of(self.calm(grid), shares)
        return self._calm_s[key]

    def calm(self, grid: Grid) -> Assignment:
        """A node for every slot, named like it, each shadowed by the one before it."""
        slots = grid.slots()
        replica = has_replica(self._mode)
        return Assignment(
            grid=grid,
            owners=tuple(NodeId(str(slot)) for slot in slots),
            shadows=tuple(NodeId(str(grid.protector(s))) if replica else None for s in slots),
        )

    def calm_ahead(self, grid: Grid, shares: tuple[int, ...]) -> _Ahead:
        """Of the forwards and of the backwards of each stage in a calm step, the shares that its
        shadow has done, too, when it commits: what a takeover at the end of a step has not to do
        again."""
        key = (grid.pipelines, grid.stages, shares)
        if key not in self._calm_ahead:
            busiest = max(range(grid.pipelines), key=lambda pipeline: shares[pipeline])
            shape = self._shape(self.calm(grid), busiest, shares)
            self._pipeline_s(shape)
            self._calm_ahead[key] = self._known_ahead[shape]
        return self._calm_ahead[key]

    def floor_s(self, grid: Grid, shares: tuple[int, ...]) -> float:
        """No calm step takes less: the first microbatch comes down to a stage and the last goes
        back up from it, all pass the stage, or the link behind it, one after the other; the first
        stage exchanges and steps last; and in the long run a gradient is shipped in a step."""
        work, cut = self._workload, self._cut(grid.stages)
        forward, backward = (work.sums(x, cut) for x in (work.forward_s, work.backward_s))
        gradient, count = self._gradient_bytes(grid.stages), max(shares) * work.shape.microbatches
        links_s = [self._carry_s(size) for size in self._boundary_bytes(grid.stages)[:-1]]
        around_s, least_s = 0.0, 0.0
        for stage, there_s in enumerate((*links_s, 0.0)):
            both_s = forward[stage] + backward[stage]
            least_s = max(least_s, around_s + count * both_s)
            around_s += both_s + 2 * (work.latency_s + there_s)
            if stage < grid.stages - 1:
                beyond_s = forward[stage + 1] + backward[stage + 1]
                least_s = max(least_s, around_s + (count - 1) * there_s + beyond_s)
        first = self._shape(self.calm(grid), 0, shares)
        last_s = self._exchange_s(gradient[0], first) + work.sums(work.optimizer_s, cut)[0]
        return max(least_s + last_s, self.shipped_s(grid))

    def shipped_s(self, grid: Grid) -> float:
        """What the largest gradient of a stage takes to its shadow; 0: there are none."""
        if not has_replica(self._mode):
            return 0.0
        return self._carry_s(max(self._gradient_bytes(grid.stages)))

    def _carry_s(self, size_bytes: float) -> float:
        rate = self._workload.bytes_per_s
        return size_bytes / rate if rate else 0.0

    def sent_bytes(self, grid: Grid, shares: tuple[int, ...]) -> tuple[float, ...]:
        """What the node of each stage sends to others in a calm step: outputs and gradients of
        inputs, its reduced gradient to its shadow, and its part of the exchange of pipelines."""
        microbatches = max(shares) * self._workload.shape.microbatches
        shipped = 1.0 if has_replica(self._mode) else 0.0
        peers = grid.pipelines - 1
        exchanged = (self._most_partials(shares) + 1) / grid.pipelines * peers
        return sent_bytes(
            self._boundary_bytes(grid.stages),
            self._gradient_bytes(grid.stages),
            microbatches=microbatches,
            copies=shipped + exchanged,
        )

    def with_peers_s(self, grid: Grid, nodes: int) -> float:
        """Where a stage of `grid` has only so many nodes in all, among whom its microbatches are
        shared out, and no other has fewer: all its pipelines together, a node for each stage."""
        leaves = self._workload.shape
        shape = _Shape(
            stages=grid.stages,
            pipelines=grid.pipelines,
            microbatches=-(-leaves.total // nodes),
            owners=tuple(range(grid.stages)),
            shadows=(None,) * grid.stages,
            elsewhere=(0,) * grid.stages,
            most_partials=1,
        )
        return self._pipeline_s(shape)

    def of(
        self,
        assignment: Assignment,
        shares: tuple[int, ...],
        zone_of: Mapping[NodeId, ZoneId] | None = None,
    ) -> float:
        """Seconds of a step. `shares`: virtual nodes of each pipeline; `zone_of`: where each node
        is, which counts if links between zones are unlike the others."""
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
                shape = replace(shape, zones=where, exchange=exchange)
            seconds[pipeline] = self._pipeline_s(shape)
        # Decisions change a pipeline or two, and a cluster may have hundreds.
        if zones is None:
            self._last = _Timed(assignment=assignment, shares=shares, seconds=tuple(seconds))
        return max(seconds)

    def crossing_bytes(
        self,
        assignment: Assignment,
        shares: tuple[int, ...],
        zone_of: Mapping[NodeId, ZoneId],
    ) -> float:
        """Bytes between zones in a step."""
        if zone_of is not self._zones:
            self._zones, self._many_zones = zone_of, len(set(zone_of.values())) > 1
        if not self._many_zones:
            return 0.0
        grid, work = assignment.grid, self._workload
        gradient = self._gradient_bytes(grid.stages)
        back = (self._most_partials(shares) + 1) / grid.pipelines if grid.pipelines > 1 else 0.0
        costs = Costs.of(
            grid.stages,
            forward_s=(0.0,),
            backward_s=(0.0,),
            boundary_bytes=self._boundary_bytes(grid.stages),
            gradient_bytes=gradient,
            exchange_bytes=[size * back for size in gradient],
        )
        microbatches = [share * work.shape.microbatches for share in shares]
        return crossing_bytes(assignment, zone_of, costs, microbatches=microbatches)

    def _gradient_bytes(self, stages: int) -> list[float]:
        layers = self._workload.layers
        return [
            float(FLOAT_BYTES * sum(layer.parameters for layer in layers[first:stop]))
            for first, stop in pairwise(self._cut(stages))
        ]

    def _boundary_bytes(self, stages: int) -> list[float]:
        layers = self._workload.layers
        return [float(layers[stop - 1].output_bytes) for stop in self._cut(stages)[1:]]

    def _most_partials(self, shares: tuple[int, ...]) -> int:
        if shares not in self._partials:
            leaves = self._workload.shape.virtual_nodes
            most = max(partials_at_end(block, leaves) for block in blocks_of(shares))
            self._partials[shares] = most
        return self._partials[shares]

    def _cut(self, stages: int) -> tuple[int, ...]:
        if stages not in self._cuts:
            self._cuts[stages] = self._workload.cut(stages)
        return self._cuts[stages]

    def _shape(self, assignment: Assignment, pipeline: int, shares: tuple[int, ...]) -> _Shape:
        owners = _part(assignment.owners, pipeline, assignment.grid)
        if self._idle and assignment.roles.several.isdisjoint(owners):
            return self._whole_shape(assignment.grid, shares, shares[pipeline])
        owned = assignment.roles.owned
        names = {node: number for number, node in enumerate(dict.fromkeys(owners))}
        here = Counter(owners)
        return _Shape(
            stages=assignment.grid.stages,
            pipelines=assignment.grid.pipelines,
            microbatches=shares[pipeline] * self._workload.shape.microbatches,
            owners=tuple(names[node] for node in owners),
            # A shadow without a stage in this pipeline costs its owners nothing here.
            shadows=tuple(
                None if shadow is None or self._idle else names.get(shadow)
                for shadow in _part(assignment.shadows, pipeline, assignment.grid)
            ),
            elsewhere=tuple(len(owned[node]) - here[node] for node in names),
            most_partials=self._most_partials(shares),
        )

    def _whole_shape(self, grid: Grid, shares: tuple[int, ...], share: int) -> _Shape:
        """Of a pipeline with a node for each stage, none of which works for another one."""
        key = (grid.pipelines, grid.stages, share, self._most_partials(shares))
        if key not in self._whole:
            self._whole[key] = _Shape(
                stages=grid.stages,
                pipelines=grid.pipelines,
                microbatches=share * self._workload.shape.microbatches,
                owners=tuple(range(grid.stages)),
                shadows=(None,) * grid.stages,
                elsewhere=(0,) * grid.stages,
                most_partials=key[-1],
            )
        return self._whole[key]

    def _pipeline_s(self, shape: _Shape) -> float:
        if shape not in self._known_s:
            self.dry_runs += 1
            self._known_s[shape] = self._dry_s(shape)
        return self._known_s[shape]

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
        steps = 1 if self._idle else self._steps
        timeline = plan_run(layout, self._costs(shape), steps=steps)
        self._known_ahead[shape] = computed_ahead(timeline)
        commit_ns = timeline.commit_ns
        if len(commit_ns) <= UNLIKE_STEPS:
            return step_time_s(timeline)
        half = len(commit_ns) // 2
        return (commit_ns[-1] - commit_ns[half - 1]) / (len(commit_ns) - half) / 1e9

    def _costs(self, shape: _Shape) -> Costs:
        workload, cut = self._workload, self._cut(shape.stages)
        # Who works elsewhere too has that much less time for a stage of this pipeline.
        here = Counter(shape.owners)
        slower = [1 + shape.elsewhere[owner] / here[owner] for owner in shape.owners]
        gradient = self._gradient_bytes(shape.stages)
        exchange_s = [self._exchange_s(size, shape) for size in gradient]
        return Costs.of(
            shape.stages,
            forward_s=_times(workload.sums(workload.forward_s, cut), slower),
            backward_s=_times(workload.sums(workload.backward_s, cut), slower),
            step_s=_times(workload.sums(workload.optimizer_s, cut), slower),
            exchange_s=exchange_s,
            latency_s=workload.latency_s,
            bytes_per_s=workload.bytes_per_s,
            boundary_bytes=self._boundary_bytes(shape.stages),
            gradient_bytes=gradient,
            far=self._far(shape),
        )

    def _far(self, shape: _Shape) -> Far | None:
        links = self._workload.far
        if not shape.zones or links is None:
            return None
        return Far(links=links, zone_of={NodeId(str(n)): z for n, z in enumerate(shape.zones)})

    def _exchange_s(self, gradient_bytes: float, shape: _Shape) -> float:
        """Each owner sends every peer its partials of that peer's part, and its own part back."""
        if shape.pipelines == 1:
            return 0.0
        each = gradient_bytes * (shape.most_partials + 1) / shape.pipelines
        size = each * (shape.pipelines - 1)
        latency_s, rate = self._workload.latency_s, self._workload.bytes_per_s
        if shape.exchange is not None:
            latency_s, rate = shape.exchange.latency_s, shape.exchange.bytes_per_s
        return 2 * latency_s + (size / rate if rate else 0.0)


def _part(by_slot: Sequence[Of], pipeline: int, grid: Grid) -> Sequence[Of]:
    """Of one pipeline, by stage."""
    return by_slot[pipeline * grid.stages : (pipeline + 1) * grid.stages]


def _unlike(some: Sequence[Of], others: Sequence[Of]) -> set[int]:
    """Where two sequences differ."""
    return set() if some == others else set(compress(count(), map(ne, some, others)))


def _times(figures: tuple[float, ...], factors: list[float]) -> list[float]:
    return [figure * factor for figure, factor in zip(figures, factors, strict=True)]
