"""The hot loop of a node: pick a ready operation, run it, send what it made.

Rules: no logging, no store, and no waiting except for the mailbox. Every slot that this node owns
or shadows is a `SlotRun`; a failover adds ready operations and changes nothing here. What goes
wrong is a value (`Interrupted`), and the loop can be entered again at any time.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from bamboo.ports import MessageKind
from bamboo.runtime.step.operations import Listener, Operations, act_key, sum_early
from bamboo.runtime.step.roster import Roster
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.messages import Mailbox
from bamboo.schedule.instruction import Instruction
from bamboo.schedule.picker import ReadyOp, next_op
from bamboo.topology.strategy import stage_modes

POLL_S = 0.05
CALM_POLL_S = 0.2
"""Used where only a message or a decision can change anything; each of them ends the wait."""
PLAIN_MODES = ("off", "peer", "stash")
"""Modes in which a shadow computes nothing ahead of need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Every owned slot has taken its last step, and at least one slot is owned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The loop was left at `cursor`; cause `attention`, `stalled`, or `non-finite` in `run`."""

    cursor: str
    cause: str
    run: SlotRun | None = None


Result: TypeAlias = Completed | Interrupted


class Executor(Roster):
    """Runs the slots that it owns and shadows until the last step is taken."""

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        operations: Operations,
        listener: Listener,
        redundancy: str,
        last_step: int,
        stall_s: float,
    ) -> None:
        super().__init__(mailbox=mailbox, last_step=last_step)
        self.operations = operations
        self._listener = listener
        self._redundancy = redundancy
        self._stall_s = stall_s
        self._gap_budget: Mapping[int, int] = {}
        self._gap_used: dict[int, int] = {}
        self._attention: Callable[[], bool] = lambda: False
        self._background: Callable[[], bool] = lambda: False
        self._settled: Callable[[], bool] = lambda: True
        self._moved_s = 0.0
        self._stood = ""

    def ask(
        self,
        *,
        attention: Callable[[], bool] | None = None,
        background: Callable[[], bool] | None = None,
        settled: Callable[[], bool] | None = None,
    ) -> None:
        """From now on ask these, none of which may block; None leaves one as it is. `attention`:
        whether the loop is to be left. `background`: serves other work between operations, and
        tells whether there is more. `settled`: whether all that must follow the last step has
        come."""
        self._attention = attention or self._attention
        self._background = background or self._background
        self._settled = settled or self._settled

    def fill_gaps(self, budget: Mapping[int, int]) -> None:
        """In mode `gap`, run so many redundant forwards in the wait at each owned cursor."""
        self._gap_budget = budget

    def run(self, *, linger: bool = False) -> Result:
        """Run until the last step is taken, somebody needs attention, or nothing moves. `linger`:
        the last step is taken already; serve the shadows until somebody needs attention."""
        if self.cursor != self._stood:  # else the loop was entered again and nothing has moved
            self._moved_s = time.monotonic()
        wait_s = 0.0
        while True:
            self.mailbox.collect(wait_s)
            wait_s = 0.0
            sum_early(self.operations.device, self.mailbox, self.owned.values())
            more = self._background()
            if self._attention():
                self._stood = self.cursor
                return Interrupted(cursor=self._stood, cause="attention")
            op = next_op(self._ready())
            # The one that comes first waits for room on the device; no other overtakes it.
            if op is not None and self.operations.device.accepts(op.instruction.kind):
                run = self._run_of(op)
                if not self.operations.perform(run, op.instruction):
                    return Interrupted(cursor=self.cursor, cause="non-finite", run=run)
                self._count_gap(op.instruction)
                self._moved_s = time.monotonic()
                continue
            if op is None and self.finished and not linger:
                return Completed()
            calm = not (self.stopping or linger or self.evaluated_here) and bool(self.owned)
            if not calm:
                self._moved_s = time.monotonic()
            elif time.monotonic() - self._moved_s > self._stall_s:
                self._stood = ""
                return Interrupted(cursor=self.cursor, cause="stalled")
            if op is None:  # what waits for the device goes on by itself
                self._listener.idle()
            wait_s = CALM_POLL_S if calm and not more else POLL_S

    @property
    def finished(self) -> bool:
        return self.through and self._settled()

    # ------------------------------------------------------------------ what is ready

    def _ready(self) -> list[ReadyOp]:
        ready = []
        for slot, run in self.owned.items():
            if self.evaluates(run):
                ready += self.ready_evaluation(run)
                continue
            head = run.head
            if (not self.frozen or head.kind in ("X", "S")) and self._can(run, head):
                ready.append(ReadyOp(slot, run.step, head, run.recovering))
        for slot, run in self.shadowed.items():
            if not self.waits(run) and (ahead := self._ready_ahead(run)) is not None:
                ready.append(ReadyOp(slot, run.step, ahead))
        return ready

    def _can(self, run: SlotRun, head: Instruction) -> bool:
        kind, local = head.kind, head.microbatch
        if kind == "X":
            return run.exchange.can_advance(self.mailbox)
        if kind == "S" and run.shipped:
            return not self.operations.shadows_first.waits(run)
        if kind == "S":
            return run.exchange.total_square_known(self.mailbox)
        assert local is not None, "F and B have a microbatch"
        if kind == "F":
            if run.cursor == 0 and not self.may_begin(run):
                return False
            return run.stage.is_first or local in run.pending or self._has(run, "act", local)
        return run.stage.is_last or local in run.backed or self._has(run, "grad", local)

    def _ready_ahead(self, run: SlotRun) -> Instruction | None:
        if self.mailbox.has(run.slot, "ship", run.step):
            return run.replica_step
        mode = stage_modes(self._redundancy, run.plan.grid.stages)[run.slot.stage]
        # With two slots of its own, a node has neither the time nor the memory to compute ahead.
        computes = mode not in PLAIN_MODES and len(self.owned) == 1
        if self.frozen or not computes or run.joining or run.step > self.last_step:
            return None
        back, local = len(run.backed), len(run.pending)
        graded = back < local and (run.stage.is_last or self._has(run, "grad", back))
        if mode == "full" and graded:
            return run.ahead_backward[back]
        if local == len(run.microbatches) or (mode == "gap" and not self._gap_fits()):
            return None
        if run.stage.is_first:
            # A second replica is in the memory that is counted for a takeover, and that is all.
            fed = len(self.shadowed) == 1 or run.plan.grid.protector(run.slot) in self.owned
        else:
            fed = self.mailbox.keeps(act_key(run, local))
        return run.ahead_forward[local] if fed else None

    def _gap_fits(self) -> bool:
        cursors = [run.cursor for run in self.owned.values()]
        used, budget = self._gap_used, self._gap_budget
        return len(cursors) == 1 and used.get(cursors[0], 0) < budget.get(cursors[0], 0)

    def _run_of(self, op: ReadyOp) -> SlotRun:
        ahead = op.instruction.kind in ("FR", "BR", "R")
        return self.shadowed[op.slot] if ahead else self.owned[op.slot]

    def _count_gap(self, instruction: Instruction) -> None:
        if instruction.kind == "S":
            self._gap_used.clear()
        elif instruction.kind == "FR" and self.owned:
            cursor = next(iter(self.owned.values())).cursor
            self._gap_used[cursor] = self._gap_used.get(cursor, 0) + 1

    def _has(self, run: SlotRun, kind: MessageKind, local: int) -> bool:
        return self.mailbox.has(run.slot, kind, run.step, local)
