"""What losses of nodes cost a run: how often they come, and how many seconds each one takes.

Rule: a loss that a live copy survives costs time in the step that it hits, and slower steps until
the lost node is replaced. Any other loss costs the work since the newest checkpoint and the
restart. Step times are those of dry runs. How often losses come, and how many nodes go at once, is
modelled after one trace (`bamboo.planner.risks.zones`), scaled to the given rate, and never a
promise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import exp
from statistics import fmean

from bamboo.ids import NodeId, ZoneId
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.checkpoint_cost import Shards
from bamboo.planner.risks.hazards import LOSSES_PER_NODE_HOUR, PUBLISHED, LossRate
from bamboo.planner.risks.zones import (
    REPLACE_S,
    RESTART_S,
    Stakes,
    fatal_per_hour,
    laid_out,
    nodes_by_zone,
)
from bamboo.planner.step.step_time import StepTimes
from bamboo.schedule.redundancy import has_replica
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.slots import Slot

INF = float("inf")
PAUSE_S = 0.048
"""Time from the loss of a node to its stage's first operation on the shadow: the median of 20 kills
of real processes (`benchmarks.failover_pause`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """How nodes are lost, and how soon they are replaced."""

    stakes: Stakes
    rate: LossRate = PUBLISHED
    replace_s: float = REPLACE_S
    """Time until a lost node is replaced: with a standby the copy of the state, otherwise the boot
    too. A restore takes at least RESTART_S."""

    def fatal_s(self, step_s: float, every: int) -> float:
        """The mean cost of a loss without a live copy, with a checkpoint every `every` steps
        (0: none)."""
        return self.stakes.lost_s(step_s, every) + max(0.0, self.replace_s - RESTART_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The expected losses of one plan."""

    survived_per_hour: float
    """Lost nodes whose work continues from a live copy."""
    survived_s: float
    """Seconds that each of them costs in the step that it hits."""
    empty_share: float
    """Share of the time in which some lost node is not yet replaced."""
    slower: float
    """Relative increase of the step time during that share."""
    fatal_per_hour: float
    """Instants after which all nodes go back to a checkpoint, or start again."""
    fatal_s: float
    checkpoint_every: int = 0
    """Steps between two checkpoints of the plan; 0: there are none."""

    @property
    def survived_share(self) -> float:
        """Time lost per useful time, through losses that a live copy survives."""
        kept = 1 - self.empty_share + self.empty_share / (1 + self.slower)
        return (1 + self.survived_per_hour * self.survived_s / 3600) / kept - 1

    @property
    def fatal_share(self) -> float:
        """Time lost per useful time, through fatal losses."""
        return self.fatal_per_hour * self.fatal_s / 3600

    @property
    def share(self) -> float:
        """Time lost per useful time, in total; above 1 a run loses more than it gains."""
        return self.survived_share + self.fatal_share


NO_LOSSES = Losses(
    survived_per_hour=0.0,
    survived_s=0.0,
    empty_share=0.0,
    slower=0.0,
    fatal_per_hour=0.0,
    fatal_s=0.0,
)


def shards_of(work: WorkloadFigures, cut: Sequence[int]) -> Shards:
    """The checkpoint of a workload that is cut into these stages."""
    return Shards(
        stage_bytes=tuple(work.state_bytes(range(a, b)) for a, b in pairwise(cut)),
        store_bytes_per_s=work.store_bytes_per_s,
    )


def empty_share(survived_per_hour: float, *, replace_s: float) -> float:
    """Share of the time in which some place is empty. However many are empty, all pipelines wait
    for the slowest one."""
    return 1 - exp(-survived_per_hour * replace_s / 3600)


def at_rate(losses: Losses, factor: float, *, replace_s: float) -> Losses:
    """The losses if nodes are taken `factor` times as often."""
    survived = losses.survived_per_hour * factor
    return replace(
        losses,
        survived_per_hour=survived,
        empty_share=empty_share(survived, replace_s=replace_s),
        fatal_per_hour=losses.fatal_per_hour * factor,
    )


@dataclass(slots=True, kw_only=True)
class LossBook:
    """Losses of nodes in one spread over zones; what depends on the grid alone is computed once."""

    hazard: Hazard
    spread: str
    standbys: int
    instants: dict[tuple[Grid, str], float] = field(default_factory=dict)
    """Fatal instants, by grid and kind of mode, with the zones of `LossRate.at_trace`. Books of one
    spread over the same number of zones may share them if the zones do not differ."""

    def of(self, work: WorkloadFigures, times: StepTimes, grid: Grid, mode: str) -> Losses:
        """Losses of a workload on a grid; `times` are its step times in that mode."""
        shares = equal_shares(work.shape.virtual_nodes, grid.pipelines)
        calm_s = times.calm_s(grid, shares)
        if not self.hazard.stakes.preemptible or self.hazard.rate.per_node_hour <= 0:
            every = self.interval(work, grid, calm_s=calm_s, fatal_per_hour=0.0)
            return replace(NO_LOSSES, checkpoint_every=every)
        fatal = self.fatal_per_hour(grid, mode)
        all_instants = self.fatal_per_hour(grid, "off")
        share = max(0.0, 1.0 - fatal / all_instants) if all_instants else 0.0
        survived = self.hazard.rate.mean(self.zones(grid)) * grid.size * share
        hit_s, later_s = self._survived(work, times, grid, mode) if survived else (0.0, calm_s)
        every = self.interval(work, grid, calm_s=calm_s, fatal_per_hour=fatal)
        return Losses(
            survived_per_hour=survived,
            survived_s=hit_s,
            empty_share=empty_share(survived, replace_s=self.hazard.replace_s),
            slower=later_s / calm_s - 1,
            fatal_per_hour=fatal,
            fatal_s=self.hazard.fatal_s(calm_s, every),
            checkpoint_every=every,
        )

    def interval(
        self, work: WorkloadFigures, grid: Grid, *, calm_s: float, fatal_per_hour: float
    ) -> int:
        """Steps between two checkpoints of a plan; 0: there are none."""
        stakes, cut = self.hazard.stakes, work.cut(grid.stages)
        price = stakes.zone_usd_per_hour
        return stakes.interval(
            shards_of(work, cut),
            step_s=calm_s,
            fatal_per_hour=fatal_per_hour,
            usd_per_hour=sum(count * price[zone] for zone, count in self.zones(grid).items()),
        )

    def fatal_per_hour(self, grid: Grid, mode: str) -> float:
        """Instants that leave a stage without a live copy; in mode `off`, all that take an
        owner."""
        kind = "stash" if has_replica(mode) else mode
        if (grid, kind) not in self.instants:
            assignment, zone_of = self.laid_out(grid, kind)
            rate = self.hazard.rate.at_trace()
            self.instants[grid, kind] = fatal_per_hour(assignment, zone_of, kind, rate)
        return self.instants[grid, kind] * self.hazard.rate.per_node_hour / LOSSES_PER_NODE_HOUR

    def zones(self, grid: Grid) -> dict[str, int]:
        """Zone -> nodes; empty if there are too few zones or pipelines for the spread."""
        order = self.hazard.stakes.zones_by_price()
        return nodes_by_zone(self.spread, grid, order, nodes=grid.size + self.standbys)

    def laid_out(self, grid: Grid, mode: str) -> tuple[Assignment, dict[NodeId, ZoneId]]:
        """The assignment of slots and replicas in the spread, and the zone of each node."""
        assignment, zones = laid_out(self.spread, self.zones(grid), grid, mode)
        return assignment, {node: ZoneId(zone) for node, zone in zones.items()}

    def _survived(
        self, work: WorkloadFigures, times: StepTimes, grid: Grid, mode: str
    ) -> tuple[float, float]:
        """The time that the hit step loses, and the duration of the steps after it."""
        leaves = work.shape.virtual_nodes
        shares = equal_shares(leaves, grid.pipelines)
        calm_s = times.calm_s(grid, shares)
        fewer_s = INF
        if grid.pipelines > 1:
            # All nodes soon reconfigure, if that is faster than waiting for the merged node.
            fewer = Grid(pipelines=grid.pipelines - 1, stages=grid.stages)
            fewer_s = times.calm_s(fewer, equal_shares(leaves, fewer.pipelines))
        if not has_replica(mode):
            # `peer`: the step is done again, after half of it on average.
            return PAUSE_S + calm_s / 2, max(calm_s, fewer_s)
        cut = work.cut(grid.stages)
        forward, backward = work.sums(work.forward_s, cut), work.sums(work.back_s, cut)
        both = [f + b for f, b in zip(forward, backward, strict=True)]
        # The slowest merged node owns the stage with the most work together with its shadow's.
        victim = max(range(grid.stages), key=lambda stage: both[stage] + both[stage - 1])
        merged_s = max(calm_s, self._merged_s(times, grid, shares, victim))
        microbatches = max(shares) * work.shape.microbatches
        # The repeated work is that of any stage: each one is equally likely to be lost.
        again_s = fmean(
            forward[stage] * (1 - ahead_f) + backward[stage] * (1 - ahead_b)
            for stage, (ahead_f, ahead_b) in enumerate(times.calm_ahead(grid, shares))
        )
        # On average a loss comes in the middle of a step.
        hit_s = PAUSE_S + microbatches * again_s / 2 + (merged_s - calm_s) / 2
        return hit_s, max(calm_s, min(merged_s, fewer_s))

    @staticmethod
    def _merged_s(times: StepTimes, grid: Grid, shares: tuple[int, ...], stage: int) -> float:
        """Time of a step while the shadow of a stage of the busiest pipeline also owns it."""
        busiest = max(range(grid.pipelines), key=lambda pipeline: shares[pipeline])
        victim = Slot(pipeline=busiest, stage=stage)
        calm = times.calm(grid)
        hit = calm.replace(
            owners={victim: calm.owner(grid.protector(victim))},
            shadows={victim: None, grid.protected(victim): None},
        )
        return times.of(hit, shares)
