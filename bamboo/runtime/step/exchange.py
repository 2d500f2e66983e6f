"""The reduction of one slot's gradient in one step, from virtual nodes to the optimizer's input.

    leaves of the virtual nodes -> partial sums -> shards to their owners -> shard sums in tree
    order -> whole gradient -> tied uses added in layer order -> squares to all slots

Rule: every addition follows the canonical tree or the layer order, so the sum does not depend on
which node held which virtual node. There is no collective: each arrow is a message between slots,
and a slot with a new owner can repeat all of it from the messages that the others keep. `advance`
never waits.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from bamboo.ports import MessageKey, MessageKind
from bamboo.runtime.step.norm import squares
from bamboo.runtime.wire.chunks import pieces_of, put_together
from bamboo.runtime.wire.messages import Mailbox
from bamboo.topology.grid import Grid
from bamboo.topology.reduction import TreeSum
from bamboo.topology.slots import Slot

TOTAL = 1023
"""Takes the place of a use's position when the message carries the sum of all uses."""


class Stand(IntEnum):
    """How far an exchange has come."""

    FILLING = 0
    SUMMING = 1
    GATHERING = 2
    TYING = 3
    DONE = 4


class Losses(dict[int, float]):
    """Loss sums by global microbatch, and what else is measured there."""

    def __init__(self, meta: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.metrics: dict[int, Mapping[str, Sequence[float]]] = {}
        """Name -> (sum, count), by global microbatch."""
        self.take(meta or {})

    def take(self, meta: Mapping[str, Any]) -> None:
        """Add what a message says of other microbatches."""
        self.update((int(m), float(loss)) for m, loss in meta.get("losses", ()))
        self.metrics |= {int(m): found for m, found in meta.get("metrics", ())}

    def meta(self) -> dict[str, Any]:
        """What a message says of these."""
        metrics = {"metrics": [[*one] for one in self.metrics.items()]} if self.metrics else {}
        return {"losses": [[m, loss] for m, loss in self.items()]} | metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """One tied parameter: all its uses as (global layer, name), in layer order."""

    number: int
    uses: tuple[tuple[int, str], ...]
    stages: tuple[int, ...]
    """The stage of each use."""

    @property
    def names(self) -> frozenset[str]:
        """Of all uses, as in the final files."""
        return frozenset(f"param/{layer}.{name}" for layer, name in self.uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePlan:
    """What an exchange needs to know of its slot; it is the same in every step."""

    slot: Slot
    grid: Grid
    leaves: int
    """Virtual nodes in the whole run."""
    blocks: tuple[range, ...]
    """Virtual nodes of each pipeline."""
    shapes: tuple[torch.Size, ...]
    names: tuple[str, ...]
    counts_in_norm: tuple[bool, ...]
    ties: tuple[Tie, ...]

    def shard(self, pipeline: int) -> slice:
        """The part of the flattened gradient that `pipeline` sums."""
        total = sum(shape.numel() for shape in self.shapes)
        d = self.grid.pipelines
        return slice(total * pipeline // d, total * (pipeline + 1) // d)


def _add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    for a, b in zip(left, right, strict=True):
        a.add_(b)
    return left


def _apart(piece: Tensor) -> Tensor:
    """A copy of a piece that is kept for longer than the tensor that it was cut out of."""
    return piece if piece.nbytes == piece.untyped_storage().nbytes() else piece.clone()


def _sums(left: Sequence[Tensor], right: Sequence[Tensor]) -> Sequence[Tensor]:
    """Sums in new tensors: the summands may be kept for a new owner, or lie in a frame."""
    return [a + b for a, b in zip(left, right, strict=True)]


class Exchange:
    """One step's reduction for one slot."""

    def __init__(self, plan: ExchangePlan, step: int) -> None:
        self.plan = plan
        self.step = step
        self.stand = Stand.FILLING
        self._sum: TreeSum[list[Tensor]] = TreeSum(plan.leaves, _add)
        self._filled = 0
        self._mine: dict[tuple[int, int], Sequence[Tensor]] = {}
        """This slot's own shard of this pipeline's partial sums, in pieces."""
        self._shard_sum: Sequence[Tensor] = ()
        self.losses = Losses()
        """Complete on pipeline 0's last stage when DONE."""
        self.gradient: list[Tensor] = []
        self.squares: list[float] = []

    def add_leaf(self, virtual_node: int, gradients: list[Tensor]) -> None:
        """Add the gradient of one virtual node of this pipeline's block, in any order."""
        self._sum.push(virtual_node, virtual_node + 1, gradients)
        self._filled += 1

    # ------------------------------------------------------------------ progress

    def can_advance(self, mailbox: Mailbox) -> bool:
        """Whether `advance` would get any further now."""
        if self.stand is Stand.FILLING:
            return self._filled == len(self.plan.blocks[self.plan.slot.pipeline])
        if self.stand in (Stand.SUMMING, Stand.GATHERING) and self._has(mailbox, "reduced"):
            return True
        if self.stand is Stand.SUMMING:
            return all(self._has(mailbox, "partial", e) for e in self._others())
        if self.stand is Stand.GATHERING:
            return all(self._has(mailbox, "shard", e) for e in self._others())
        if self.stand is Stand.TYING:
            return all(self._tie_known(mailbox, tie) for tie in self._own_ties())
        return False

    def advance(self, mailbox: Mailbox) -> None:
        """Go on as far as the messages that have come allow."""
        while self.can_advance(mailbox):
            if self.stand is Stand.FILLING:
                self._send_partials(mailbox)
            elif self.stand is Stand.SUMMING:
                self._sum_shard(mailbox)
            elif self.stand is Stand.GATHERING:
                self._gather(mailbox)
            elif self.stand is Stand.TYING:
                self._add_tied(mailbox)

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

    def _send_partials(self, mailbox: Mailbox) -> None:
        if self.plan.grid.pipelines == 1:
            root = self._sum.root
            assert root is not None, "a single pipeline holds every leaf"
            self.gradient = root
            self._send_tied(mailbox)
            return
        me = self.plan.slot.pipeline
        partials = self._sum.partials
        meta = {"leaves": [list(leaves) for leaves in partials]} | self.losses.meta()
        # From here on sums are replaced and never changed, so they can be sent and kept without a
        # copy.
        for e in self._others():
            shard = self.plan.shard(e)
            pieces = chain(*(pieces_of(x, shard.start, shard.stop) for x in partials.values()))
            mailbox.post(self._key("partial", self._peer(e), me), list(map(_apart, pieces)), meta)
        own = self.plan.shard(me)
        self._mine = {x: pieces_of(grads, own.start, own.stop) for x, grads in partials.items()}
        self._sum = TreeSum(self.plan.leaves, _add)
        self.stand = Stand.SUMMING

    def _sum_shard(self, mailbox: Mailbox) -> None:
        slot = self.plan.slot
        if not all(self._has(mailbox, "partial", e) for e in self._others()):
            self._copy_reduced(mailbox)
            return
        tree: TreeSum[Sequence[Tensor]] = TreeSum(self.plan.leaves, _sums)
        for (lo, hi), part in self._mine.items():
            tree.push(lo, hi, part)
        for e in self._others():
            message = mailbox.take(slot, "partial", self.step, e)
            leaves = message.meta["leaves"]
            count = len(message.tensors) // len(leaves)
            for number, (lo, hi) in enumerate(leaves):
                tree.push(lo, hi, message.tensors[number * count : (number + 1) * count])
            self.losses.take(message.meta)
        assert tree.root is not None, "the blocks of all pipelines cover every leaf"
        self._shard_sum = tree.root
        self._mine = {}
        for e in self._others():
            mailbox.post(self._key("shard", self._peer(e), slot.pipeline), self._shard_sum)
        self.stand = Stand.GATHERING

    def _gather(self, mailbox: Mailbox) -> None:
        slot = self.plan.slot
        if not all(self._has(mailbox, "shard", e) for e in self._others()):
            self._copy_reduced(mailbox)
            return
        shards = [
            self._shard_sum
            if e == slot.pipeline
            else mailbox.take(slot, "shard", self.step, e).tensors
            for e in range(self.plan.grid.pipelines)
        ]
        # What follows takes each element by itself or adds elements in a fixed order. None of it
        # depends on how a gradient is aligned, so the gradient may stay where it lies.
        self.gradient = put_together(chain(*shards), self.plan.shapes)
        self._send_tied(mailbox)

    def _copy_reduced(self, mailbox: Mailbox) -> None:
        """Take the whole gradient from a slot that has it, and pass it on: others may lack it."""
        message = mailbox.take(self.plan.slot, "reduced", self.step)
        self.gradient = list(message.tensors)
        self.losses.take(message.meta)
        for e in self._others():
            mailbox.post(self._key("reduced", self._peer(e)), self.gradient, message.meta)
        self._send_totals(mailbox)
        self._finish(mailbox)

    # ------------------------------------------------------------------ tied parameters

    def _own_ties(self) -> list[Tie]:
        """The tied parameters that this stage uses."""
        return [tie for tie in self.plan.ties if self.plan.slot.stage in tie.stages]

    def _own_use(self, tie: Tie) -> int:
        """The position of this stage's first use of a tied parameter among its parameters."""
        layer, name = tie.uses[tie.stages.index(self.plan.slot.stage)]
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
                    place = self.plan.names.index(f"{use[0]}.{use[1]}")
                    self._post_tied(mailbox, tie, position, self.gradient[place].clone())
        self.stand = Stand.TYING

    def _send_totals(self, mailbox: Mailbox) -> None:
        """Send the other stages of this pipeline the sum of all uses, which a whole gradient has in
        the place of each use: they may be waiting for the use of this stage."""
        for tie in self._own_ties():
            self._post_tied(mailbox, tie, TOTAL, self.gradient[self._own_use(tie)])

    def tied_totals(self) -> dict[int, Tensor]:
        """The sum of all uses of each tied parameter, by its number, once the gradient is whole."""
        return {tie.number: self.gradient[self._own_use(tie)] for tie in self._own_ties()}

    def _post_tied(self, mailbox: Mailbox, tie: Tie, position: int, gradient: Tensor) -> None:
        own = self.plan.slot
        for other in sorted(set(tie.stages) - {own.stage}):
            to = Slot(pipeline=own.pipeline, stage=other)
            mailbox.post(self._key("tie", to, tie_index(tie, position)), [gradient])

    def _add_tied(self, mailbox: Mailbox) -> None:
        for tie in self._own_ties():
            total = self._sum_of_uses(mailbox, tie)
            for stage, use in zip(tie.stages, tie.uses, strict=True):
                if stage == self.plan.slot.stage:
                    self.gradient[self.plan.names.index(f"{use[0]}.{use[1]}")] = total
        self._finish(mailbox)

    def _sum_of_uses(self, mailbox: Mailbox, tie: Tie) -> Tensor:
        own = self.plan.slot
        if self._has(mailbox, "tie", tie_index(tie, TOTAL)):
            return mailbox.take(own, "tie", self.step, tie_index(tie, TOTAL)).tensors[0]
        uses = []
        for position, (stage, use) in enumerate(zip(tie.stages, tie.uses, strict=True)):
            if stage == own.stage:
                uses.append(self.gradient[self.plan.names.index(f"{use[0]}.{use[1]}")])
            else:
                index = tie_index(tie, position)
                uses.append(mailbox.take(own, "tie", self.step, index).tensors[0])
        total = uses[0].clone()
        for gradient in uses[1:]:
            total = total + gradient
        return total

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
