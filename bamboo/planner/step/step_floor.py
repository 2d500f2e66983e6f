"""What the nodes send in a step, how long that takes, and a lower bound of a calm step.

Rule: pure sums over layers and links; nothing is simulated here. Bytes between two nodes use a link
of their own, and all links of a node share its send rate.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bamboo.ids import NodeId, ZoneId
from bamboo.planner.layers.memory import partials_at_end
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.zones import crossing_bytes
from bamboo.planner.step.layout import Costs
from bamboo.planner.step.links import Link
from bamboo.planner.step.synced import (
    SyncedStep,
    in_zones,
    is_plain,
    is_plain_in,
    least_step,
    parameters_of,
    plain_step,
    put_together_s,
    resolved_in,
    situation_of,
    synced_step,
    works_of_tree,
    zones_of,
)
from bamboo.planner.sync.situation import Situation
from bamboo.planner.sync.worth import may_factor
from bamboo.schedule.redundancy import has_replica
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import AUTO
from bamboo.topology.virtual_nodes import blocks_of

if TYPE_CHECKING:
    from bamboo.planner.sync.resolved import Resolved


class StepFloor:
    """The bound for one workload in one redundancy mode, or one for each stage."""

    def __init__(self, workload: WorkloadFigures, mode: str) -> None:
        self._workload = workload
        self._mode = mode
        self._cuts: dict[int, tuple[int, ...]] = {}
        self._partials: dict[tuple[int, ...], int] = {}
        self._floors_s: dict[tuple[Grid, tuple[int, ...]], float] = {}
        self._bounds_s: dict[tuple[Grid, tuple[int, ...]], float] = {}
        self._resolved: dict[tuple[Grid, tuple[int, ...], Link | None], Resolved] = {}
        self._synced: dict[tuple[Grid, tuple[int, ...], Link | None], SyncedStep] = {}
        self._zones: Mapping[NodeId, ZoneId] = {}
        self._many_zones = False
        self._by_zones: dict[tuple[int, ...], StepFloor] = {}

    def floor_s(self, grid: Grid, shares: tuple[int, ...]) -> float:
        """A lower bound of a calm step. The first microbatch comes down to a stage and the last
        goes back up from it; all of them pass the stage, or the link behind it, one after the
        other; the first stage exchanges, copies what it ships and steps last. In the long run a
        step also ships one gradient, and a node sends all its bytes."""
        key = (grid, shares)
        if key not in self._floors_s:
            self._floors_s[key] = self._floor_s(grid, shares, self.synced(grid, shares))
        return self._floors_s[key]

    def bound_s(self, grid: Grid, shares: tuple[int, ...]) -> float:
        """A lower bound of `floor_s` for which no strategy is made, so that many plans may be
        passed over: by `auto` the least that any strategy sends goes, and nobody waits for it."""
        key = (grid, shares)
        if key not in self._bounds_s:
            least = self._least(grid, shares)
            floor_s = self._floor_s(grid, shares, least) if least else self.floor_s(grid, shares)
            self._bounds_s[key] = floor_s
        return self._bounds_s[key]

    def sent_s(self, grid: Grid, shares: tuple[int, ...]) -> float:
        """The time in which the busiest node sends all bytes of a calm step; 0 if only links have a
        rate."""
        return self._sent_s(grid, shares, self.synced(grid, shares))

    def _floor_s(self, grid: Grid, shares: tuple[int, ...], synced: SyncedStep) -> float:
        work = self._workload
        steps_s = work.sums(work.steps_s, self._cut(grid.stages))
        passed_s = self._back_s(grid, shares) + synced.peers_s[0] + synced.work_s[0] + steps_s[0]
        return max(passed_s, self._sent_s(grid, shares, synced), self._shipped_s(synced))

    def _sent_s(self, grid: Grid, shares: tuple[int, ...], synced: SyncedStep) -> float:
        rate = self._workload.node_bytes_per_s
        return max(self._sent_bytes(grid, shares, synced)) / rate if rate else 0.0

    def _back_s(self, grid: Grid, shares: tuple[int, ...]) -> float:
        """Time until the last microbatch is back at the first stage."""
        work, cut = self._workload, self._cut(grid.stages)
        forward, backward = (work.sums(x, cut) for x in (work.forward_s, work.back_s))
        count = max(shares) * work.shape.microbatches
        links_s = [
            (self._carry_s(there), self._carry_s(back))
            for there, back in zip(
                self._boundary_bytes(grid.stages)[:-1],
                self._back_bytes(grid.stages)[:-1],
                strict=True,
            )
        ]
        around_s, least_s = 0.0, 0.0
        for stage, (there_s, back_s) in enumerate((*links_s, (0.0, 0.0))):
            both_s = forward[stage] + backward[stage]
            least_s = max(least_s, around_s + count * both_s)
            around_s += both_s + 2 * work.latency_s + there_s + back_s
            if stage < grid.stages - 1:
                beyond_s = forward[stage + 1] + backward[stage + 1]
                least_s = max(least_s, around_s + (count - 1) * max(there_s, back_s) + beyond_s)
        return least_s

    def shipped_s(self, grid: Grid, shares: tuple[int, ...]) -> float:
        """The time that a stage's largest gradient takes to its shadow; 0 if there are none."""
        return self._shipped_s(self.synced(grid, shares))

    def _shipped_s(self, synced: SyncedStep) -> float:
        return self._carry_s(max(synced.ship_bytes)) if has_replica(self._mode) else 0.0

    def _carry_s(self, size_bytes: float) -> float:
        rate = self._workload.bytes_per_s
        return size_bytes / rate if rate else 0.0

    def sent_bytes(self, grid: Grid, shares: tuple[int, ...]) -> tuple[float, ...]:
        """Bytes that the node of each stage sends in a calm step: outputs and gradients of inputs,
        its reduced gradient to its shadow, and its part of the exchange between pipelines."""
        return self._sent_bytes(grid, shares, self.synced(grid, shares))

    def _sent_bytes(
        self, grid: Grid, shares: tuple[int, ...], synced: SyncedStep
    ) -> tuple[float, ...]:
        microbatches = max(shares) * self._workload.shape.microbatches
        shipped = synced.ship_bytes if has_replica(self._mode) else (0.0,) * grid.stages
        back, outputs = self._back_bytes(grid.stages), self._boundary_bytes(grid.stages)
        return tuple(
            microbatches * (before + after) + own + peers
            for before, after, own, peers in zip(
                (0.0, *back[:-1]), (*outputs[:-1], 0.0), shipped, synced.sent_bytes, strict=True
            )
        )

    def situation(self, grid: Grid, shares: tuple[int, ...], link: Link | None = None) -> Situation:
        """The grid on which the parameters of the workload are synchronised. `link`: see
        `situation_of`."""
        work, cut = self._workload, self._cut(grid.stages)
        backs_s = [
            own + work.latency_s + self._carry_s(size)
            for own, size in zip(
                work.sums(work.back_s, cut), self._back_bytes(grid.stages), strict=True
            )
        ]
        last_s = self._back_s(grid, shares)
        ends_s = [last_s - sum(backs_s[:stage]) for stage in range(grid.stages)]
        replica = has_replica(self._mode)
        return situation_of(work, cut, shares, replica=replica, ends_s=ends_s, link=link)

    def resolved(self, grid: Grid, shares: tuple[int, ...], link: Link | None = None) -> "Resolved":
        """The strategy of the workload on a grid, parameter by parameter."""
        key = (grid, shares, link)
        if key not in self._resolved:
            self._resolved[key] = resolved_in(self._workload, self.situation(grid, shares, link))
        return self._resolved[key]

    def _is_plain(self, grid: Grid, shares: tuple[int, ...], link: Link | None = None) -> bool:
        work = self._workload
        return is_plain(work) or is_plain_in(work, self.situation(grid, shares, link))

    def held_factors(self, grid: Grid) -> tuple[int, ...]:
        """Bytes of factors that the node of each stage holds at the start; empty: none."""
        shares = equal_shares(self._workload.shape.virtual_nodes, grid.pipelines)
        if self._is_plain(grid, shares) or not self._may_factor(grid, shares):
            return ()
        from bamboo.planner.sync.resolved import held_factors

        return held_factors(self.resolved(grid, shares), parameters_of(self._workload))

    def _may_factor(self, grid: Grid, shares: tuple[int, ...]) -> bool:
        work = self._workload
        if work.syncing.sync != AUTO:
            return True
        return may_factor(parameters_of(work), self.situation(grid, shares))

    def synced(self, grid: Grid, shares: tuple[int, ...], link: Link | None = None) -> SyncedStep:
        """The exchange and the ship of each stage. `link`: the longest latency and the lowest rate
        between zones that the owners of any stage have."""
        key = (grid, shares, link)
        if key not in self._synced:
            if self._is_plain(grid, shares, link):
                partials = self._most_partials(shares)
                cut = self._cut(grid.stages)
                replica = has_replica(self._mode)
                found = plain_step(
                    self._workload, cut, grid.pipelines, partials, link, replica=replica
                )
            else:
                resolved = self.resolved(grid, shares, link)
                works_s = works_of_tree(self._workload, resolved.situation)
                cut = self._cut(grid.stages)
                whole_s = put_together_s(self._workload, cut, grid.pipelines)
                found = synced_step(resolved, works_s, whole_s)
            self._synced[key] = found
        return self._synced[key]

    def crossing_bytes(
        self,
        assignment: Assignment,
        shares: tuple[int, ...],
        zone_of: Mapping[NodeId, ZoneId],
        *,
        least: bool = False,
    ) -> float:
        """Bytes between zones in a step. `least`: a lower bound of them, see `bound_s`."""
        if zone_of is not self._zones:
            self._zones = zone_of
            self._many_zones = len(set(zone_of.values())) > 1
        if not self._many_zones:
            return 0.0
        grid, work = assignment.grid, self._workload
        within = self._in_zones(zones_of(assignment, zone_of))
        bound = within._least(grid, shares) if least else None
        synced = bound or within.synced(grid, shares)
        costs = Costs.of(
            grid.stages,
            forward_s=(0.0,),
            backward_s=(0.0,),
            boundary_bytes=self._boundary_bytes(grid.stages),
            back_bytes=self._back_bytes(grid.stages),
            gradient_bytes=synced.ship_bytes,
            links_bytes=synced.links_bytes,
            exchange_bytes=[size / max(grid.pipelines - 1, 1) for size in synced.sent_bytes],
        )
        microbatches = [share * work.shape.microbatches for share in shares]
        return crossing_bytes(assignment, zone_of, costs, microbatches=microbatches)

    def _in_zones(self, zones: tuple[int, ...]) -> "StepFloor":
        """The same with pipelines in these zones."""
        if is_plain(self._workload) or not zones or zones == self._workload.syncing.zones:
            return self
        if zones not in self._by_zones:
            self._by_zones[zones] = StepFloor(in_zones(self._workload, zones), self._mode)
        return self._by_zones[zones]

    def _least(self, grid: Grid, shares: tuple[int, ...]) -> SyncedStep | None:
        """The least of all that `auto` may do; None where `synced` is as cheap to have."""
        if self._workload.syncing.sync != AUTO or self._is_plain(grid, shares):
            return None
        return least_step(self._workload, self.situation(grid, shares))

    def _boundary_bytes(self, stages: int) -> list[float]:
        layers = self._workload.layers
        return [float(layers[stop - 1].output_bytes) for stop in self._cut(stages)[1:]]

    def _back_bytes(self, stages: int) -> list[float]:
        layers = self._workload.layers
        return [float(layers[stop - 1].returned_bytes) for stop in self._cut(stages)[1:]]

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
