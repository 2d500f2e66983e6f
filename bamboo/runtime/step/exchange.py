"""The reduction of one slot's gradient in one step, from virtual nodes to the optimizer's input.

    leaves of the virtual nodes -> buckets, each of which leaves once it is filled -> sums of the
    buckets over all pipelines (bucket_sums) -> whole gradient -> tied uses added in layer order ->
    squares to all slots

Rule: every addition follows the canonical tree or the layer order, so the sum does not depend on
which node held which virtual node. There is no collective: each arrow is a message between slots,
and a slot with a new owner can repeat all of it from the messages that the others keep. `advance`
never waits.
"""

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum

from torch import Tensor

from bamboo.ports import MessageKey, MessageKind
from bamboo.runtime.step.bucket_sums import BucketSum, Factored, Sharded, Shared, Zoned
from bamboo.runtime.step.exchange_plan import ExchangePlan, Tie
from bamboo.runtime.step.losses import Losses
from bamboo.runtime.step.norm import squares
from bamboo.runtime.step.rows import packed, whole
from bamboo.runtime.wire.messages import Mailbox
from bamboo.topology.grid import Grid
from bamboo.topology.shards import SHARDED
from bamboo.topology.slots import Slot
from bamboo.topology.sync import FACTORS, ZONED

TOTAL = 1023
"""Takes the place of a use's position when the message carries the sum of all uses."""
WAYS: Mapping[str, type[BucketSum]] = {SHARDED: Sharded, ZONED: Zoned, FACTORS: Factored}


class Stand(IntEnum):
    """How far an exchange has come."""

    FILLING = 0
    SUMMING = 1
    TYING = 2
    DONE = 3


