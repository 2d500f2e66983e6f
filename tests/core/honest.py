"""Honest members of a run whose layout may change, for random histories: what each says when it is
asked, by an account of its own of what every node holds."""

from bamboo.core.events import (
    BoundaryReady,
    CaughtUp,
    Event,
    LayoutBuilt,
    NodeFinished,
    Quiesced,
    ReplicaJoined,
    StopReady,
    Yielded,
)
from bamboo.core.state import Holding, Norm, Phase, Policy, State
from bamboo.core.transition import live_members
from bamboo.ids import NodeId
from bamboo.topology.model_layout import ModelLayout, equal_shares
from tests.core.build import prepared_by

LAYERS = 12


class Honest:
    """`held[node][layer]` is the step before which a live node has the layer."""

    state: State
    policy: Policy
    step = 0
    """That the run is at: what its members hold is as it was before it."""
    held: dict[NodeId, dict[int, int]]
    fed: dict[NodeId, set[int]]
    """What was sent ahead, and lies elsewhere too."""

    def layout(self) -> ModelLayout:
        grid = self.state.grid
        return ModelLayout(
            grid=grid,
            cut=self.state.cut or self.policy.cut_for(grid.stages),
            shares=self.state.shares or equal_shares(4, grid.pipelines),
        )

    def wants(self, node: NodeId) -> set[int]:
        assignment, layout = self.state.assignment, self.layout()
        assert assignment is not None
        return {
            layer
            for slot in assignment.grid.slots()
            if node in (assignment.owner(slot), assignment.shadow(slot))
            for layer in layout.layers_of(slot)
        }

    def living(self) -> list[NodeId]:
        return [node.id for node in self.state.live_nodes()]

    def next_honest(self) -> Event | None:
        state = self.state
        if state.phase in (Phase.FINISHED, Phase.FORMING):
            return None
        if state.reconfiguration is not None:
            return self.next_of_reconfiguration()
        if state.stop_reason is not None and state.stop_at_step is None:
            left = [n.id for n in live_members(state) if n.id not in dict(state.stop_ready)]
            return StopReady(node=left[0], step=self.step)
        if state.failovers:
            failover = state.failovers[0]
            return CaughtUp(
                node=failover.successor,
                slot=failover.slot,
                step=self.step,
                recomputed=0,
                already_computed=0,
                pause_s=0.1,
            )
        if state.stop_at_step is not None and state.assignment is not None:
            left = [n for n in sorted(set(state.assignment.owners)) if n not in state.finished]
            return NodeFinished(node=left[0], step=state.stop_at_step)
        if state.transfers:
            item = state.transfers[0]
            for layer in self.layout().layers_of(item.slot):
                self.held.setdefault(item.receiver, {})[layer] = self.step
            return ReplicaJoined(
                node=item.source,
                slot=item.slot,
                receiver=item.receiver,
                since=item.since,
                step=self.step,
                bytes=12,
            )
        if state.preparing is not None:
            left = state.preparing.receivers.difference(dict(state.preparing.prepared))
            return prepared_by(state, min(left))
        if state.moves:
            move = state.moves[0]
            return Yielded(node=move.source, slot=move.slot, since=move.since, step=self.step)
        return None

    def next_of_reconfiguration(self) -> Event | None:
        state, reconfiguration = self.state, self.state.reconfiguration
        assert reconfiguration is not None
        live = [node for node in reconfiguration.asked if node in self.living()]
        if reconfiguration.base is not None:
            return self.build(reconfiguration.base)
        if reconfiguration.planned and reconfiguration.boundary is None:
            left = [node for node in live if node not in dict(reconfiguration.ready)]
            return BoundaryReady(node=left[0], since=reconfiguration.since, step=self.step)
        left = [n for n in live if n not in {report.node for report in reconfiguration.reports}]
        if not left:
            return None  # waiting for nodes
        if reconfiguration.planned:
            assert state.assignment is not None
            members = state.assignment.members()
            for node in members & self.held.keys():
                at = self.step + 1
                self.held[node] = {x: at for x, s in self.held[node].items() if s >= self.step}
            if not reconfiguration.reports:
                self.give_ahead()
        return self.quiesce(left[0], reconfiguration.since)

    def give_ahead(self) -> None:
        """What was sent ahead stands where its sources stand."""
        ahead = None if self.state.reconfiguration is None else self.state.reconfiguration.ahead
        for feed in () if ahead is None else ahead.feeds:
            if feed.receiver in self.living():
                self.fed.setdefault(feed.receiver, set()).update(feed.layers)
                self.held.setdefault(feed.receiver, {}).update(
                    dict.fromkeys(feed.layers, self.step + 1)
                )

    def quiesce(self, node: NodeId, since: int) -> Quiesced:
        held = self.held.get(node, {})
        holdings = tuple(
            Holding(first=layer, stop=layer + 1, step=step, reach=step)
            for layer, step in sorted(held.items())
        )
        norms = tuple(Norm(step=step - 1, total_square=1.0) for step in sorted({*held.values()}))
        return Quiesced(node=node, since=since, holdings=holdings, norms=norms)

    def build(self, base: int) -> LayoutBuilt:
        reconfiguration = self.state.reconfiguration
        assert reconfiguration is not None
        assert self.state.assignment is not None
        done = {one.node for one in reconfiguration.rebuilt}
        node = min(self.state.assignment.members().difference(done))
        self.held[node] = dict.fromkeys(self.wants(node), base)
        return LayoutBuilt(node=node, since=reconfiguration.since, bytes=0)
