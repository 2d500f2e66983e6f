"""What a node gives away between two steps: all that it owns after a notice, a slot that moves.

Rules. (1) Nothing is given away before every slot's shadow stands at that boundary too. From then
on nobody can ask for what this node sent in the steps before, so whoever goes on needs nothing of
it. (2) A slot whose taker lacks nothing but the step just taken stands still for a moment, so that
it changes hands at this boundary: else its owner, which has another slot as well, would be at the
next step already, and take all of that one for two.
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
"""Of a step: so long a slot waits for its taker, or a little longer, for the loop may be at another
slot's operation. With one node for two of four equal stages a step takes 1.5 to 1.6 times as long
(by dry run)."""
STEPS_SEEN = 2
"""The shorter one counts: a step that a loss hits is no measure."""


class Boundaries:
    """Hand-overs and moves of one node. Belongs to the trainer's thread and never waits."""

    def __init__(self, *, me: NodeId, executor: Executor, mailbox: Mailbox, outbox: Outbox) -> None:
        self._me, self._executor, self._mailbox, self._outbox = me, executor, mailbox, outbox
        self.clock: Callable[[], float] = time.monotonic
        self.save_watch = SaveWatch(me=me, executor=executor, outbox=outbox)
        self.draining = False
        self._said_handover = False
        self._moves: tuple[Move, ...] = ()
        self._said: set[tuple[Slot, int]] = set()
        self._ends_s: dict[Slot, deque[float]] = {}
        """When each slot, as owner or as shadow, has taken its last steps."""
        self._waiting_s: dict[Slot, float] = {}
        """Until when each slot stands still for its taker, at the longest."""
        self._waited: set[Slot] = set()
        """Slots that did so. Nobody waits twice: while the store is away no taker comes."""

    @property
    def holding(self) -> bool:
        """Whether no step is begun here."""
        return self.draining or self.save_watch.holding

    def drain(self) -> None:
        """Hand everything over at the next boundary."""
        self.draining = True

    def stay(self) -> None:
        """Take that back."""
        self.draining = self._said_handover = False

    def forget(self) -> None:
        """All stop, and slots may mean something else from now on."""
        self.stay()
        self.move((), ())
        self._ends_s.clear()
        self.save_watch.forget()

    def move(self, moves: Iterable[Move], awaited: Collection[Slot]) -> None:
        """These slots of this node are to change hands. `awaited`: those that will, and whose
        taker lacks a step at most."""
        self._moves = tuple(move for move in moves if move.source == self._me)
        self._waiting_s = {s: until_s for s, until_s in self._waiting_s.items() if s in awaited}
        self._waited.intersection_update(awaited)
        self._stand_still()

    def stepped(self, run: SlotRun, awaited: Collection[Slot]) -> None:
        """A slot has taken a step."""
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
        self._executor.yielding = {move.slot for move in self._moves}.union(self._waiting_s)

    def serve(self) -> None:
        """Say what can be given away now, once; go on where nobody came."""
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
