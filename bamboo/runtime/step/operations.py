"""What each kind of operation does: compute on the device, move the cursor, send the results.

Rule: an operation runs only when the executor has found its inputs, and never waits. It returns
False when it meets a gradient that is not finite, and has then changed nothing.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from bamboo.ports import MessageKey
from bamboo.runtime.device.devices import Device
from bamboo.runtime.device.on_host import compute_in_parts
from bamboo.runtime.step.optimizer import AdamW, Moments, clip_factor
from bamboo.runtime.step.slot_run import Reduced, SlotRun
from bamboo.runtime.wire.messages import Mailbox
from bamboo.schedule.instruction import Instruction
from bamboo.topology.strategy import stage_modes


class Listener(Protocol):
    """What the loop reports to the trainer; no method may block."""

    def stepped(self, run: SlotRun, done: Reduced, factor: float) -> None:
        """`run` has taken a step (its `step` is the next one by now)."""

    def first_operation(self, run: SlotRun) -> None:
        """A promoted slot is about to run its first operation."""

    def at(self, phase: str, run: SlotRun, microbatch: int) -> None:
        """`run` reaches a phase in which a job may list a preemption."""

    def more_to_ship(self, run: SlotRun) -> bool:
        """Whether another slot of this node and pipeline is still in the step of `run`."""

    def idle(self) -> None:
        """Nothing is ready; the loop is about to wait."""


class ShadowsFirst:
    """Once all nodes are to stop for a new layout, an owner takes a step only after every shadow
    has, so whichever node is lost in such a step, there is a step that every slot still has.

    After a loss nobody computes. If owners took the step as soon as they can, a slot that only its
    owner still has could be a step ahead of a slot that only its shadow has, because what the lost
    owner sent was lost with it. So owners ship their gradients first, and the owner of a slot with
    a shadow then waits. Until all shadows have stepped, every owner stands before the step, and the
    shadow of the lost node's slot stands there too or has its gradient. From then on every shadow
    is beyond the step, and an owner that is not has its gradient and the norm.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._wanted = False

    def begin(self) -> None:
        """Wait from now on: from the question which step is begun, since that step may be the last
        one already."""
        self._wanted = True

    def end(self) -> None:
        """Wait no more."""
        self._wanted = False

    def waits(self, run: SlotRun) -> bool:
        """Whether the owner may ship its gradient but not take the step yet."""
        if not self._wanted or self._mailbox.assignment.shadow(run.slot) is None:
            return False
        return self._mailbox.safe_step <= run.step


def act_key(run: SlotRun, local: int) -> MessageKey:
    """The key of the message that carries the input of a local microbatch to the run's slot."""
    before = run.plan.grid.protector(run.slot)
    return MessageKey(kind="act", to=run.slot, source=before, step=run.step, index=local)


