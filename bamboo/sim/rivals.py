"""Other ways to live on spot instances, in the same worlds and with the same step times.

Rule: these are models of ways, named as such, and not of products. Each is told the same and rents
on the same terms; what it needs beyond the work itself is a stated figure with a source.

    Oracle             every change of membership costs nothing: always the best grid for the same
                       nodes, or the least one on fewer nodes than it has slots
    CheckpointRestart  all stop at every change and go on from the newest checkpoint, in the best
                       grid for those who are there (Athlur et al., Varuna, EuroSys 2022)
    Rerouting          a lost node's microbatches go to the same stage of other pipelines (Gandhi et
                       al., ReCycle, SOSP 2024; Jang et al., Oobleck, SOSP 2023)
"""

import math
from collections import Counter
from dataclasses import dataclass

from bamboo.core.place import layout_for, nodes_wanted
from bamboo.core.policy import Policy
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId, ZoneId
from bamboo.planner.step_time import StepTimes
from bamboo.sim.kernel import Entry
from bamboo.sim.world import FAILOVER, HAND_OVER, RECONFIGURATION, RESTORE, World
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares


class _Spot:
    """What all of them have in common: nodes in the order in which they came, and a grid."""

    def __init__(self, world: World, times: StepTimes, policy: Policy, *, standbys: int) -> None:
        self._world, self._times, self._policy = world, times, policy
        self._standbys = standbys
        self._nodes: list[NodeId] = []
        if not policy.grids:
            raise CoreMisuse(
                "policy.grids is empty, so that a rival has no grid to choose; give each grid that "
                "the run may have and its step time, as bamboo.planner makes them"
            )
        least = min(policy.grids, key=lambda grid: grid.pipelines * grid.stages)
        self._least_grid = Grid(pipelines=least.pipelines, stages=least.stages)
        self._least = self._least_grid.size

    def wanted(self) -> int:
        return self._policy.pipelines * self._policy.stages + self._standbys

    def spare(self) -> NodeId | None:
        return None

    def noticed(self, node: NodeId, deadline_s: float) -> None:
        """Nothing is done before the loss."""

    def _best(self) -> ModelLayout | None:
        """For those who are there; None: they are too few for any grid."""
        if len(self._nodes) < self._least:
            return None
        return layout_for(len(self._nodes), self._policy)

    def _calm_s(self, layout: ModelLayout) -> float:
        return self._times.calm_s(layout.grid, layout.shares)


