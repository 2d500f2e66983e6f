"""A node's part in a reconfiguration: stop, report holdings, fetch what it lacks, continue.

Rule: a node reports only what its own account has. A layer comes only from a live node that has it.
It models `bamboo/runtime/node/reconfiguration.py`.
"""

from typing import TYPE_CHECKING

from bamboo.core.events import BoundaryReady, CheckpointDamaged, LayoutBuilt, Quiesced
from bamboo.core.rounds import holders
from bamboo.core.state import Reconfiguration, State
from bamboo.ids import NodeId
from testbed.swarm.copies import Kept

if TYPE_CHECKING:
    from testbed.swarm.member import Member

AGAIN_S = 0.3
"""Time after which a source that does not answer is asked again."""


class NodeReconfigurations:
    """The reconfigurations of one node."""

    def __init__(self, member: "Member") -> None:
        self._me = member
        self.kept = Kept()
        self.holding = self.frozen = False
        self.boundary: int | None = None
        self.since = -1
        self.building = -1
        self._stopping = False

    # ---------------------------------------------------------------- stopping

    def agree(self, since: int) -> None:
        """Begin no step, and report the last one begun."""
        self.since, self.holding = since, True
        step = self._me.begun_step()
        self._me.say(BoundaryReady(node=self._me.node, since=since, step=step))

    def stop_after(self, since: int, step: int) -> None:
        """Finish `step`, then stop."""
        self.since, self.holding, self._stopping = since, False, True
        self.boundary = step

    def stop(self, since: int) -> None:
        """Stop with what is here."""
        self.since, self.holding, self._stopping = since, False, True
        self.boundary, self.frozen = None, True

    def serve(self, safe_step: int) -> None:
        """Report the holdings once nothing changes any more."""
        if not self._stopping or not (self.frozen or self._at_boundary(safe_step)):
            return
        me = self._me
        self._stopping, self.frozen = False, True
        for owner, copies in ((True, me.owned), (False, me.shadowed)):
            for copy in copies.values():
                self.kept.take(copy, owner=owner, safe_step=me.world.plane.safe_step)
        me.prefetch.shipped()
        for copy in me.prefetch.take():
            self.kept.fetched |= {(copy.step, layer) for layer in range(copy.first, copy.stop)}
        me.owned.clear()
        me.shadowed.clear()
        me.world.plane.changed()
        event = Quiesced(
            node=me.node,
            since=self.since,
            holdings=self.kept.holdings(),
            norms=self.kept.known_norms(),
        )
        me.world.checkers.quiesced(me, self.since, self.kept)
        me.say(event)

    def _at_boundary(self, safe_step: int) -> bool:
        if self.boundary is None or not self._me.prefetch.stand_after(self.boundary):
            return False
        copies = [*self._me.owned.values(), *self._me.shadowed.values()]
        there = all(copy.step > self.boundary and not copy.begun for copy in copies)
        return there and (not copies or safe_step > self.boundary)

    # ---------------------------------------------------------------- the new layout

    def sync(self, state: State) -> None:
        """Start to build the decided layout, once."""
        reconfiguration = state.reconfiguration
        if reconfiguration is None:
            assignment = state.assignment
            out = assignment is None or self._me.node not in assignment.members()
            if out and (self.since >= 0 or self.building >= 0):
                self._clear()  # a node in the layout gets the effect to continue
            return
        if reconfiguration.base is None or self.building == reconfiguration.since:
            return
        self.building = reconfiguration.since
        if reconfiguration.total_square is not None:
            self.kept.reach_to(reconfiguration.base)
        if self._needed(state):
            self._me.world.agenda.after(
                self._me.world.build_s(), self._fetch, state, reconfiguration
            )

    def _needed(self, state: State) -> set[int]:
        assignment, me = state.assignment, self._me
        assert assignment is not None
        cut = me.world.cut(state)
        slots = (*assignment.owned_by(me.node), *assignment.shadowed_by(me.node))
        return {layer for s in slots for layer in range(cut[s.stage], cut[s.stage + 1])}

    def _fetch(self, state: State, reconfiguration: Reconfiguration) -> None:
        """Finish if all layers have arrived; ask again for those that have not."""
        me, base = self._me, reconfiguration.base
        assert base is not None
        if not me.running or self.building != reconfiguration.since:
            return
        if me.stopped:
            me.world.agenda.after(AGAIN_S, self._fetch, state, reconfiguration)
            return
        found = holders(reconfiguration)
        missing = self._needed(state) - self.kept.layers_at(base)
        stored = {layer for layer in missing if layer not in found}
        if stored and base > 0 and not me.world.vault.whole(base):
            why = "it is not what was written"
            me.say(CheckpointDamaged(node=me.node, step=base, reason=why))
            return
        self.kept.fetched |= {(base, layer) for layer in stored}
        for layer in missing - stored:
            if self._can_be_had(layer, base, found[layer], reconfiguration.since):
                self.kept.fetched.add((base, layer))
        if self._needed(state) - self.kept.layers_at(base):
            me.world.agenda.after(AGAIN_S, self._fetch, state, reconfiguration)
            return
        me.say(LayoutBuilt(node=me.node, since=reconfiguration.since, bytes=len(missing)))

    def _can_be_had(self, layer: int, base: int, sources: tuple[NodeId, ...], since: int) -> bool:
        """Whether the asked source can send it; other nodes find out if that source is lost."""
        world = self._me.world
        source = world.member(sources[(layer + self._me.read_salt) % len(sources)])
        if source is None or not source.awake or world.apart(self._me, source):
            return False
        theirs = source.reconfigurations
        return theirs.building == since and layer in theirs.kept.layers_at(base)

    def go_on(self, state: State, base: int) -> None:
        """Train in the new layout."""
        me = self._me
        me.world.checkers.goes_on(me, base, self._needed(state), self.kept)
        me.install(state, base)
        self._clear()

    def _clear(self) -> None:
        self.since = self.building = -1
        self.holding = self._stopping = self.frozen = False
        self.boundary = None
        self.kept.clear()
        self._me.world.plane.changed()
