"""Tells when state that notices leave without a home must be stored: see `core.saving`.

Rules. (1) No step is begun that would end too late, judged by how long the last ones took. The node
reports this once, between two steps. (2) A step that takes longer than that is not waited for. A
stop that is under way stores everything itself, and the node then reports only such a step. (3) All
times are the store's, as far as this node knows it: every decision was made at a time of the store,
a little before it was read here.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise

from bamboo.core.events import SaveDue
from bamboo.core.keep import MARGIN_S
from bamboo.core.saving import hold_by_s, is_awaited
from bamboo.core.state import Emergency, State
from bamboo.ids import NodeId
from bamboo.runtime.state.decision import Decided
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.outbox import Outbox
from bamboo.topology.slots import Slot

STEPS_SEEN = 3
"""The longest of these steps counts."""
DECISIONS_SEEN = 16
"""The clock is taken from the one of these decisions that was read soonest after it was made."""


class SaveWatch:
    """The watch of one node. Belongs to the trainer's thread and never waits."""

    def __init__(self, *, me: NodeId, executor: Executor, outbox: Outbox) -> None:
        self._me = me
        self._executor = executor
        self._outbox = outbox
        self.clock: Callable[[], float] = time.monotonic
        self.holding = False
        """Whether no step is begun because it would end too late."""
        self._by_s = math.inf
        """When all nodes must stand still."""
        self._due = False
        """Whether that time has nearly come and is fixed."""
        self._ahead_s: deque[float] = deque(maxlen=DECISIONS_SEEN)
        """By how much the store's clock was ahead of this one, at least."""
        self._emergency: Emergency | None = None
        self._training = False
        self._said: set[tuple[int, bool]] = set()
        self._ends_s: dict[Slot, deque[float]] = {}

    def read(self, decided: Decided) -> None:
        """Note a decision that was read."""
        self._ahead_s.append(decided.now_s - decided.read_s)
        state = decided.state
        emergency = None if _is_over(state, self._me) else state.emergency
        if emergency is None or self._emergency is None or self._emergency.since != emergency.since:
            self.holding = False
            self._due = False
            self._said.clear()
        self._emergency = emergency
        self._training = state.reconfiguration is None and state.stop_reason is None
        if not self._training:
            self.holding = False

    def stepped(self, run: SlotRun) -> None:
        """Note that a slot has taken a step."""
        if run.owner:
            self._ends_s.setdefault(run.slot, deque(maxlen=STEPS_SEEN + 1)).append(self.clock())

    def forget(self) -> None:
        """Forget the times of steps, because all nodes stop and the next step is not timed."""
        self._ends_s.clear()

    def left_s(self) -> float:
        """Seconds until all must stand still; infinite where they need not."""
        if self._emergency is None:
            return math.inf
        now_s = self.clock() + max(self._ahead_s)
        if not self._due:
            self._by_s = hold_by_s(self._emergency, now_s=now_s, step_s=self._step_s())
        return self._by_s - now_s

    def serve(self) -> None:
        """If it is due, begin no further step and report it."""
        if self._emergency is None:
            return
        now_s, step_s = self.clock() + max(self._ahead_s), self._step_s()
        left_s = self.left_s()
        waits = not self._due and is_awaited(self._emergency, now_s=now_s)
        self._due = self._due or (left_s < max(step_s, MARGIN_S) and not waits)
        if self._training and self._due and left_s < step_s:
            self.holding = True
            owned = self._executor.owned.values()
            if owned and not any(run.cursor for run in owned):
                self._say(self._emergency, at_once=False)
        if left_s <= 0:
            self._say(self._emergency, at_once=True)

    def _say(self, emergency: Emergency, *, at_once: bool) -> None:
        if (emergency.since, at_once) not in self._said:
            self._said.add((emergency.since, at_once))
            event = SaveDue(node=self._me, since=emergency.since, at_once=at_once)
            self._outbox.event(event)

    def _step_s(self) -> float:
        pairs = (pair for ends_s in self._ends_s.values() for pair in pairwise(ends_s))
        return max((end_s - begin_s for begin_s, end_s in pairs), default=0.0)


def _is_over(state: State, me: NodeId) -> bool:
    """Whether nothing need be reported: it was tried already, the final state is being written, or
    this node has stopped for it."""
    emergency, reconfiguration = state.emergency, state.reconfiguration
    if emergency is None or emergency.failed:
        return True
    if reconfiguration is None:
        return bool(state.finished)
    stopped = any(report.node == me for report in reconfiguration.reports)
    return reconfiguration.base is None and (stopped or not reconfiguration.planned)