class Oracle(_Spot):
    """Always the best grid for those who are there, at once and for nothing. `frugal`: what that
    grid has no use for is given back at once, too."""

    def __init__(
        self,
        world: World,
        times: StepTimes,
        policy: Policy,
        *,
        standbys: int,
        frugal: bool = False,
    ) -> None:
        super().__init__(world, times, policy, standbys=standbys)
        self._frugal = frugal

    def wanted(self) -> int:
        most = super().wanted()
        if not self._frugal:
            return most
        available = min(most, max(self._world.capacity, self._least))
        return nodes_wanted(available, self._policy, standbys=self._standbys)

    def spare(self) -> NodeId | None:
        return self._nodes[-1] if self._nodes else None

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        del zone
        self._nodes.append(node)
        self._set_pace()

    def lost(self, node: NodeId) -> None:
        self._nodes.remove(node)
        self._set_pace()

    def _set_pace(self) -> None:
        best = self._best()
        self._world.progress.run(self._merged_s() if best is None else self._calm_s(best))
        self._world.note()

    def _merged_s(self) -> float:
        """Of too few nodes for any grid: each takes neighbouring slots of the least one."""
        if not self._nodes:
            return math.inf
        grid, leaves = self._least_grid, self._policy.virtual_nodes
        owners = [self._nodes[i * len(self._nodes) // grid.size] for i in range(grid.size)]
        merged = Assignment(grid=grid, owners=tuple(owners), shadows=(None,) * grid.size)
        return self._times.of(merged, equal_shares(leaves, grid.pipelines))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTerms:
    """What a restart costs. The default is the geometric middle of the 76 to 701 s that are
    published for Varuna."""

    restart_s: float = 231.0
    checkpoint_every: int = 10
    """Steps; written behind the training, at no cost."""
    settle_s: float = 60.0
    """So long after a restart a larger grid is not yet worth another."""


class CheckpointRestart(_Spot):
    """All stop at every loss of a member, and for a better grid; the steps since the newest
    checkpoint are done again."""

    def __init__(
        self,
        world: World,
        times: StepTimes,
        policy: Policy,
        *,
        standbys: int,
        terms: RestartTerms | None = None,
    ) -> None:
        super().__init__(world, times, policy, standbys=standbys)
        self._terms = terms or RestartTerms()
        self._layout: ModelLayout | None = None
        self._members: frozenset[NodeId] = frozenset()
        self._restarting: Entry | None = None
        self._look_at: Entry | None = None

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        del zone
        self._nodes.append(node)
        if self._layout is None and self._restarting is None:
            self._restart(first=self._world.progress.steps == 0)
        elif self._look_at is None:
            self._look_at = self._world.kernel.after(self._terms.settle_s, self._grow)

    def lost(self, node: NodeId) -> None:
        self._nodes.remove(node)
        if node in self._members:
            self._world.progress.stand()
            self._world.happened(RESTORE)
            every = self._terms.checkpoint_every
            self._world.progress.back_to(self._world.progress.whole // every * every)
            self._restart()

    def _grow(self) -> None:
        self._look_at = None
        best = self._best()
        if best is None or self._layout is None or self._restarting is not None:
            return
        if self._calm_s(best) < self._calm_s(self._layout):
            self._world.progress.back_to(self._world.progress.whole)
            self._restart()

    def _restart(self, *, first: bool = False) -> None:
        """Begin anew, as often as one of those who are gathered is lost on the way."""
        self._world.kernel.cancel(self._restarting)
        self._restarting = None
        self._world.progress.stand()
        best = self._best()
        self._layout, self._members = None, frozenset()
        if best is not None:
            self._members = frozenset(self._nodes[: best.grid.size])
            delay_s = 0.0 if first else self._terms.restart_s
            self._restarting = self._world.kernel.after(delay_s, self._go_on)

    def _go_on(self) -> None:
        """With those who have come meanwhile, too."""
        self._restarting = None
        best = self._best()
        assert best is not None, "a loss on the way begins anew"
        self._layout, self._members = best, frozenset(self._nodes[: best.grid.size])
        self._world.happened(RECONFIGURATION)
        self._world.progress.run(self._calm_s(best))
        self._world.note()
        if self._look_at is None:
            self._look_at = self._world.kernel.after(self._terms.settle_s, self._grow)


@dataclass(frozen=True, slots=True, kw_only=True)
class RerouteTerms:
    """What a change of membership costs. The default lies within the 2 to 10 s that are published
    for Oobleck."""

    pause_s: float = 5.0
    restart_s: float = 231.0
    """When no pipeline has a stage any more, or the grid changes."""
    checkpoint_every: int = 10


class Rerouting(_Spot):
    """Without replicas: the microbatches of a lost node go to its peers, and a node that comes
    fills a hole. A stage that nobody has any more is restored from a checkpoint."""

    def __init__(
        self,
        world: World,
        times: StepTimes,
        policy: Policy,
        *,
        standbys: int,
        terms: RerouteTerms | None = None,
    ) -> None:
        super().__init__(world, times, policy, standbys=standbys)
        self._terms = terms or RerouteTerms()
        self._grid: Grid | None = None
        self._owner: dict[tuple[int, int], NodeId] = {}
        self._restarting: Entry | None = None

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        del zone
        self._nodes.append(node)
        if self._grid is None:
            if self._restarting is None:
                self._restart(0.0 if self._world.progress.steps == 0 else self._terms.restart_s)
        elif (hole := self._hole()) is not None:
            self._owner[hole] = node
            self._change(HAND_OVER, hole[0])
        elif self._pipelines() > self._grid.pipelines:
            self._restart(self._terms.restart_s)

    def lost(self, node: NodeId) -> None:
        self._nodes.remove(node)
        lost = [place for place, owner in self._owner.items() if owner == node]
        for place in lost:
            del self._owner[place]
        if self._grid is None or not lost:
            return
        idle = [n for n in self._nodes if n not in self._owner.values()]
        if idle:
            self._owner[lost[0]] = idle[0]
        if self._load() is None:
            self._world.happened(RESTORE)
            every = self._terms.checkpoint_every
            self._world.progress.back_to(self._world.progress.whole // every * every)
            self._restart(self._terms.restart_s)
        else:
            self._change(FAILOVER, lost[0][0])

    def _pipelines(self) -> int:
        """As many as there are nodes for."""
        return min(self._policy.pipelines, len(self._nodes) // self._policy.stages)

    def _hole(self) -> tuple[int, int] | None:
        assert self._grid is not None
        places = [(slot.pipeline, slot.stage) for slot in self._grid.slots()]
        holes = [place for place in places if place not in self._owner]
        count = Counter(stage for _, stage in self._owner)
        return min(holes, key=lambda place: (count[place[1]], place), default=None)

    def _load(self) -> int | None:
        """Pipelines' worth of nodes at the stage that has fewest; None: one has none."""
        assert self._grid is not None
        count = Counter(stage for _, stage in self._owner)
        least = min(count[stage] for stage in range(self._grid.stages))
        return least or None

    def _change(self, what: str, pipeline: int) -> None:
        self._world.happened(what)
        self._world.progress.delay(self._terms.pause_s, of=pipeline)
        self._set_pace()

    def _set_pace(self) -> None:
        least = self._load()
        assert self._grid is not None
        assert least is not None
        self._world.progress.run(self._times.with_peers_s(self._grid, least))
        self._world.note()

    def _restart(self, delay_s: float) -> None:
        self._world.kernel.cancel(self._restarting)
        self._restarting = None
        self._world.progress.stand()
        self._grid = None
        self._owner.clear()
        if len(self._nodes) < self._policy.stages:
            return
        self._restarting = self._world.kernel.after(delay_s, self._go_on)

    def _go_on(self) -> None:
        self._restarting = None
        pipelines = self._pipelines()
        if not pipelines:
            return
        self._grid = Grid(pipelines=pipelines, stages=self._policy.stages)
        places = [(slot.pipeline, slot.stage) for slot in self._grid.slots()]
        self._owner = dict(zip(places, self._nodes, strict=False))
        self._world.happened(RECONFIGURATION)
        self._set_pace()
