"""After a gradient that is not finite: where in the model it first shows.

Each owner sends its outputs of the step again to the next stage, under indices of their own; each
stage runs its layers once more on finite inputs and looks at every output.
"""

import time
from collections.abc import Callable

import torch

from bamboo.models import run_layers
from bamboo.ports import MessageKey
from bamboo.runtime.mail import Mail
from bamboo.runtime.slot_run import SlotRun

COPY = 1 << 20
"""Added to the microbatch's index: these copies are other letters than the first ones."""
DEADLINE_S = 10.0
POLL_S = 0.05


def send_inputs(mail: Mail, run: SlotRun) -> None:
    """Give the next stage the inputs of the present step once more."""
    if run.stage.is_last:
        return
    to = run.plan.grid.protected(run.slot)
    for local in range(len(run.microbatches)):
        sent = MessageKey(kind="act", to=to, source=run.slot, step=run.step, index=local)
        letter = mail.kept(sent)
        if letter is not None:
            again = MessageKey(
                kind="act", to=to, source=run.slot, step=run.step, index=COPY + local
            )
            mail.post_to(mail.assignment.owner(to), again, letter.tensors)


def diagnose(mail: Mail, run: SlotRun, interrupted: Callable[[], bool]) -> tuple[int, str] | None:
    """(global layer, what) of the first value that is not finite, if it arises in this stage.

    None when it arises elsewhere, when the inputs did not come within the deadline, or when
    `interrupted` says that somebody else has found it.
    """
    for local, microbatch in enumerate(run.microbatches):
        if run.stage.is_first:
            x = run.stage.input_of(run.step, microbatch)
        else:
            deadline_s = time.monotonic() + DEADLINE_S
            while not mail.has(run.slot, "act", run.step, COPY + local):
                if interrupted() or time.monotonic() > deadline_s:
                    return None
                mail.collect(POLL_S)
            x = mail.take(run.slot, "act", run.step, COPY + local).tensors[0]
        found = _first_layer(run, x, microbatch)
        if found is not None:
            layer, what = found
            return (layer, f"{what} of microbatch {microbatch}") if layer >= 0 else None
    return _first_gradient(run)


@torch.no_grad()
def _first_layer(run: SlotRun, x: torch.Tensor, microbatch: int) -> tuple[int, str] | None:
    """(layer, what); layer -1 when the input is not finite already."""
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        return -1, "input"
    for layer in run.stage.layers:
        x = run_layers([layer], x, seed=run.stage.seed, step=run.step, microbatch=microbatch)
        if not bool(torch.isfinite(x).all()):
            return layer[0], "output"
    if run.stage.is_last and not bool(torch.isfinite(run.stage.loss_of(x, run.step, microbatch))):
        return run.stage.layers[-1][0], "loss"
    return None


def _first_gradient(run: SlotRun) -> tuple[int, str] | None:
    """All outputs are finite, so a backward overflowed: name the last layer that shows it."""
    for name, gradient in reversed(list(zip(run.stage.names, run.exchange.gradient, strict=True))):
        if not bool(torch.isfinite(gradient).all()):
            layer, parameter = name.split(".", 1)
            return int(layer), f"gradient of {parameter}"
    return None
