"""How a node reports what may end the run: a fault of its own, a stall, or a number not finite.

Rule: a fault is reported once, as an event; the node begins no further step until the run ends.
"""

import time
from collections.abc import Callable

from bamboo.core.events import NonFinite, RunFailed, Stalled
from bamboo.core.state import Outcome
from bamboo.ids import NodeId
from bamboo.runtime.node.diagnose import diagnose
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.messages import Mailbox
from bamboo.runtime.wire.outbox import Outbox


class FaultReports:
    """The faults of one node. `told` is called for each one; `busy` says whether a decision
    waits."""

    def __init__(
        self,
        *,
        me: NodeId,
        executor: Executor,
        mailbox: Mailbox,
        outbox: Outbox,
        told: Callable[[], None],
        busy: Callable[[], bool],
        patience_s: float,
    ) -> None:
        self._me, self._executor, self._mailbox, self._outbox = me, executor, mailbox, outbox
        self._told, self._busy, self._patience_s = told, busy, patience_s
        self.faulted = False
        self._not_finite: tuple[int, float] | None = None
        """A step whose gradient is not finite, and until when (monotonic) to look for the layer."""

    def fail(self, reason: str) -> None:
        """End the run for this reason."""
        self._outbox.event(RunFailed(reporter=str(self._me), outcome=Outcome.FAULT, reason=reason))
        self.faulted = True
        self._told()

    def stalled(self, reason: str, *, era: int) -> None:
        """Report that nothing comes any more; the decision about it concerns all nodes."""
        step = self._executor.begun_step
        self._outbox.event(Stalled(node=self._me, era=era, step=step, reason=reason))

    def report_non_finite(self, run: SlotRun) -> None:
        """Report where the value arises if that is here; otherwise the node that has it does."""
        self.faulted = True
        self._told()
        owned = self._executor.owned.values()
        reduced = [own for own in owned if own.step == run.step and own.exchanged]
        found = diagnose(self._mailbox, reduced, self._busy)
        if found is not None:
            layer, what = found
            self._outbox.event(NonFinite(node=self._me, step=run.step, layer=layer, what=what))
        # A decision may have interrupted the search, or a lost node's part of it may be missing.
        self._not_finite = (run.step, time.monotonic() + self._patience_s)

    def idle(self) -> None:
        """Report that no node has found where it arises, once the time is up."""
        if self._not_finite is not None and time.monotonic() > self._not_finite[1]:
            step, self._not_finite = self._not_finite[0], None
            self.fail(f"step {step}: a gradient is not finite, and no node found where")
