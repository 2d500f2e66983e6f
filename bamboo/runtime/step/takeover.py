"""What slots send each other when one of them has a new owner.

Rule: a victim may have been lost before it sent its messages. Whatever it would still have been
asked for is in the others' stashes, or follows from the last whole step that its shadow has seen:
the gradient norm and the sums of tied parameters for its pipeline, the whole reduced gradient for
the same stage of other pipelines.
"""

from collections.abc import Mapping

from bamboo.ids import NodeId
from bamboo.ports import MessageKey
from bamboo.runtime.step.exchange import TOTAL, tie_index
from bamboo.runtime.step.rows import packed
from bamboo.runtime.step.slot_run import Reduced, SlotRun
from bamboo.runtime.wire.messages import Mailbox
from bamboo.topology.slots import Slot


def resend(mailbox: Mailbox, owned: Mapping[Slot, SlotRun], slot: Slot) -> None:
    """Send the new owner of `slot` all that is kept for it, and what was reduced since."""
    mailbox.resend(slot)
    for own, run in owned.items():
        if own == slot:
            continue
        for step, done in run.history.items():
            _send_norm(mailbox, own, slot, step, done)
            if own.pipeline == slot.pipeline:
                _send_totals(mailbox, run, slot, step, done)
            elif own.stage == slot.stage:
                _send_reduced(mailbox, run, slot, step, done)


def tell_what_was_reduced(mailbox: Mailbox, run: SlotRun) -> None:
    """Send the others, as the new owner, what the victim may have left unsent."""
    grid = run.plan.grid
    for step, done in run.history.items():
        for slot in grid.slots():
            if slot != run.slot:
                _send_norm(mailbox, run.slot, slot, step, done)
        for slot in grid.pipeline(run.slot.pipeline):
            if slot != run.slot:
                _send_totals(mailbox, run, slot, step, done)
        for slot in grid.column(run.slot.stage):
            if slot != run.slot:
                _send_reduced(mailbox, run, slot, step, done)


def declare_safe(
    mailbox: Mailbox, me: NodeId, owned: Mapping[Slot, SlotRun], shadowed: Mapping[Slot, SlotRun]
) -> None:
    """Acknowledge again what is safe by this node, because a participant may be new."""
    for slot, run in owned.items():
        if mailbox.assignment.shadow(slot) is None and not mailbox.guarded(slot):
            mailbox.declare_safe(slot, run.step)
    for slot, run in shadowed.items():
        if mailbox.assignment.shadow(slot) == me:
            mailbox.declare_safe(slot, run.step)


def _send_norm(mailbox: Mailbox, source: Slot, to: Slot, step: int, done: Reduced) -> None:
    key = MessageKey(kind="norm", to=to, source=source, step=step)
    owner = mailbox.assignment.owner(to)
    mailbox.post_to(owner, key, (), {"total_square": done.total_square})


def _send_totals(mailbox: Mailbox, run: SlotRun, to: Slot, step: int, done: Reduced) -> None:
    """A stage that shares a tied parameter may wait for a use that no node computes any more."""
    for tie in run.plan.ties:
        if tie.number in done.tied and to.stage in tie.stages:
            index = tie_index(tie, TOTAL)
            key = MessageKey(kind="tie", to=to, source=run.slot, step=step, index=index)
            mailbox.post_to(mailbox.assignment.owner(to), key, [done.tied[tie.number]])


def _send_reduced(mailbox: Mailbox, run: SlotRun, to: Slot, step: int, done: Reduced) -> None:
    key = MessageKey(kind="reduced", to=to, source=run.slot, step=step)
    owner = mailbox.assignment.owner(to)
    tensors, how = packed(done.gradient, run.plan.widths)
    mailbox.post_to(owner, key, tensors, how | done.losses.meta())
