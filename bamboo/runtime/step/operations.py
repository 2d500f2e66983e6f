"""What each kind of operation does: compute on the device, move the cursor, send the results.

Rule: an operation runs only when the executor has found its inputs, and never waits. It returns
False when it meets a gradient that is not finite, and has then changed nothing.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, get_args

from torch import Tensor

from bamboo.models import Gradients, Tensors
from bamboo.ports import MessageKey
from bamboo.runtime.device.devices import Device
from bamboo.runtime.device.on_host import compute_in_parts
from bamboo.runtime.optim.optimizer import Optimizer
from bamboo.runtime.optim.state import OptimizerState
from bamboo.runtime.step.losses import Losses
from bamboo.runtime.step.norm import clip_factor
from bamboo.runtime.step.shipping import gradient_shipped, shipped
from bamboo.runtime.step.slot_run import Reduced, SlotRun
from bamboo.runtime.wire.messages import Mailbox, Message
from bamboo.schedule.instruction import Instruction, Kind
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

    def evaluated(self, run: SlotRun, sums: Losses) -> None:
        """The evaluation before the step of `run` is done: what all pipelines measured."""

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


def act_meta(output: Tensors) -> dict[str, Any]:
    """What the message with an output says beside its tensors: which of them require a gradient,
    unless it is all floating ones, as in most models."""
    if all(t.requires_grad == t.is_floating_point() for t in output):
        return {}
    return {"trained": [place for place, t in enumerate(output) if t.requires_grad]}


def output_in(message: Message) -> Tensors:
    """The output that a message carries, with what `act_meta` says of it."""
    trained = message.meta.get("trained")
    return tuple(
        t.detach().requires_grad_(t.is_floating_point() if trained is None else place in trained)
        for place, t in enumerate(message.tensors)
    )


def gradient_message(gradients: Gradients) -> tuple[list[Tensor], dict[str, Any]]:
    """The tensors and the meta of the message with the gradients of an output: one that there is
    not takes no bytes, and then the places of the others are named."""
    sent = {place: gradient for place, gradient in enumerate(gradients) if gradient is not None}
    return [*sent.values()], {} if len(sent) == len(gradients) else {"of": [*sent]}


def gradients_in(message: Message, output: Tensors) -> Gradients:
    """The gradients that a message carries, one for each tensor of `output`."""
    places = range(len(output))
    came = dict(zip(message.meta.get("of", places), message.tensors, strict=True))
    return tuple(came.get(place) for place in places)


def sum_early(device: Device, mailbox: Mailbox, owned: Iterable[SlotRun]) -> None:
    """Go on with buckets that have left before their slot's backward is done. They lie in the
    host's memory, which a device that computes by itself does not need; where gradients lie on the
    device, its queue is in the way, and they wait for the exchange's own operation."""
    for run in owned:
        if run.plan.cuts and device.place.type == "cpu" and run.exchange.can_sum_early(mailbox):
            run.exchange.sum_early(mailbox)


def _adopted(run: SlotRun, instruction: Instruction) -> bool:
    """Whether the operation was begun before, or was computed when this owner was the
    shadow."""
    local = instruction.microbatch
    if instruction.kind == "S":
        return run.shipped
    if instruction.kind == "F":
        return local in run.pending
    return instruction.kind == "B" and local in run.backed


