"""Other ways to live on spot instances, in the same worlds and with the same step times.

Rule: these are models of ways, named as such, and not of products. Each is told the same and rents
on the same terms, lays its pipelines within zones where it can, and pays for the bytes between
them; what it needs beyond the work itself is a stated figure with a source.

    Oracle             every change of membership costs nothing: always the best grid for the same
                       nodes, or the least one on fewer nodes than it has slots
    CheckpointRestart  all stop at every change and go on from the newest checkpoint, in the best
                       grid for those who are there (Athlur et al., Varuna, EuroSys 2022)
    Rerouting          a lost node's microbatches go to the same stage of other pipelines (Gandhi et
                       al., ReCycle, SOSP 2024; Jang et al., Oobleck, SOSP 2023)
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bamboo.core.assignment import assign
from bamboo.core.place import layout_for, nodes_wanted
from bamboo.core.policy import Policy
from bamboo.core.state import Node, NodeStatus
from bamboo.errors import CoreMisuse
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.planner.step_time import StepTimes
from bamboo.planner.workload import Workload
from bamboo.sim.kernel import Entry
from bamboo.sim.world import FAILOVER, HAND_OVER, RECONFIGURATION, RESTORE, World
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares

Place = tuple[int, int]
"""Pipeline and stage."""


class _Spot:
    """What all of them have in common: nodes in the order in which they came, and a grid."""

    def __init__(self, world: World, times: StepTimes, policy: Policy, *, standbys: int) -> None:
        self._world, self._times, self._policy = world, times, policy
        self._standbys = standbys
        self._nodes: list[NodeId] = []
        self._zones: Mapping[NodeId, ZoneId] = {}
        """Of them; another mapping after each change, as whoever is given it may keep it."""
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

    def _came(self, node: NodeId, zone: ZoneId) -> None:
        self._nodes.append(node)
        self._zones = {**self._zones, node: zone}

    def _went(self, node: NodeId) -> None:
        self._nodes.remove(node)
        self._zones = {one: zone for one, zone in self._zones.items() if one != node}

    def _laid(self, grid: Grid) -> Assignment:
        """Whole pipelines within a zone where they can be; else in the order of zone and age."""
        return assign([_ready(node, self._zones[node]) for node in self._nodes], grid, "off")

    def _train(self, assignment: Assignment, shares: tuple[int, ...], step_s: float) -> None:
        """From now on, and each step sends what crosses zones."""
        self._world.crosses(self._times.crossing_bytes(assignment, shares, self._zones))
        self._world.progress.run(step_s)
        self._world.note()

    def _train_calm(self, layout: ModelLayout) -> Assignment:
        """A node for each slot of the layout."""
        assignment = self._laid(layout.grid)
        step_s = self._times.of(assignment, layout.shares, self._zones)
        self._train(assignment, layout.shares, step_s)
        return assignment

    def _stand(self) -> None:
        """What the steps until now sent was sent, also if some of them are done again."""
        self._world.crosses(0.0)
        self._world.progress.stand()

    def _best(self) -> ModelLayout | None:
        """For those who are there; None: they are too few for any grid."""
        if len(self._nodes) < self._least:
            return None
        return layout_for(len(self._nodes), self._policy)

    def _calm_s(self, layout: ModelLayout) -> float:
        return self._times.calm_s(layout.grid, layout.shares)


def _ready(node: NodeId, zone: ZoneId) -> Node:
    return Node(
        id=node,
        instance=InstanceId(node),
        zone=zone,
        endpoint="",
        pid=0,
        status=NodeStatus.READY,
    )


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
        self._came(node, zone)
        self._set_pace()

    def lost(self, node: NodeId) -> None:
        self._went(node)
        self._set_pace()

    def _set_pace(self) -> None:
        best = self._best()
        if best is not None:
            self._train_calm(best)
        elif self._nodes:
            self._train_merged()
        else:
            self._stand()
            self._world.note()

    def _train_merged(self) -> None:
        """Too few nodes for any grid: each takes neighbouring slots of the least one."""
        grid = self._least_grid
        nodes = sorted(self._nodes, key=lambda node: (self._zones[node], node))
        owners = [nodes[i * len(nodes) // grid.size] for i in range(grid.size)]
        merged = Assignment(grid=grid, owners=tuple(owners), shadows=(None,) * grid.size)
        shares = equal_shares(self._policy.virtual_nodes, grid.pipelines)
        self._train(merged, shares, self._times.of(merged, shares, self._zones))


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
        self._came(node, zone)
        if self._layout is None and self._restarting is None:
            self._restart(first=self._world.progress.steps == 0)
        elif self._look_at is None:
            self._look_at = self._world.kernel.after(self._terms.settle_s, self._grow)

    def lost(self, node: NodeId) -> None:
        self._went(node)
        if node in self._members:
            self._stand()
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
            self._stand()
            self._world.progress.back_to(self._world.progress.whole)
            self._restart()

    def _restart(self, *, first: bool = False) -> None:
        """Begin anew, as often as one of those who are gathered is lost on the way."""
        self._world.kernel.cancel(self._restarting)
        self._restarting = None
        self._stand()
        best = self._best()
        self._layout, self._members = None, frozenset()
        if best is not None:
            self._members = self._laid(best.grid).members()
            delay_s = 0.0 if first else self._terms.restart_s
            self._restarting = self._world.kernel.after(delay_s, self._go_on)

    def _go_on(self) -> None:
        """With those who have come meanwhile, too."""
        self._restarting = None
        best = self._best()
        assert best is not None, "a loss on the way begins anew"
        self._world.happened(RECONFIGURATION)
        self._layout, self._members = best, self._train_calm(best).members()
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
        work: Workload,
        terms: RerouteTerms | None = None,
    ) -> None:
        super().__init__(world, times, policy, standbys=standbys)
        self._terms = terms or RerouteTerms()
        self._work = work
        self._grid: Grid | None = None
        self._owner: dict[Place, NodeId] = {}
        self._restarting: Entry | None = None

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        self._came(node, zone)
        if self._grid is None:
            if self._restarting is None:
                self._restart(0.0 if self._world.progress.steps == 0 else self._terms.restart_s)
        elif (hole := self._hole()) is not None:
            self._fill(hole, node)
            self._change(HAND_OVER, hole[0])
        elif self._pipelines() > self._grid.pipelines:
            self._restart(self._terms.restart_s)

    def lost(self, node: NodeId) -> None:
        self._went(node)
        lost = [place for place, owner in self._owner.items() if owner == node]
        for place in lost:
            del self._owner[place]
        if self._grid is None or not lost:
            return
        idle = [n for n in self._nodes if n not in self._owner.values()]
        if idle:
            self._fill(lost[0], idle[0])
        if self._load() is None:
            self._stand()
            self._world.happened(RESTORE)
            every = self._terms.checkpoint_every
            self._world.progress.back_to(self._world.progress.whole // every * every)
            self._restart(self._terms.restart_s)
        else:
            self._change(FAILOVER, lost[0][0])

    def _fill(self, place: Place, node: NodeId) -> None:
        """A node takes a place, and is sent its state by a peer in its own zone where there is
        one."""
        stage, cut = place[1], self._policy.cut_for(self._policy.stages)
        peers = {self._zones[owner] for (_, of), owner in self._owner.items() if of == stage}
        if peers and self._zones[node] not in peers:
            self._world.sends(self._work.state_bytes(range(cut[stage], cut[stage + 1])))
        self._owner[place] = node

    def _pipelines(self) -> int:
        """As many as there are nodes for."""
        return min(self._policy.pipelines, len(self._nodes) // self._policy.stages)

    def _hole(self) -> Place | None:
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
        shares = equal_shares(self._policy.virtual_nodes, self._grid.pipelines)
        self._train(self._rerouted(), shares, self._times.with_peers_s(self._grid, least))

    def _rerouted(self) -> Assignment:
        """Who does the work of each slot, for what crosses zones: a hole's microbatches go to a
        peer in the zone that they come from, where there is one."""
        grid = self._grid
        assert grid is not None
        owners: list[NodeId] = []
        for slot in grid.slots():
            place = (slot.pipeline, slot.stage)
            before = owners[-1] if slot.stage else None
            owners.append(self._owner.get(place) or self._peer(slot.stage, before))
        return Assignment(grid=grid, owners=tuple(owners), shadows=(None,) * grid.size)

    def _peer(self, stage: int, before: NodeId | None) -> NodeId:
        peers = [owner for (_, of), owner in self._owner.items() if of == stage]
        near = None if before is None else self._zones[before]
        return min(peers, key=lambda node: (self._zones[node] != near, node))

    def _restart(self, delay_s: float) -> None:
        self._world.kernel.cancel(self._restarting)
        self._restarting = None
        self._stand()
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
        self._owner = dict(zip(places, self._laid(self._grid).owners, strict=True))
        self._world.happened(RECONFIGURATION)
        self._set_pace()
