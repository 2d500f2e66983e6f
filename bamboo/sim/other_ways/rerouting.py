"""A way to use spot instances without replicas: a lost node's microbatches go to the same stage of
other pipelines (Gandhi et al., ReCycle, SOSP 2024; Jang et al., Oobleck, SOSP 2023).

Rule: as in `bamboo.sim.other_ways.rivals`.
"""

from collections import Counter
from dataclasses import dataclass

from bamboo.core.state import Policy
from bamboo.ids import NodeId, ZoneId
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.kernel import Entry
from bamboo.sim.other_ways.rivals import Spot
from bamboo.sim.world import FAILOVER, HAND_OVER, RECONFIGURATION, RESTORE, World
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares

Place = tuple[int, int]
"""Pipeline and stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerouteTerms:
    """The costs of a change of membership. The default lies within the 2 to 10 s that are published
    for Oobleck."""

    pause_s: float = 5.0
    restart_s: float = 42.0
    """Time of a restart, when no pipeline has some stage any more, or the grid changes: as
    `RestartTerms`, with the load."""
    checkpoint_every: int = 10


class Rerouting(Spot):
    """Without replicas: the microbatches of a lost node go to its peers, and a new node fills a
    hole. A stage that no node has any more is restored from a checkpoint."""

    def __init__(
        self,
        world: World,
        times: StepTimes,
        policy: Policy,
        *,
        standbys: int,
        work: WorkloadFigures,
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
            every, whole = self._terms.checkpoint_every, self._world.progress.whole
            self._world.progress.back_to(whole // every * every if every else 0)
            self._restart(self._terms.restart_s)
        else:
            self._change(FAILOVER, lost[0][0])

    def _fill(self, place: Place, node: NodeId) -> None:
        """A node takes a place and receives its state from a peer, in its own zone if there is
        one."""
        stage, cut = place[1], self._policy.cut_for(self._policy.stages)
        peers = {self._zones[owner] for (_, of), owner in self._owner.items() if of == stage}
        if peers and self._zones[node] not in peers:
            self._world.sends(self._work.state_bytes(range(cut[stage], cut[stage + 1])))
        self._owner[place] = node

    def _pipelines(self) -> int:
        """As many as the nodes fill."""
        return min(self._policy.pipelines, len(self._nodes) // self._policy.stages)

    def _hole(self) -> Place | None:
        assert self._grid is not None
        places = [(slot.pipeline, slot.stage) for slot in self._grid.slots()]
        holes = [place for place in places if place not in self._owner]
        count = Counter(stage for _, stage in self._owner)
        return min(holes, key=lambda place: (count[place[1]], place), default=None)

    def _load(self) -> int | None:
        """The number of nodes of the stage with the fewest; None: some stage has none."""
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
        """The node that does the work of each slot, for the bytes between zones. A hole's
        microbatches go to a peer in the zone that they come from, if there is one."""
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
