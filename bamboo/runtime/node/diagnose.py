"""Finds where in the model a value first is not finite, after a gradient that is not.

Outputs come first: every owner sends its outputs of the step to the next stage again, under indices
of their own, and each stage runs its layers again on finite inputs and checks every output.
Gradients are checked only when the outputs of all pipelines are finite: from the last stage down,
each stage checks its own and then lets the stage before go on, because an overflow spreads
downwards.
"""

import time
from collections.abc import Callable, Sequence

import torch

from bamboo.models import Tensors, run_layers
from bamboo.ports import MessageKey, MessageKind
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.messages import Mailbox
from bamboo.topology.slots import Slot

COPY = 1 << 20
"""Added to the microbatch's index, because these copies are other messages than the first ones."""
CLEAR = 1 << 21
"""Index of the message that lets another stage go on; the sender's pipeline is added."""
DEADLINE_S = 10.0
POLL_S = 0.05


def diagnose(
    mailbox: Mailbox, runs: Sequence[SlotRun], interrupted: Callable[[], bool]
) -> tuple[int, str] | None:
    """(global layer, what) of the first value that is not finite, if it arises in one of `runs`,
    which are all the slots that this node owns.

    None when it arises elsewhere, when the others' messages do not come within the deadline, or
    when `interrupted` says that another node has found it.
    """
    upwards = sorted(runs, key=lambda run: run.slot.stage)
    waiting = _Waiting(mailbox, interrupted)
    for run in upwards:
        _send_outputs(mailbox, run)
    for run in upwards:
        clear, found = _look_at_outputs(waiting, run)
        if not clear:
            return found
    for run in reversed(upwards):
        if not _gradients_count(waiting, run):
            return None
        found = _first_gradient(run)
        if found is not None:
            return found
        if not run.stage.is_first:
            _give_way(mailbox, run, run.plan.grid.protector(run.slot))
    return None


class _Waiting:
    """Waits for messages, each with a deadline."""

    def __init__(self, mailbox: Mailbox, interrupted: Callable[[], bool]) -> None:
        self.mailbox = mailbox
        self._interrupted = interrupted

    def come(self, run: SlotRun, kind: MessageKind, index: int) -> bool:
        """Whether the message came in time and no interruption came first."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not self.mailbox.has(run.slot, kind, run.step, index):
            if self._interrupted() or time.monotonic() > deadline_s:
                return False
            self.mailbox.collect(POLL_S)
        return True


def _send_outputs(mailbox: Mailbox, run: SlotRun) -> None:
    """Send the next stage its inputs of the present step again."""
    if run.stage.is_last:
        return
    to = run.plan.grid.protected(run.slot)
    for local in range(len(run.microbatches)):
        sent = MessageKey(kind="act", to=to, source=run.slot, step=run.step, index=local)
        message = mailbox.kept(sent)
        if message is not None:
            again = MessageKey(
                kind="act", to=to, source=run.slot, step=run.step, index=COPY + local
            )
            mailbox.post_to(mailbox.assignment.owner(to), again, message.tensors)


def _look_at_outputs(waiting: _Waiting, run: SlotRun) -> tuple[bool, tuple[int, str] | None]:
    """(whether all outputs of this stage are finite, where they first are not if that is here)."""
    for local, microbatch in enumerate(run.microbatches):
        if run.stage.is_first:
            x = run.stage.input_of(run.step, microbatch)
        elif waiting.come(run, "act", COPY + local):
            x = waiting.mailbox.take(run.slot, "act", run.step, COPY + local).tensors
        else:
            return False, None
        found = _first_layer(run, x, microbatch)
        if found is not None:
            layer, what = found
            return False, (layer, f"{what} of microbatch {microbatch}") if layer >= 0 else None
    return True, None


@torch.no_grad()
def _first_layer(run: SlotRun, x: Tensors, microbatch: int) -> tuple[int, str] | None:
    """(layer, what); layer -1 when the input is already not finite."""
    if not _finite(x):
        return -1, "input"
    for layer in run.stage.layers:
        x = run_layers(
            [layer],
            x,
            seed=run.stage.seed,
            step=run.step,
            microbatch=microbatch,
            precision=run.stage.precision,
        )
        if not _finite(x):
            return layer[0], "output"
    if run.stage.is_last and not bool(torch.isfinite(run.stage.loss_of(x, run.step, microbatch))):
        return run.stage.layers[-1][0], "loss"
    return None


def _finite(tensors: Tensors) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _gradients_count(waiting: _Waiting, run: SlotRun) -> bool:
    """Wait until no output anywhere, and no gradient of a later stage, can be the cause."""
    if not run.stage.is_last:
        return waiting.come(run, "grad", CLEAR + run.slot.pipeline)
    others = [slot for slot in run.plan.grid.column(run.slot.stage) if slot != run.slot]
    for other in others:
        _give_way(waiting.mailbox, run, other)
    return all(waiting.come(run, "grad", CLEAR + other.pipeline) for other in others)


def _give_way(mailbox: Mailbox, run: SlotRun, to: Slot) -> None:
    """Tell the owner of a slot that the values which it waits for are finite."""
    index = CLEAR + run.slot.pipeline
    key = MessageKey(kind="grad", to=to, source=run.slot, step=run.step, index=index)
    mailbox.post_to(mailbox.assignment.owner(to), key)


def _first_gradient(run: SlotRun) -> tuple[int, str] | None:
    """The last layer of this stage whose gradient is not finite, and what it is."""
    for name, gradient in reversed(list(zip(run.stage.names, run.exchange.gradient, strict=True))):
        if not bool(torch.isfinite(gradient).all()):
            layer, parameter = name.split(".", 1)
            return int(layer), f"gradient of {parameter}"
    return None
