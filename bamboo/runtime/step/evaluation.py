"""The evaluation of one slot before a step: forwards alone, and what the last stage measures.

    E0 E1 E2 ...   forwards of its own microbatches, with nothing kept for a backward
    V              the last stage sends its sums to that of pipeline 0, which has them all

Rule: it changes no state, and no step begins before the decision on it is in the log. So a
node that takes a slot over begins its evaluation again, from what the other nodes keep of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bamboo.ports import MessageKey
from bamboo.runtime.device.staging import EvalOnDevice
from bamboo.runtime.step.losses import Losses
from bamboo.schedule.instruction import Instruction
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.virtual_nodes import evaluated_by


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """What all evaluations of a run have in common."""

    every_steps: int
    total: int
    """Microbatches of one evaluation."""
    data: EvalOnDevice

    def is_before(self, step: int) -> bool:
        """Whether there is an evaluation before this step; one after the last step counts as before
        the step that would follow."""
        return step > 0 and step % self.every_steps == 0


class Evaluation:
    """What one slot has done of the evaluation before its step."""

    def __init__(
        self, plan: EvalPlan, slot: Slot, grid: Grid, *, block: range, virtual_nodes: int
    ) -> None:
        """`block`: the virtual nodes of the slot's pipeline."""
        self.plan = plan
        self.microbatches = evaluated_by(block, virtual_nodes, plan.total)
        """Global index by local index."""
        self._slot = slot
        self._grid = grid
        count, stage = range(len(self.microbatches)), slot.stage
        self.program = [Instruction(stage=stage, kind="E", microbatch=m) for m in count]
        if slot.stage == grid.stages - 1:
            self.program.append(Instruction(stage=stage, kind="V"))
        self.begin()

    def begin(self) -> None:
        """Nothing is done of the evaluation."""
        self.cursor = 0
        self._losses: dict[int, Tensor] = {}
        self._metrics: dict[int, Mapping[str, Tensor]] = {}

    @property
    def head(self) -> Instruction | None:
        """The operation that comes next; None once all of it is done here."""
        return self.program[self.cursor] if self.cursor < len(self.program) else None

    @property
    def through(self) -> bool:
        """Whether no forward is left to do here."""
        return self.head is None or self.head.microbatch is None

    def output_key(self, step: int, local: int) -> MessageKey:
        """The key of the message with the output of a local microbatch."""
        to = self._grid.protected(self._slot)
        return MessageKey(kind="eval", to=to, source=self._slot, step=step, index=local)

    def sums_key(self, step: int) -> MessageKey:
        """The key of the message with what this pipeline's last stage has measured."""
        to = Slot(pipeline=0, stage=self._slot.stage)
        index = self._slot.pipeline
        return MessageKey(kind="sums", to=to, source=self._slot, step=step, index=index)

    def others(self) -> range:
        """The pipelines whose sums this slot waits for."""
        return range(1, self._grid.pipelines if self._slot.pipeline == 0 else 1)

    def measured(self, local: int, loss: Tensor, metrics: Mapping[str, Tensor]) -> None:
        """Keep what the last stage measured of a microbatch, where the device has it."""
        self._losses[self.microbatches[local]] = loss
        self._metrics[self.microbatches[local]] = metrics

    def sums(self) -> Losses:
        """What was measured, read from the device."""
        return settled(self._losses, self._metrics)


def settled(losses: Mapping[int, Tensor], metrics: Mapping[int, Mapping[str, Tensor]]) -> Losses:
    """Losses and metrics of microbatches, read from the device at once, because a GPU is idle while
    a number is read."""
    if not losses:
        return Losses()
    pairs = [pair for one in metrics.values() for pair in one.values()]
    found = torch.stack(list(losses.values()))
    numbers = iter((torch.cat([found.double(), *pairs]) if pairs else found).tolist())
    out = Losses()
    out |= zip(losses, numbers)  # noqa: B905, the pairs come behind them
    for microbatch, names in metrics.items():
        out.metrics[microbatch] = {name: (next(numbers), next(numbers)) for name in names}
    return out
