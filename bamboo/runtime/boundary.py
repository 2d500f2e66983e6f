"""What a node gives away between two steps: all that it owns after a notice, a slot that moves.

Rules. (1) Nothing is given away before every slot's shadow stands at that boundary too. From then
on nobody can ask for what this node sent in the steps before, so whoever goes on needs nothing of
it. (2) A slot whose taker lacks nothing but the step just taken stands still for a moment, so that
it changes hands at this boundary: else its owner, which has another slot as well, would be at the
next step already, and both would take all of it on one node.
"""

import time
from collections.abc import Callable, Collection, Iterable

from bamboo.core.events import HandedOver, Yielded
from bamboo.core.state import Move
from bamboo.ids import NodeId
from bamboo.runtime.executor import Executor
from bamboo.runtime.mail import Mail
from bamboo.runtime.outbox import Outbox
from bamboo.runtime.slot_run import SlotRun
from bamboo.topology.slots import Slot

WAITING_SHARE = 0.25
"""Of the time that the last step took: so long a slot waits for its taker. A step in which one node
owns two slots takes half as long again or more (`bamboo.schedule.hit_step`)."""


class Boundaries:
    """Hand-overs and moves of one node. Belongs to the trainer's thread and never waits."""

    def __init__(self, *, me: NodeId, executor: Executor, mail: Mail, outbox: Outbox) -> None:
        self._me, self._executor, self._mail, self._outbox = me, executor, mail, outbox
        self.clock: Callable[[], float] = time.monotonic
        self.draining = False
        self._said_handover = False
        self._moves: tuple[Move, ...] = ()
        self._said: set[tuple[Slot, int]] = set()
        self._stepped_s: dict[Slot, float] = {}
        """When each slot, as owner or as shadow, has taken its last step."""
        self._waiting_s: dict[Slot, float] = {}
        """Until when each slot stands still for its taker, at the longest."""
        self._waited: set[Slot] = set()
        """Slots that did so. Nobody waits twice: while the store is away no taker comes."""

    def drain(self) -> None:
        """Hand everything over at the next boundary."""
        self.draining = True

    def stay(self) -> None:
        """Take that back."""
        self.draining = self._said_handover = False

    def move(self, moves: Iterable[Move], awaited: Collection[Slot] = ()) -> None:
        """These slots of this node are to change hands; those `awaited` will be once their taker
        has all of them."""
        self._moves = tuple(move for move in moves if move.source == self._me)
        self._waiting_s = {s: until_s for s, until_s in self._waiting_s.items() if s in awaited}
        self._waited.intersection_update(awaited)
        self._stand_still()

    def stepped(self, run: SlotRun, *, awaited: bool) -> None:
        """A slot has taken a step. `awaited`: its taker lacks this step alone."""
        now_s = self.clock()
        took_s = now_s - self._stepped_s.get(run.slot, now_s)
        self._stepped_s[run.slot] = now_s
        if awaited and run.owner and run.slot not in self._waited:
            self._waited.add(run.slot)
            self._waiting_s[run.slot] = now_s + WAITING_SHARE * took_s
            self._stand_still()

    def _stand_still(self) -> None:
        self._executor.yielding = {move.slot for move in self._moves}.union(self._waiting_s)

    def serve(self) -> None:
        """Say what can be given away now, once; go on where nobody came."""
        if self._waiting_s:
            now_s = self.clock()
            self._waiting_s = {s: x for s, x in self._waiting_s.items() if x > now_s}
            self._stand_still()
        for move in self._moves:
            run = self._executor.owned.get(move.slot)
            said = (move.slot, move.since) in self._said
            if run is None or said or run.step > self._executor.last_step:
                continue
            if self._is_safe(run):
                self._said.add((move.slot, move.since))
                event = Yielded(node=self._me, slot=run.slot, since=move.since, step=run.step)
                self._outbox.event(event)
        if self.draining and not self._said_handover:
            owned = self._executor.owned.values()
            if all(map(self._is_safe, owned)):
                self._said_handover = True
                step = max((run.step for run in owned), default=self._mail.safe_step) - 1
                self._outbox.event(HandedOver(node=self._me, step=step))

    def _is_safe(self, run: SlotRun) -> bool:
        return run.cursor == 0 and self._mail.safe_step >= run.step