class Operations:
    """The dispatch table of the executor, with what the operations need."""

    def __init__(
        self,
        *,
        mailbox: Mailbox,
        device: Device,
        optimizer: Optimizer,
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
        self.counts: dict[str, int] = dict.fromkeys(get_args(Kind), 0)
        self._table: dict[str, Callable[[SlotRun, Instruction], bool]] = {
            "F": self._forward,
            "B": self._backward,
            "X": self._exchange,
            "S": self._step,
            "FR": self._forward_ahead,
            "BR": self._backward_ahead,
            "R": self.step_replica,
            "E": self._evaluate,
            "V": self._tell_evaluation,
        }

    def perform(self, run: SlotRun, instruction: Instruction) -> bool:
        """Run one ready operation of `run`; False when a gradient is not finite."""
        recovery = run.recovery
        if recovery is not None and not recovery.first_operation_s:
            self._listener.first_operation(run)
        if not _adopted(run, instruction):
            self.counts[instruction.kind] += 1
        return self._table[instruction.kind](run, instruction)

    def _input(self, run: SlotRun, local: int) -> Tensors:
        if run.stage.is_first:
            return run.stage.input_of(run.step, run.microbatches[local])
        return output_in(self._mailbox.take(run.slot, "act", run.step, local))

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
            self._mailbox.post(key, pending.output, act_meta(pending.output))
        return True

    def _gradients(self, run: SlotRun, local: int) -> Gradients | None:
        if run.stage.is_last:
            return None
        message = self._mailbox.take(run.slot, "grad", run.step, local)
        return gradients_in(message, run.pending[local].output)

    def _backward(self, run: SlotRun, op: Instruction) -> bool:
        local = op.microbatch
        assert local is not None
        self._listener.at("backward", run, local)
        out = run.backed[local] if local in run.backed else self._run_parts(run, local, op.stage)
        del run.pending[local]
        run.cursor += 1
        if not run.stage.is_first:
            to = run.plan.grid.protector(run.slot)
            key = MessageKey(kind="grad", to=to, source=run.slot, step=run.step, index=local)
            modes = stage_modes(self._redundancy, run.plan.grid.stages)
            tensors, meta = gradient_message(out)
            self._mailbox.post(key, tensors, meta, also_shadow=modes[to.stage] == "full")
        return True

    def _run_parts(self, run: SlotRun, local: int, stage: int) -> Gradients:
        """The backward itself. On return nothing holds its graph any more."""
        out: Gradients = ()
        for layers, run_part in run.backward_parts(local, self._gradients(run, local)):
            out = self.device.run("B", stage, run_part, layers)
            run.exchange.send_early(self._mailbox)
        return out

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
            tensors, how = shipped(run.exchange)
            meta = how | {"total_square": total} | losses.meta()
            more = self._listener.more_to_ship(run)
            self._mailbox.ship(run.slot, run.step, tensors, meta, more=more)
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
        if run.kept.on_host != on_host:  # its role has changed, or it was just built
            run.kept = run.kept.moved(self.device, on_host=on_host)
        stage, trained = run.stage, len(run.stage.params)
        self._take(stage.params, gradient[:trained], run.kept, step=run.step, clip_factor=factor)
        stage.untrained.step(gradient[trained:], run.batch.total)

    def _take(
        self,
        params: Sequence[Tensor],
        gradient: Sequence[Tensor],
        kept: OptimizerState,
        **at: Any,
    ) -> None:
        """Take a step of the optimizer, wherever its state is kept."""
        if not kept.on_host:
            self._optimizer.step(params, gradient, kept, **at)
            return
        names = list(kept.tensors)

        def step(part: list[int], there: list[dict[str, Tensor]]) -> None:
            own = [params[i] for i in part], [gradient[i] for i in part]
            tensors = dict(zip((names[i] for i in part), there, strict=True))
            self._optimizer.step(*own, OptimizerState(tensors=tensors), **at)

        compute_in_parts(self.device, list(kept.tensors.values()), step)

    def follow(
        self,
        params: Sequence[Tensor],
        kept: OptimizerState,
        gradient: Sequence[Tensor],
        *,
        stage: int,
        step: int,
        total_square: float,
        statistics: Callable[[], None],
    ) -> None:
        """Take a step of layers that this node follows; they belong to a slot of this stage.
        `statistics` moves the running statistics of their batch norms. Where `kept` lies on the
        host it has other tensors afterwards."""
        factor = clip_factor([total_square], self._clip_norm)

        def take() -> None:
            self._take(params, gradient, kept, step=step, clip_factor=factor)
            statistics()

        self.device.run("R", stage, take)

    # ------------------------------------------------------------------ evaluations

    def _evaluate(self, run: SlotRun, op: Instruction) -> bool:
        local, evaluation = op.microbatch, run.evaluating
        assert local is not None
        self._listener.at("evaluation", run, local)
        index, data = evaluation.microbatches[local], evaluation.plan.data
        if run.stage.is_first:
            x = data.inputs(index)
        else:
            sent = self._mailbox.take(run.slot, "eval", run.step, local).tensors
            x = tuple(t.detach() for t in sent)  # nothing differentiates them

        def work() -> Tensors:
            y = run.stage.evaluate(x, index)
            if run.stage.is_last:
                evaluation.measured(local, *run.stage.measure(y, data.targets(index)))
            return y

        y = self.device.run("E", op.stage, work)
        evaluation.cursor += 1
        if not run.stage.is_last:
            self._mailbox.post(evaluation.output_key(run.step, local), y)
        return True

    def _tell_evaluation(self, run: SlotRun, op: Instruction) -> bool:
        evaluation = run.evaluating
        sums = self.device.run("V", op.stage, evaluation.sums)
        evaluation.cursor += 1
        if run.slot.pipeline:
            self._mailbox.post(evaluation.sums_key(run.step), (), sums.meta())
            return True
        for pipeline in evaluation.others():
            sums.take(self._mailbox.take(run.slot, "sums", run.step, pipeline).meta)
        self._listener.evaluated(run, sums)
        return True

    # ------------------------------------------------------------------ the shadow's operations

    def _forward_ahead(self, run: SlotRun, op: Instruction) -> bool:
        local = op.microbatch
        assert local is not None
        if run.stage.is_first:
            x = self._input(run, local)
        else:
            kept = self._mailbox.kept(act_key(run, local))
            assert kept is not None, "the stash had it when the operation was found ready"
            x = output_in(kept)
        self.device.run("FR", op.stage, lambda: run.forward(local, x))
        return True

    def _backward_ahead(self, run: SlotRun, op: Instruction) -> bool:
        local = op.microbatch
        assert local is not None
        gradients = self._gradients(run, local)
        for layers, run_part in run.backward_parts(local, gradients):
            run.backed[local] = self.device.run("BR", op.stage, run_part, layers)
        return True

    def step_replica(self, run: SlotRun, op: Instruction) -> bool:
        message = self._mailbox.take(run.slot, "ship", run.step)
        total = float(message.meta["total_square"])
        losses = Losses(message.meta)
        run.stage.drop_gradients()
        factor = clip_factor([total], self._clip_norm)

        def work() -> None:
            run.exchange.gradient = gradient_shipped(run.plan, message, self.device.place)
            self._update(run, run.exchange.gradient, factor)

        self.device.run("R", op.stage, work)
        done = run.reduced(total, losses, keep=run.plan.grid.pipelines > 1)
        run.next_step()
        self._listener.stepped(run, done, factor)
        return True