class Exchange:
    """One step's reduction for one slot."""

    def __init__(self, plan: ExchangePlan, step: int) -> None:
        self.plan = plan
        self.step = step
        self.stand = Stand.FILLING
        self.shared = Shared()
        self.sums = [WAYS[b.way](plan, b, step, self.shared) for b in plan.buckets]
        """Of each bucket, in the order in which they leave."""
        self.gradient: list[Tensor] = []
        self.squares: list[float] = []

    @property
    def losses(self) -> Losses:
        """Complete on pipeline 0's last stage when DONE."""
        return self.shared.losses

    def add_leaf(self, virtual_node: int, gradients: list[Tensor]) -> None:
        """Add the gradient of one virtual node of this pipeline's block, in any order."""
        for one in self.sums:
            one.add_leaf(virtual_node, [gradients[place] for place in one.bucket.positions])

    # ------------------------------------------------------------------ progress

    @property
    def filled(self) -> bool:
        """Whether all virtual nodes of this pipeline's block are added."""
        return all(one.filled for one in self.sums)

    def can_advance(self, mailbox: Mailbox) -> bool:
        """Whether `advance` would get any further now."""
        if self.stand is Stand.FILLING:
            return self.filled
        if self.stand is Stand.SUMMING:
            return self._has(mailbox, "reduced") or any(x.can_advance(mailbox) for x in self.sums)
        if self.stand is Stand.TYING:
            return all(self._tie_known(mailbox, tie) for tie in self._own_ties())
        return False

    def advance(self, mailbox: Mailbox) -> None:
        """Go on as far as the messages that have come allow."""
        while self.can_advance(mailbox):
            if self.stand is Stand.FILLING:
                self._send(mailbox)
            elif self.stand is Stand.SUMMING:
                self._sum(mailbox)
            elif self.stand is Stand.TYING:
                self._add_tied(mailbox)

    def send_early(self, mailbox: Mailbox) -> None:
        """Send the buckets that are filled, but for those that leave with the whole backward."""
        for one in self.sums:
            if one.filled and not one.sent and self.plan.leaves_early(one.bucket):
                one.send(mailbox)
                one.copied = mailbox.copied()

    def can_sum_early(self, mailbox: Mailbox) -> bool:
        """Whether `sum_early` would get any further now."""
        if self.stand is not Stand.FILLING:
            return False
        return any(one.can_advance_early(mailbox) for one in self.sums)

    def sum_early(self, mailbox: Mailbox) -> None:
        """Go on with the buckets that have left, while the backward goes on."""
        for one in self.sums:
            if one.can_advance_early(mailbox):
                one.advance(mailbox, early=True)

    def _has(self, mailbox: Mailbox, kind: MessageKind, index: int = 0) -> bool:
        return mailbox.has(self.plan.slot, kind, self.step, index)

    def _others(self) -> list[int]:
        d = self.plan.slot.pipeline
        return [e for e in range(self.plan.grid.pipelines) if e != d]

    def _key(self, kind: MessageKind, to: Slot, index: int = 0) -> MessageKey:
        return MessageKey(kind=kind, to=to, source=self.plan.slot, step=self.step, index=index)

    def _peer(self, pipeline: int) -> Slot:
        return Slot(pipeline=pipeline, stage=self.plan.slot.stage)

    # ------------------------------------------------------------------ between pipelines

    def _send(self, mailbox: Mailbox) -> None:
        for one in self.sums:
            if not one.sent:
                one.send(mailbox)
        self.stand = Stand.SUMMING
        self._end_summing(mailbox)

    def _sum(self, mailbox: Mailbox) -> None:
        for one in self.sums:
            one.advance(mailbox)
        if not self._end_summing(mailbox) and self._has(mailbox, "reduced"):
            self._copy_reduced(mailbox)

    def _end_summing(self, mailbox: Mailbox) -> bool:
        """Put the gradient together once all buckets are summed."""
        if not all(one.done for one in self.sums):
            return False
        by_position: dict[int, Tensor] = {}
        for one in self.sums:
            assert one.gradient is not None, "it is done"
            by_position |= zip(one.bucket.positions, one.gradient, strict=True)
            one.gradient = []
        self.gradient = [by_position[place] for place in range(len(self.plan.shapes))]
        self._send_tied(mailbox)
        return True

    def _copy_reduced(self, mailbox: Mailbox) -> None:
        """Take the whole gradient from a slot that has it, and pass it on: others may lack it."""
        message = mailbox.take(self.plan.slot, "reduced", self.step)
        self.gradient = whole(message.tensors, message.meta, self.plan.shapes)
        self.losses.take(message.meta)
        for e in self._others():
            mailbox.post(self._key("reduced", self._peer(e)), message.tensors, message.meta)
        self._send_totals(mailbox)
        self._finish(mailbox)

    # ------------------------------------------------------------------ tied parameters

    def _own_ties(self) -> list[Tie]:
        """The tied parameters that this stage uses."""
        return [tie for tie in self.plan.ties if self.plan.slot.stage in tie.stages]

    def _own_place(self, tie: Tie) -> int:
        """The position of this stage's first use of a tied parameter among its parameters."""
        return self._place_of(tie.uses[tie.stages.index(self.plan.slot.stage)])

    def _place_of(self, use: tuple[int, str]) -> int:
        """The position of a use on this stage among its parameters."""
        layer, name = use
        return self.plan.names.index(f"{layer}.{name}")

    def _tie_known(self, mailbox: Mailbox, tie: Tie) -> bool:
        """Whether the gradients of all uses on other stages are here, or the sum of all uses."""
        own = self.plan.slot.stage
        foreign = (p for p, other in enumerate(tie.stages) if other != own)
        return self._has(mailbox, "tie", tie_index(tie, TOTAL)) or all(
            self._has(mailbox, "tie", tie_index(tie, position)) for position in foreign
        )

    def _send_tied(self, mailbox: Mailbox) -> None:
        own = self.plan.slot
        for tie in self._own_ties():
            for position, (stage, use) in enumerate(zip(tie.stages, tie.uses, strict=True)):
                if stage == own.stage:
                    gradient = self.gradient[self._place_of(use)].clone()
                    self._post_tied(mailbox, tie, position, gradient)
        self.stand = Stand.TYING

    def _send_totals(self, mailbox: Mailbox) -> None:
        """Send the other stages of this pipeline the sum of all uses, which a whole gradient has in
        the place of each use: they may be waiting for the use of this stage."""
        for tie in self._own_ties():
            self._post_tied(mailbox, tie, TOTAL, self.gradient[self._own_place(tie)])

    def tied_totals(self) -> dict[int, Tensor]:
        """The sum of all uses of each tied parameter, by its number, once the gradient is whole."""
        return {tie.number: self.gradient[self._own_place(tie)] for tie in self._own_ties()}

    def _post_tied(self, mailbox: Mailbox, tie: Tie, position: int, gradient: Tensor) -> None:
        own = self.plan.slot
        for other in sorted(set(tie.stages) - {own.stage}):
            to = Slot(pipeline=own.pipeline, stage=other)
            tensors, how = packed([gradient], [self.plan.widths[self._own_place(tie)]])
            mailbox.post(self._key("tie", to, tie_index(tie, position)), tensors, how)

    def _add_tied(self, mailbox: Mailbox) -> None:
        for tie in self._own_ties():
            total = self._sum_of_uses(mailbox, tie)
            for stage, use in zip(tie.stages, tie.uses, strict=True):
                if stage == self.plan.slot.stage:
                    self.gradient[self._place_of(use)] = total
        self._finish(mailbox)

    def _sum_of_uses(self, mailbox: Mailbox, tie: Tie) -> Tensor:
        own = self.plan.slot
        if self._has(mailbox, "tie", tie_index(tie, TOTAL)):
            return self._tied(mailbox, tie, TOTAL)
        uses = []
        for position, (stage, use) in enumerate(zip(tie.stages, tie.uses, strict=True)):
            if stage == own.stage:
                uses.append(self.gradient[self._place_of(use)])
            else:
                uses.append(self._tied(mailbox, tie, position))
        total = uses[0].clone()
        for gradient in uses[1:]:
            total = total + gradient
        return total

    def _tied(self, mailbox: Mailbox, tie: Tie, position: int) -> Tensor:
        index = tie_index(tie, position)
        message = mailbox.take(self.plan.slot, "tie", self.step, index)
        shape = self.plan.shapes[self._own_place(tie)]
        return whole(message.tensors, message.meta, [shape])[0]

    # ------------------------------------------------------------------ the norm

    def _finish(self, mailbox: Mailbox) -> None:
        plan = self.plan
        counted = [
            g for g, counts in zip(self.gradient, plan.counts_in_norm, strict=True) if counts
        ]
        self.squares = squares(counted)
        if not all(map(math.isfinite, self.losses.values())):
            # Its gradients may still be finite, so an infinite or NaN norm tells every slot.
            self.squares = [math.nan]
        place = _place(plan.grid, plan.slot)
        for to in plan.grid.slots():
            if to != plan.slot:
                mailbox.post(self._key("squares", to, place), (), {"squares": self.squares})
        self.stand = Stand.DONE

    def total_square_known(self, mailbox: Mailbox) -> bool:
        """Whether every slot has sent its squares. A step is only taken once each slot of each
        pipeline has its whole gradient, so that all nodes that remain can follow a node that has
        taken it."""
        if self.stand is not Stand.DONE:
            return False
        grid, own = self.plan.grid, self.plan.slot
        others = (_place(grid, slot) for slot in grid.slots() if slot != own)
        return self._has(mailbox, "norm") or all(self._has(mailbox, "squares", p) for p in others)

    def total_square(self, mailbox: Mailbox) -> float:
        """The squared gradient norm of the whole model, added in global parameter order."""
        slot = self.plan.slot
        if self._has(mailbox, "norm"):
            return float(mailbox.take(slot, "norm", self.step).meta["total_square"])
        total = 0.0
        for stage in range(self.plan.grid.stages):
            own = stage == slot.stage
            place = _place(self.plan.grid, Slot(pipeline=slot.pipeline, stage=stage))
            found = self.squares if own else _squares_of(mailbox, slot, self.step, place)
            for square in found:
                total += square
        return total


def _place(grid: Grid, slot: Slot) -> int:
    """A slot's number in the grid."""
    return slot.pipeline * grid.stages + slot.stage


def _squares_of(mailbox: Mailbox, slot: Slot, step: int, place: int) -> list[float]:
    meta: Mapping[str, Sequence[float]] = mailbox.take(slot, "squares", step, place).meta
    return [float(s) for s in meta["squares"]]


def tie_index(tie: Tie, position: int) -> int:
    """The index of the message that carries one use's gradient."""
    return tie.number * 1024 + position
