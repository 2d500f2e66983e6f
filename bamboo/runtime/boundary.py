"""What a node gives away between two steps: all that it owns after a notice, a slot that moves.

Rule: nothing is given away before every slot's shadow stands at that boundary too. From then on
nobody can ask for what this node sent in the steps before, so whoever goes on needs nothing of it.
"""

from collections.abc import Iterable

from bamboo.core.events import HandedOver, Yielded
from bamboo.core.state import Move
from bamboo.ids import NodeId
from bamboo.runtime.executor import Executor
from bamboo.runtime.mail import Mail
from bamboo.runtime.outbox import Outbox
from bamboo.runtime.slot_run import SlotRun
from bamboo.topology.slots import Slot


class Boundaries:
    """Hand-overs and moves of one node. Belongs to the trainer's thread and never waits."""

    def __init__(self, *, me: NodeId, executor: Executor, mail: Mail, outbox: Outbox) -> None:
        self._me, self._executor, self._mail, self._outbox = me, executor, mail, outbox
        self.draining = False
        self._said_handover = False
        self._moves: tuple[Move, ...] = ()
        self._said: set[tuple[Slot, int]] = set()

    def drain(self) -> None:
        """Hand everything over at the next boundary."""
        self.draining = True

    def stay(self) -> None:
        """Take that back."""
        self.draining = self._said_handover = False

    def move(self, moves: Iterable[Move]) -> None:
        """These slots of this node are to change hands."""
        self._moves = tuple(move for move in moves if move.source == self._me)
        self._executor.yielding = {move.slot for move in self._moves}

    def serve(self) -> None:
        """Say what can be given away now, once."""
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
