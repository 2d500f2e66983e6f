"""A node's part in the prefetch for a new layout: an owner sends, and a future owner follows.

Rule: a feed that has arrived whole takes the steps that its source takes, and is reported once all
feeds of this node are here. It models `bamboo/runtime/state/prefetch.py`.
"""

from typing import TYPE_CHECKING

from bamboo.core.events import Prepared
from bamboo.core.next_layout import feeds_under_way
from bamboo.core.state import Prefetch, State
from testbed.swarm.copies import Copy

if TYPE_CHECKING:
    from testbed.swarm.member import Member

AGAIN_S = 0.2
"""Time after which a feed is sent again to a receiver that is absent or has not yet read of it."""


class NodePrefetch:
    """The feeds of one node."""

    def __init__(self, member: "Member") -> None:
        self._me = member
        self.copies: dict[Prefetch, Copy] = {}
        """Feeds that have arrived whole."""
        self.wanted: frozenset[Prefetch] = frozenset()
        """Feeds that this node receives and that are still wanted."""
        self._sending: frozenset[Prefetch] = frozenset()
        self._said: frozenset[Prefetch] = frozenset()

    def sync(self, state: State) -> None:
        """Start and end feeds as the newest state says."""
        me, feeds = self._me, feeds_under_way(state)
        sending = frozenset(feed for feed in feeds if feed.source == me.node)
        for feed in sorted(sending - self._sending, key=lambda f: (f.receiver, f.first)):
            me.world.agenda.after(me.world.transfer_s(), self._sent, feed)
        self._sending = sending
        self.wanted = frozenset(feed for feed in feeds if feed.receiver == me.node)
        if state.reconfiguration is None and not self.wanted.issuperset(self.copies):
            self.copies = {f: copy for f, copy in self.copies.items() if f in self.wanted}
            me.world.plane.changed()
        if state.preparing is None:
            self._said = self.wanted

    def _sent(self, feed: Prefetch) -> None:
        """The feed arrives at its receiver, in its state at a boundary, if both still want it."""
        me, world = self._me, self._me.world
        if not me.running or feed not in self._sending:
            return
        receiver, own = world.member(feed.receiver), me.owned.get(feed.slot)
        ready = receiver is not None and receiver.awake and not world.apart(me, receiver)
        if not ready or me.stopped or own is None:
            world.agenda.after(AGAIN_S, self._sent, feed)
            return
        assert receiver is not None
        if feed not in receiver.prefetch.wanted:
            world.agenda.after(AGAIN_S, self._sent, feed)
            return
        copy = Copy(feed.slot, feed.first, feed.stop, own.step, joining=True, born=own.step)
        receiver.prefetch.copies[feed] = copy
        world.plane.changed()

    def shipped(self) -> None:
        """This node stops; what it sent of the steps that it has taken still arrives."""
        for feed in self._sending:
            receiver, own = self._me.world.member(feed.receiver), self._me.owned.get(feed.slot)
            copy = None if receiver is None else receiver.prefetch.copies.get(feed)
            if copy is not None and own is not None:
                copy.step = max(copy.step, own.step)

    def serve(self) -> None:
        """Report once that all feeds are here."""
        wanted = self.wanted
        if not wanted or wanted == self._said or not wanted.issubset(self.copies):
            return
        self._said = wanted
        since = max(feed.since for feed in wanted)
        self._me.say(Prepared(node=self._me.node, since=since, bytes=1, followed_bytes=0))

    def stand_after(self, step: int) -> bool:
        """Whether all wanted feeds have taken this step."""
        return all(copy.step > step for feed, copy in self.copies.items() if feed in self.wanted)

    def take(self) -> list[Copy]:
        """Return and remove all feeds that are here."""
        copies, self.copies, self.wanted = list(self.copies.values()), {}, frozenset()
        return copies
