"""How a node reports what may end the run: a fault of its own, a stall, or a number not finite.

Rules. (1) A fault is reported once, as an event; the node begins no further step until the run
ends. (2) What the machine lacks (room, files, threads, an address) another machine may have, so
such a fault is this node's alone, and so is what its GPU or its memory does not manage. Everything
else, such as a user's layer that raises or data that differ between nodes, would happen to the same
work on any node; a kernel that refuses its input is part of it. Data that are damaged are this
node's alone until a second node meets the same damage. (3) A loss waits for its decision
while the store is away, and waiting for that is not a stall. A log that can be read but not written
counts as away, too. A log that comes and goes does not excuse a stall for ever: the times in which
it was available add up.
"""

import errno
import math
import re
import time
from collections.abc import Callable

import torch

from bamboo.core.events import FaultScope, NonFinite, RunFailed, Stalled
from bamboo.core.liveness.outage import AWAY_S, PIECES
from bamboo.core.state import Faults, Outcome
from bamboo.errors import DamagedData, NoDevice, StorageFull
from bamboo.ids import NodeId
from bamboo.runtime.node.diagnose import diagnose
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.messages import Mailbox
from bamboo.runtime.wire.outbox import Outbox
from bamboo.user_code.traces import line_of, user_lines

_OF_THE_MACHINE = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
        *(errno.EMFILE, errno.ENFILE, errno.EAGAIN),
        *(errno.EADDRINUSE, errno.EADDRNOTAVAIL),
    }
)
_NO_THREAD = "can't start new thread"
_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory")
_OF_THE_DEVICE = re.compile(
    r"\b(?:CUDA|cuDNN|cuBLAS|cuFFT|cuSOLVER|cuSPARSE|cuDSS|NCCL|NVML)"
    r"(?: driver| NVRTC| Frontend| unknown)? error\b|Triton Error \[CUDA\]"
    r"|No CUDA GPUs are available|no NVIDIA driver|CUDA driver initialization failed",
    re.IGNORECASE,
)
"""Texts of a RuntimeError, from torch's `ATen/cuda/Exceptions.h` and its libraries: it has no class
of its own for most of these, and that for errors of a GPU is younger than the oldest torch that we
take."""
_OF_THE_INPUT = "device-side assert triggered"
"""An index that is out of range, for example: on a CPU it is an IndexError."""
_ACCELERATOR_ERROR: type[RuntimeError] = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)
MEMORY_REMEDY = (
    'resume it with cluster.recompute = "layer", more cluster.stages, less cluster.redundancy, or '
    "instances with more memory; a run with a smaller train.microbatch has other bits"
)


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
        self._me = me
        self._executor = executor
        self._mailbox = mailbox
        self._outbox = outbox
        self._told = told
        self._busy = busy
        self._patience_s = patience_s
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


class LogWatch:
    """Tells whether the log was available for the whole time that a step may take. Updated by the
    thread that follows the log and by the one that reads the agent's answers; asked by the
    trainer."""

    def __init__(self, step_timeout_s: float) -> None:
        self._step_timeout_s = step_timeout_s
        self._answered_s = self._back_s = -math.inf
        self._refuses = False
        self._there_s = 0.0
        """How long the log was available in all."""
        self._excused: tuple[str, float] | None = None
        """Where the node stood when an outage first excused it, and `_there_s` at that time."""

    def answered(self) -> None:
        """Note that the store answers; called often."""
        now_s = time.monotonic()
        if now_s - self._answered_s > AWAY_S:
            self._back_s = now_s
        elif not self._refuses:
            self._there_s += now_s - self._answered_s
        self._answered_s = now_s

    def taken(self, taken: bool) -> None:
        """Note whether the store takes what this node writes; called often."""
        if taken and self._refuses:
            self._back_s = time.monotonic()
        self._refuses = not taken

    def away(self) -> bool:
        """Whether the store does not answer at present, or refuses what is written."""
        return self._refuses or time.monotonic() - self._answered_s > AWAY_S

    def excuses(self, where: str) -> bool:
        """Whether a node that has stood at `where` for the time that a step may take may still wait
        for a decision, because not every decision of that time has reached it. At one place this
        holds until the log was available for PIECES times as long in all."""
        if not self.away() and time.monotonic() - self._back_s > self._step_timeout_s:
            self._excused = None
            return False
        if self._excused is None or self._excused[0] != where:
            self._excused = (where, self._there_s)
        return self._there_s - self._excused[1] < PIECES * self._step_timeout_s


def scope_of(
    error: BaseException, before: Callable[[], Faults | None] = lambda: None
) -> FaultScope:
    """The scope of an error, by itself or by the error that caused it. `before` gives the faults of
    the run so far."""
    found: BaseException | None = error
    while found is not None:
        if _is_of_the_device(found):
            return FaultScope.DEVICE
        if isinstance(found, DamagedData):
            known = before()
            seen_by_another = known is not None and str(found) in known.reason
            return FaultScope.RUN if seen_by_another else FaultScope.NODE
        if isinstance(found, StorageFull | NoDevice) or _is_of_the_machine(found):
            return FaultScope.NODE
        found = found.__cause__
    return FaultScope.RUN


def _is_of_the_machine(error: BaseException) -> bool:
    if getattr(error, "errno", None) in _OF_THE_MACHINE:  # an OSError, or an error of ZeroMQ
        return True
    return isinstance(error, RuntimeError) and _NO_THREAD in str(error)


def _is_of_the_device(error: BaseException) -> bool:
    if _lacks_memory(error):
        return True
    if not isinstance(error, RuntimeError) or _OF_THE_INPUT in str(error):
        return False
    return isinstance(error, _ACCELERATOR_ERROR) or bool(_OF_THE_DEVICE.search(str(error)))


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and bool(_MEMORY.search(str(error)))


def reason_of(error: BaseException, *, run: str, node: str) -> str:
    """The error, where in the user's own code it arose, and the command that shows the rest."""
    own = user_lines(error)
    where = f" at {' <- '.join(reversed(own))}" if own else ""
    remedy = f"; {MEMORY_REMEDY}" if _lacks_memory(error) else ""
    return f"{line_of(error)}{where}{remedy}; `bamboo logs {run} --node {node}` has the traceback"