class Operations:
    """The dispatch table of the executor, with what the operations need."""

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        device: Device,
        optimizer: AdamW,
        listener: Listener,
        redundancy: str,
        clip_norm: float,
    ) -> None:
        self._mailbox = mailbox
        self.device = device
        self._optimizer = optimizer
        self._listener = listener
        self._redundancy = redundancy
        self._clip_norm = clip_norm
        self.shadows_first = ShadowsFirst(mailbox)
        self.counts: dict[str, int] = dict.fromkeys(("F", "B", "FR", "BR", "X", "S", "R"), 0)
        self._table: dict[str, Callable[[SlotRun, Instruction], bool]] = {
            "F": self._forward,
            "B": self._backward,
            "X": self._exchange,
            "S": self._step,
            "FR": self._forward_ahead,
            "BR": self._backward_ahead,
            "R": self.step_replica,
        }

    def perform(self, run: SlotRun, instruction: Instruction) -> bool:
        """Run one ready operation of `run`; False when a gradient is not finite."""
        recovery = run.recovery
        if recovery is not None and not recovery.first_operation_s:
            self._listener.first_operation(run)
        if not self._adopted(run, instruction):
            self.counts[instruction.kind] += 1
        return self._table[instruction.kind](run, instruction)

    def _input(self, run: SlotRun, local: int) -> Tensor:
        if run.stage.is_first:
            return run.stage.input_of(run.step, run.microbatches[local])
        return self._mailbox.take(run.slot, "act", run.step, local).tensors[0]

    @staticmethod
    def _adopted(run: SlotRun, instruction: Instruction) -> bool:
        """Whether the operation was begun before, or was computed when this owner was the
        shadow."""
        local = instruction.microbatch
        if instruction.kind == "S":
            return run.shipped
        if instruction.kind == "F":
            return local in run.pending
        return instruction.kind == "B" and local in run.backed

    def _forward(self, run: SlotRun, op: Instruction) -> bool:
        local = op.microbatch
        assert local is not None
        self._listener.at("forward", run, local)
        pending = run.pending.get(local)
        if pending is None:
            x = self._input(run, local)
            pending = self.device.run("F", op.stage, lambda: run.forward(local, x))
            if run.recovery is not None and not run.recovery.planned:
                run.recovery.recomputed += 1
        run.cursor += 1
        if not run.stage.is_last:
            to = run.plan.grid.protected(run.slot)
            key = MessageKey(kind="act", to=to, source=run.slot, step=run.step, index=local)
            self._mailbox.post(key, [pending.output])
        return True

    def _gradient(self, run: SlotRun, local: int) -> Tensor | None:
        if run.stage.is_last:
            return None
        return self._mailbox.take(run.slot, "grad", run.step, local).tensors[0]

    def _backward(self, run: SlotRun, op: Instruction) -> bool:
        local = op.microbatch
        assert local is not None
        self._listener.at("backward", run, local)
        if local in run.backed:
            out = run.backed[local]
        else:
            gradient = self._gradient(run, local)
            out = self.device.run("B", op.stage, lambda: run.backward(local, gradient))
        del run.pending[local]
        run.cursor += 1
        if not run.stage.is_first:
            assert out is not None, "a later stage has a gradient for the one before"
            to = run.plan.grid.protector(run.slot)
            key = MessageKey(kind="grad", to=to, source=run.slot, step=run.step, index=local)
            modes = stage_modes(self._redundancy, run.plan.grid.stages)
            self._mailbox.post(key, [out], also_shadow=modes[to.stage] == "full")
        return True

    def _exchange(self, run: SlotRun, op: Instruction) -> bool:
        run.settle_losses()
        self.device.run("X", op.stage, lambda: run.exchange.advance(self._mailbox))
        self._listener.at("exchange", run, 0)
        if run.exchanged:
            run.cursor += 1
        return True

    def _step(self, run: SlotRun, op: Instruction) -> bool:
        if not run.shipped:
            total = run.exchange.total_square(self._mailbox)
            if not math.isfinite(total):
                return False
            losses = run.exchange.losses
            run.reduced(total, losses, keep=run.plan.grid.pipelines > 1)
            meta = {"total_square": total, "losses": [[m, x] for m, x in losses.items()]}
            more = self._listener.more_to_ship(run)
            self._mailbox.ship(run.slot, run.step, run.exchange.gradient, meta, more=more)
            run.shipped = True
            self._listener.at("ship", run, 0)
            if self.shadows_first.waits(run):
                return True  # the executor tries again
        done = run.history[run.step]
        factor = clip_factor([done.total_square], self._clip_norm)
        self.device.run("S", op.stage, lambda: self._update(run, run.exchange.gradient, factor))
        self._listener.at("step", run, 0)
        run.next_step()
        self._listener.stepped(run, done, factor)
        return True

    def _update(self, run: SlotRun, gradient: list[Tensor], factor: float) -> None:
        on_host = run.replica_on_host and (run.beside or not run.owner)
        if run.moments.on_host != on_host:  # its role has changed, or it was just built
            run.moments = run.moments.moved(self.device, on_host=on_host)
        self._take(run.stage.params, gradient, run.moments, step=run.step, clip_factor=factor)

    def _take(
        self,
        params: Sequence[Tensor],
        gradient: Sequence[Tensor],
        moments: Moments,
        **at: Any,
    ) -> None:
        """Take a step as `AdamW.step` does, wherever the moments are kept."""
        if not moments.on_host:
            self._optimizer.step(params, gradient, moments, **at)
            return

        def step(part: list[int], there: list[list[Tensor]]) -> None:
            own = [params[i] for i in part], [gradient[i] for i in part]
            first, second = there
            self._optimizer.step(*own, Moments(exp_avg=first, exp_avg_sq=second), **at)

        compute_in_parts(self.device, (moments.exp_avg, moments.exp_avg_sq), step)

    def follow(
        self,
        params: Sequence[Tensor],
        moments: Moments,
        gradient: Sequence[Tensor],
        *,
        stage: int,
        step: int,
        total_square: float,
    ) -> None:
        """Take a step of layers that this node follows; they belong to a slot of this stage.
        Moments on the host are other tensors in the lists of `moments` afterwards."""
        factor = clip_factor([total_square], self._clip_norm)
        self.device.run(
            "R",
            stage,
            lambda: self._take(params, gradient, moments, step=step, clip_factor=factor),
        )

    # ------------------------------------------------------------------ the shadow's operations

    def _forward_ahead(self, run: SlotRun, op: Instruction) -> bool:
        local = op.microbatch
        assert local is not None
        if run.stage.is_first:
            x = self._input(run, local)
        else:
            kept = self._mailbox.kept(act_key(run, local))
            assert kept is not None, "the stash had it when the operation was found ready"
            x = kept.tensors[0]
        self.device.run("FR", op.stage, lambda: run.forward(local, x))
        return True

    def _backward_ahead(self, run: SlotRun, op: Instruction) -> bool:
        local = op.microbatch
        assert local is not None
        gradient = self._gradient(run, local)
        run.backed[local] = self.device.run("BR", op.stage, lambda: run.backward(local, gradient))
        return True

    def step_replica(self, run: SlotRun, op: Instruction) -> bool:
        message = self._mailbox.take(run.slot, "ship", run.step)
        total = float(message.meta["total_square"])
        losses = {int(m): float(x) for m, x in message.meta["losses"]}
        run.exchange.gradient = list(message.tensors)
        done = run.reduced(total, losses, keep=run.plan.grid.pipelines > 1)
        for parameter in run.stage.params:
            parameter.grad = None
        factor = clip_factor([total], self._clip_norm)
        self.device.run("R", op.stage, lambda: self._update(run, list(message.tensors), factor))
        run.next_step()
        self._listener.stepped(run, done, factor)
        return True
