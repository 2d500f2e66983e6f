"""What a node gives away between two steps: after a notice all that it owns, or a slot that moves.

Rules. (1) Nothing is given away before every slot's shadow stands at that boundary too. From then
on no slot can ask for what this node sent in the steps before, so its successor needs nothing of
that. (2) A slot whose next owner lacks only the step just taken stands still for a moment, so that
it changes hands at this boundary. Otherwise its owner, which has another slot as well, would be at
the next step already and compute that whole step for both slots.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import pairwise

from bamboo.core.events import HandedOver, Yielded
from bamboo.core.state import Move
from bamboo.ids import NodeId
from bamboo.runtime.state.save_watch import SaveWatch
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.messages import Mailbox
from bamboo.runtime.wire.outbox import Outbox
from bamboo.topology.slots import Slot

WAITING_SHARE = 0.25
"""The share of a step for which a slot waits for its next owner; it may wait a little longer,
because the loop may be running another slot's operation. With one node for two of four equal stages
a step takes 1.5 to 1.6 times as long (by dry run)."""
STEPS_SEEN = 2
"""The shorter of these counts: a step that a loss interrupts is no measure."""


class Boundaries:
    """Hand-overs and moves of one node. Belongs to the trainer's thread and never waits."""

    def __init__(self, *, me: NodeId, executor: Executor, mailbox: Mailbox, outbox: Outbox) -> None:
        self._me = me
        self._executor = executor
        self._mailbox = mailbox
        self._outbox = outbox
        self.clock: Callable[[], float] = time.monotonic
        self.save_watch = SaveWatch(me=me, executor=executor, outbox=outbox)
        self.draining = False
        self._said_handover = False
        self._moves: tuple[Move, ...] = ()
        self._said: set[tuple[Slot, int]] = set()
        self._ends_s: dict[Slot, deque[float]] = {}
        """When each slot, as owner or as shadow, has taken its last steps."""
        self._waiting_s: dict[Slot, float] = {}
        """Until when each slot stands still for its next owner, at the longest."""
        self._waited: set[Slot] = set()
        """Slots that have waited. None waits twice: no next owner comes while the store is away."""

    @property
    def holding(self) -> bool:
        """Whether this node begins no step."""
        return self.draining or self.save_watch.holding

    def drain(self) -> None:
        """Hand everything over at the next boundary."""
        self.draining = True

    def stay(self) -> None:
        """Cancel the hand-over."""
        self.draining = self._said_handover = False

    def forget(self) -> None:
        """Drop everything: all nodes stop, and slots may mean something else from now on."""
        self.stay()
        self.move((), ())
        self._ends_s.clear()
        self.save_watch.forget()

    def move(self, moves: Iterable[Move], awaited: Collection[Slot]) -> None:
        """Set the moves under way, of which only this node's count. `awaited`: slots of this node
        that will change hands and whose next owner lacks at most one step."""
        self._moves = tuple(move for move in moves if move.source == self._me)
        self._waiting_s = {s: until_s for s, until_s in self._waiting_s.items() if s in awaited}
        self._waited.intersection_update(awaited)
        self._stand_still()

    def stepped(self, run: SlotRun, awaited: Collection[Slot]) -> None:
        """Note that a slot has taken a step."""
        self.save_watch.stepped(run)
        ends_s = self._ends_s.setdefault(run.slot, deque(maxlen=STEPS_SEEN + 1))
        ends_s.append(self.clock())
        known = len(ends_s) > STEPS_SEEN
        if known and run.owner and run.slot in awaited and run.slot not in self._waited:
            step_s = min(end_s - begin_s for begin_s, end_s in pairwise(ends_s))
            self._waited.add(run.slot)
            self._waiting_s[run.slot] = ends_s[-1] + WAITING_SHARE * step_s
            self._stand_still()

    def _stand_still(self) -> None:
        self._executor.stand_still({move.slot for move in self._moves}.union(self._waiting_s))

    def serve(self) -> None:
        """Report once what can be given away now; end the waits that were in vain."""
        self.save_watch.serve()
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
                step = max((run.step for run in owned), default=self._mailbox.safe_step) - 1
                self._outbox.event(HandedOver(node=self._me, step=step))

    def _is_safe(self, run: SlotRun) -> bool:
        return run.cursor == 0 and self._mailbox.safe_step >= run.step
