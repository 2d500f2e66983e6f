"""The slots that a node owns and shadows, and how far they may go.

Rule: only these methods change what is here, so a reader finds every reason for which a slot comes,
changes its role, goes, or stands still.
"""

from collections.abc import Iterable

from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.messages import Mailbox
from bamboo.schedule.picker import ReadyOp
from bamboo.topology.slots import Slot


class Roster:
    """Runs by slot, and the limits of their steps. Belongs to the trainer's thread."""

    def __init__(self, *, mailbox: Mailbox, last_step: int) -> None:
        self.mailbox = mailbox
        self.last_step = last_step
        self.owned: dict[Slot, SlotRun] = {}
        self.shadowed: dict[Slot, SlotRun] = {}
        self.hold = False
        """No slot begins a step."""
        self.frozen = False
        """Only exchanges and steps run, of what is computed already; no forward or backward."""
        self.boundary: int | None = None
        """The last step that may be begun; None: any."""
        self.promised: int | None = None
        """The first step of which nothing is done before a decision on it is read; None: any."""
        self.evaluated = 0
        """The step before which the newest evaluation that was decided on took place."""
        self._whole = last_step
        """The last step of the job, whatever was agreed on since."""
        self.yielding: frozenset[Slot] = frozenset()
        """Owned slots that begin no step because they change hands, or may do so."""

    # ------------------------------------------------------------------ slots

    def adopt(self, run: SlotRun) -> None:
        """Run this slot from now on, in the role that the run has; it replaces what ran it."""
        self.release(run.slot)
        (self.owned if run.owner else self.shadowed)[run.slot] = run

    def release(self, slot: Slot) -> SlotRun | None:
        """Stop running this slot; returns its run, or None where there is none."""
        owned, shadowed = self.owned.pop(slot, None), self.shadowed.pop(slot, None)
        return owned or shadowed

    def release_all(self) -> tuple[SlotRun, ...]:
        """Stop running every slot; returns their runs, those of owned slots first."""
        runs = (*self.owned.values(), *self.shadowed.values())
        self.owned = {}
        self.shadowed = {}
        return runs

    # ------------------------------------------------------------------ limits

    def hold_steps(self, hold: bool) -> None:
        """Begin no step while `hold`; what is begun goes on."""
        self.hold = hold

    def end_after(self, step: int) -> None:
        """Make this the last step of the run."""
        self.last_step = step

    def stop_after(self, step: int) -> None:
        """Begin no step beyond this one."""
        self.boundary = step

    def wait_before(self, step: int | None) -> None:
        """Do nothing of this step or a later one; None: of any step all may be done."""
        self.promised = step

    def freeze(self) -> None:
        """Compute no forward or backward; take the steps that need none."""
        self.boundary = None
        self.frozen = True

    def go_on(self) -> None:
        """Lift `stop_after` and `freeze`."""
        self.boundary = None
        self.frozen = False

    def stand_still(self, slots: Iterable[Slot]) -> None:
        """Let these owned slots, and no others, begin no step."""
        self.yielding = frozenset(slots)

    def may_begin(self, run: SlotRun) -> bool:
        """Whether the run may begin its step, at most one step beyond the step that is safe."""
        # Once one slot here has begun a step, all do: a slot that was taken over catches up with
        # the others, and a later stage may wait for what an earlier one has yet to send.
        held = (self.hold and run.step > self.begun_step) or run.slot in self.yielding
        held = held or self.waits(run)
        last = self.last_step if self.boundary is None else min(self.last_step, self.boundary)
        return not held and run.step <= last and run.step - 1 <= self.mailbox.safe_step

    def waits(self, run: SlotRun) -> bool:
        """Whether the run is in a step of which nothing may be done yet."""
        return self.promised is not None and run.step >= self.promised

    # ------------------------------------------------------------------ evaluations

    def note_evaluated(self, step: int) -> None:
        """The evaluation before this step was decided on, so the step may begin."""
        self.evaluated = max(self.evaluated, step)

    def evaluates(self, run: SlotRun) -> bool:
        """Whether the run's step begins only after an evaluation that has yet to be decided on. No
        such step is left where all have agreed to stop earlier."""
        evaluation, step = run.evaluation, run.step
        left = step <= self.last_step or self.last_step == self._whole
        due = evaluation is not None and evaluation.plan.is_before(step)
        return due and step > self.evaluated and left

    def ready_evaluation(self, run: SlotRun) -> list[ReadyOp]:
        """The next operation of that evaluation, if it can run, under the limits of a step; but a
        slot that is to change hands goes on, for after the last step it never does."""
        beyond = self.boundary is not None and run.step > self.boundary
        held = self.hold or self.frozen or beyond
        head = run.evaluating.head
        if held or run.step - 1 > self.mailbox.safe_step or head is None:
            return []
        slot, step = run.slot, run.step
        fed = run.stage.is_first
        if head.microbatch is None:
            others = run.evaluating.others()
            fed = all(self.mailbox.has(slot, "sums", step, pipeline) for pipeline in others)
        elif not fed:
            fed = self.mailbox.has(slot, "eval", step, head.microbatch)
        return [ReadyOp(slot, step, head, run.recovering)] if fed else []

    @property
    def evaluated_here(self) -> bool:
        """Whether every owned slot is through with its forwards of an evaluation. Those of later
        stages may take much longer, and a slot that lacks an input finds out that none comes."""
        owned = self.owned.values()
        return bool(owned) and all(self.evaluates(x) and x.evaluating.through for x in owned)

    @property
    def through(self) -> bool:
        """Whether every owned slot, of which there is one, has taken its last step and is through
        with all evaluations."""
        owned = self.owned.values()
        done = all(run.step > self.last_step and not self.evaluates(run) for run in owned)
        return bool(owned) and done

    # ------------------------------------------------------------------ where they stand

    @property
    def stopping(self) -> bool:
        """Whether some or all slots stand still, or soon will."""
        waits = any(map(self.waits, self.owned.values()))
        limited = self.frozen or self.boundary is not None or self.yielding
        return bool(self.hold or limited or waits)

    @property
    def begun_step(self) -> int:
        """The last step that any owned slot has begun; -1 before the first."""
        return max((x.step if x.cursor else x.step - 1 for x in self.owned.values()), default=-1)

    @property
    def cursor(self) -> str:
        """Where each owned slot stands, for a person: `0.2 step 31 at 2B5`."""
        return ", ".join(f"{s} step {r.step} at {r.head}" for s, r in self.owned.items())
