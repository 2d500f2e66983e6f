"""The sum of one bucket over all pipelines, in each way that a bucket may go.

    sharded   partial sums -> shards to their owners -> sums in tree order -> to all
    zoned     partial sums -> delegate of the zone -> owner -> delegate of the zone -> to all
    factors   inputs and output gradients -> to all, which form and add every product

Rule: every addition follows the canonical tree, so a bucket's way changes no bit. Each arrow is a
message between slots of a column, which a new owner can repeat from what the others keep. Nothing
here waits.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bamboo.ports import MessageKey, MessageKind
from bamboo.runtime.device.staging import Staged
from bamboo.runtime.step import factors
from bamboo.runtime.step.exchange_plan import ExchangePlan
from bamboo.runtime.step.factors import Recorded
from bamboo.runtime.step.losses import Losses
from bamboo.runtime.step.rows import packed, unpacked
from bamboo.runtime.wire.messages import Mailbox
from bamboo.topology.reduction import TreeSum
from bamboo.topology.shards import Bucket, Delegated, Piece, delegated
from bamboo.topology.slots import Slot
from bamboo.topology.sync import FACTORS

PER_BUCKET = 1024
"""The index of a message is the number of its bucket times this, and the number of its sender. No
grid has so many pipelines."""


def added(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    """The sums, in the tensors of the left."""
    for a, b in zip(left, right, strict=True):
        a.add_(b)
    return left


def _apart(piece: Tensor) -> Tensor:
    """A copy of a piece that is kept for longer than the tensor that it was cut out of."""
    return piece if piece.nbytes == piece.untyped_storage().nbytes() else piece.clone()


def _sums(left: Sequence[Tensor], right: Sequence[Tensor]) -> Sequence[Tensor]:
    """Sums in new tensors: the summands may be kept for a new owner, or lie in a frame."""
    return [a + b for a, b in zip(left, right, strict=True)]


def _partials_in(
    tensors: Sequence[Tensor], meta: Mapping[str, Any]
) -> Iterable[tuple[tuple[int, int], Sequence[Tensor]]]:
    """What a message has of each partial sum, by its leaves."""
    flat, leaves = unpacked(tensors, meta), meta["leaves"]
    count = len(flat) // len(leaves)
    for number, (lo, hi) in enumerate(leaves):
        yield (lo, hi), flat[number * count : (number + 1) * count]


@dataclass(frozen=True, slots=True)
class Shared:
    """What the buckets of a step share."""

    losses: Losses = field(default_factory=Losses)
    """Those of this pipeline, and those that came with a bucket."""
    factors: dict[tuple[int, int], Recorded] = field(default_factory=dict)
    """By position and virtual node: the factors of its microbatches, in order. Those of other
    pipelines are here where they go on to the shadow."""


class BucketSum(ABC):
    """One bucket in one step of one slot. With one pipeline it is done once it is filled."""

    def __init__(self, plan: ExchangePlan, bucket: Bucket, step: int, shared: Shared) -> None:
        self._plan = plan
        self._shared = shared
        self.bucket = bucket
        self._step = step
        self._me = plan.slot.pipeline
        self._tree: TreeSum[list[Tensor]] = TreeSum(plan.leaves, added)
        self._missing = len(plan.blocks[self._me])
        self.sent = False
        """Whether what this pipeline has of it has left."""
        self.copied: Staged | None = None
        """Of a bucket that left early: done once the device is through with its gradients."""
        self._early = False
        self.gradient: list[Tensor] | None = None
        """The whole sum of each of its tensors, once it is done."""

    def add_leaf(self, virtual_node: int, gradients: list[Tensor]) -> None:
        """Add the gradient of one virtual node of this pipeline's block, in any order."""
        self._tree.push(virtual_node, virtual_node + 1, gradients)
        self._missing -= 1

    @property
    def filled(self) -> bool:
        """Whether all virtual nodes of this pipeline's block are added."""
        return not self._missing

    @property
    def partials(self) -> dict[tuple[int, int], list[Tensor]]:
        """The sums of what was added and has not left, by their leaves."""
        return self._tree.partials

    @property
    def done(self) -> bool:
        """Whether the whole sum is here."""
        return self.gradient is not None

    def send(self, mailbox: Mailbox) -> None:
        """Send what this pipeline has, once it is filled."""
        self.sent = True
        if self._plan.grid.pipelines == 1:
            root = self._tree.root
            assert root is not None, "a single pipeline holds every leaf"
            self.gradient = root
        else:
            self._send(mailbox, self.partials)
        self._tree = TreeSum(self._plan.leaves, added)

    def advance(self, mailbox: Mailbox, *, early: bool = False) -> None:
        """Go on as far as the messages that have come allow. `early`: while the backward goes on,
        with gradients that lie on the host, so that what is sent waits for no operation."""
        self._early = early
        while self.can_advance(mailbox):
            self._advance(mailbox)

    def can_advance_early(self, mailbox: Mailbox) -> bool:
        """Whether it would get any further while the backward goes on."""
        return self.copied is not None and self.copied.ready() and self.can_advance(mailbox)

    def can_advance(self, mailbox: Mailbox) -> bool:
        """Whether `advance` would get any further now."""
        return self.sent and not self.done and self._can_advance(mailbox)

    @abstractmethod
    def _send(self, mailbox: Mailbox, partials: Mapping[tuple[int, int], list[Tensor]]) -> None: ...

    @abstractmethod
    def _can_advance(self, mailbox: Mailbox) -> bool: ...

    @abstractmethod
    def _advance(self, mailbox: Mailbox) -> None: ...

    # ------------------------------------------------------------------ what all ways share

    @property
    def _others(self) -> list[int]:
        return [e for e in range(self._plan.grid.pipelines) if e != self._me]

    def _has(self, mailbox: Mailbox, kind: MessageKind, pipeline: int) -> bool:
        index = self.bucket.number * PER_BUCKET + pipeline
        return mailbox.has(self._plan.slot, kind, self._step, index)

    def _post(
        self,
        mailbox: Mailbox,
        kind: MessageKind,
        pipeline: int,
        tensors: Sequence[Tensor],
        meta: Mapping[str, Any],
    ) -> None:
        slot = self._plan.slot
        key = MessageKey(
            kind=kind,
            to=Slot(pipeline=pipeline, stage=slot.stage),
            source=slot,
            step=self._step,
            index=self.bucket.number * PER_BUCKET + self._me,
        )
        mailbox.post(key, tensors, meta, at_rest=self._early)

    def _take(
        self, mailbox: Mailbox, kind: MessageKind, pipeline: int
    ) -> tuple[Sequence[Tensor], Mapping[str, Any]]:
        index = self.bucket.number * PER_BUCKET + pipeline
        message = mailbox.take(self._plan.slot, kind, self._step, index)
        return message.tensors, message.meta

    def _post_partials(
        self,
        mailbox: Mailbox,
        kind: MessageKind,
        pipeline: int,
        partials: Mapping[tuple[int, int], Sequence[Tensor]],
        pieces: Sequence[Piece],
    ) -> None:
        """Send what each partial sum has of these pieces, flat tensors in their order."""
        widths = self._widths(pieces) * len(partials)
        tensors, how = packed([x for flat in partials.values() for x in flat], widths)
        about = {"leaves": [list(leaves) for leaves in partials]} | how
        if self.bucket.number == self._plan.carrier:
            about |= self._shared.losses.meta()
        self._post(mailbox, kind, pipeline, list(map(_apart, tensors)), about)

    def _take_partials(
        self, mailbox: Mailbox, kind: MessageKind, pipeline: int
    ) -> Iterable[tuple[tuple[int, int], Sequence[Tensor]]]:
        tensors, meta = self._take(mailbox, kind, pipeline)
        if self.bucket.number == self._plan.carrier:
            self._shared.losses.take(meta)
        return _partials_in(tensors, meta)

    def _widths(self, pieces: Sequence[Piece]) -> list[int]:
        tensors = self._plan.tensors
        return [tensors[p.position].width if tensors[p.position].by_rows else 0 for p in pieces]

    def _cut(self, gradients: Sequence[Tensor], pieces: Sequence[Piece]) -> list[Tensor]:
        """These pieces of the bucket's gradients, flat and uncopied."""
        places = {position: place for place, position in enumerate(self.bucket.positions)}
        return [gradients[places[p.position]].reshape(-1)[p.lo : p.hi] for p in pieces]

    def _put_together(self, found: Mapping[Piece, Tensor]) -> list[Tensor]:
        """The bucket's tensors from pieces that cover them; one is copied only if it was cut."""
        parts: dict[int, list[Tensor]] = {position: [] for position in self.bucket.positions}
        for piece in sorted(found):
            parts[piece.position].append(found[piece])
        return [
            (own[0] if len(own) == 1 else torch.cat(own or [torch.empty(0)])).reshape(
                self._plan.tensors[position].shape
            )
            for position, own in parts.items()
        ]


class Sharded(BucketSum):
    """Each pipeline sums its own pieces, and sends all others the sums."""

    def __init__(self, plan: ExchangePlan, bucket: Bucket, step: int, shared: Shared) -> None:
        super().__init__(plan, bucket, step, shared)
        self._shards = plan.shards[bucket.number]
        self._mine: Mapping[tuple[int, int], Sequence[Tensor]] = {}
        """This pipeline's own pieces of its partial sums."""
        self._sum: Sequence[Tensor] | None = None
        """Of its own pieces, over all pipelines."""

    def _sends_to(self, pipeline: int) -> bool:
        """Whether partial sums go to that pipeline: it sums something, or all hear all losses."""
        return bool(self._shards[pipeline]) or self.bucket.number == self._plan.carrier

    def _send(self, mailbox: Mailbox, partials: Mapping[tuple[int, int], list[Tensor]]) -> None:
        # From here on sums are replaced and never changed, so they can be sent and kept without a
        # copy.
        for e in self._others:
            if self._sends_to(e):
                pieces = self._shards[e]
                cut = {leaves: self._cut(grads, pieces) for leaves, grads in partials.items()}
                self._post_partials(mailbox, "partial", e, cut, pieces)
        own = self._shards[self._me]
        self._mine = {leaves: self._cut(grads, own) for leaves, grads in partials.items()}
        if not self._sends_to(self._me):
            self._sum = ()
            self._mine = {}

    def _can_advance(self, mailbox: Mailbox) -> bool:
        if self._sum is None:
            return all(self._has(mailbox, "partial", e) for e in self._others)
        return all(self._has(mailbox, "shard", e) for e in self._others if self._shards[e])

    def _advance(self, mailbox: Mailbox) -> None:
        if self._sum is None:
            self._sum_pieces(mailbox)
        else:
            self._gather(mailbox, self._sum)

    def _sum_pieces(self, mailbox: Mailbox) -> None:
        tree: TreeSum[Sequence[Tensor]] = TreeSum(self._plan.leaves, _sums)
        for (lo, hi), part in self._mine.items():
            tree.push(lo, hi, part)
        for e in self._others:
            for (lo, hi), part in self._take_partials(mailbox, "partial", e):
                tree.push(lo, hi, part)
        assert tree.root is not None, "the blocks of all pipelines cover every leaf"
        self._sum = tree.root
        self._mine = {}
        own = self._shards[self._me]
        if own:
            tensors, how = packed(self._sum, self._widths(own))
            for e in self._others:
                self._post(mailbox, "shard", e, tensors, how)

    def _gather(self, mailbox: Mailbox, mine: Sequence[Tensor]) -> None:
        found = dict(zip(self._shards[self._me], mine, strict=True))
        for e in self._others:
            if self._shards[e]:
                flat = unpacked(*self._take(mailbox, "shard", e))
                found |= zip(self._shards[e], flat, strict=True)
        # What follows takes each element by itself or adds elements in a fixed order. None of it
        # depends on how a gradient is aligned, so the gradient may stay where it lies.
        self.gradient = self._put_together(found)


class Zoned(BucketSum):
    """The pipelines of a zone first add what they have; one sum of each zone goes to the pipeline
    that sums a piece, and one comes back."""

    def __init__(self, plan: ExchangePlan, bucket: Bucket, step: int, shared: Shared) -> None:
        super().__init__(plan, bucket, step, shared)
        zones = sorted(set(plan.zones))
        self._zones = [zones.index(zone) for zone in plan.zones]
        self._zone = self._zones[self._me]
        self._pieces = delegated(plan.tensors, bucket.positions, plan.zones)
        self._mine: Mapping[tuple[int, int], Sequence[Tensor]] = {}
        """What this pipeline's partial sums have of the pieces that are delegated to it."""
        self._of_zone: dict[Piece, dict[tuple[int, int], Tensor]] | None = None
        """The partial sums of this zone of the pieces that this pipeline sums."""
        self._whole: dict[Piece, Tensor] = {}
        """The whole sums that are here."""
        self._phase = 0
        """0: merge in the zone; 1: sum over zones; 2: relay the sums; 3: gather all of them."""

    @property
    def _near(self) -> list[int]:
        return [e for e in self._others if self._zones[e] == self._zone]

    def _delegated_to(self, pipeline: int) -> list[Delegated]:
        zone = self._zones[pipeline]
        return [one for one in self._pieces if one.delegates[zone] == pipeline]

    def _summed_by(self, owner: int, delegate: int) -> list[Piece]:
        """The pieces that one pipeline sums and another is the delegate of."""
        return [one.piece for one in self._delegated_to(delegate) if one.owner == owner]

    def _send(self, mailbox: Mailbox, partials: Mapping[tuple[int, int], list[Tensor]]) -> None:
        for e in self._near:
            pieces = [one.piece for one in self._delegated_to(e)]
            if pieces:
                cut = {leaves: self._cut(grads, pieces) for leaves, grads in partials.items()}
                self._post_partials(mailbox, "partial", e, cut, pieces)
        own = [one.piece for one in self._delegated_to(self._me)]
        self._mine = {leaves: self._cut(grads, own) for leaves, grads in partials.items()}

    def _waits_for(self) -> list[tuple[MessageKind, int]]:
        """The messages that the present phase needs."""
        me, near = self._me, self._near
        far = [e for e in self._others if e not in near]
        if self._phase == 0:
            return [("partial", e) for e in near] if self._delegated_to(me) else []
        if self._phase == 1:
            return [("merged", e) for e in far if self._summed_by(me, e)]
        if self._phase == 2:
            return [("shard", e) for e in far if self._summed_by(e, me)]
        found: list[tuple[MessageKind, int]] = []
        for e in near:
            found += [("shard", e)] if self._summed_by(e, e) else []
            found += [("relayed", e)] if self._relayed_by(e) else []
        return found

    def _can_advance(self, mailbox: Mailbox) -> bool:
        return all(self._has(mailbox, kind, e) for kind, e in self._waits_for())

    def _advance(self, mailbox: Mailbox) -> None:
        phases = (self._merge, self._sum_pieces, self._relay, self._gather)
        phases[self._phase](mailbox)
        self._phase += 1

    def _relayed_by(self, delegate: int) -> list[Piece]:
        """The pieces of which a delegate tells its zone the sums of other zones' pipelines."""
        return [one.piece for one in self._delegated_to(delegate) if one.owner != delegate]

    def _merge(self, mailbox: Mailbox) -> None:
        """Add what this zone has of the delegated pieces, and send each to the one that sums it."""
        tree: TreeSum[Sequence[Tensor]] = TreeSum(self._plan.leaves, _sums)
        for (lo, hi), part in self._mine.items():
            tree.push(lo, hi, part)
        if self._delegated_to(self._me):
            for e in self._near:
                for (lo, hi), part in self._take_partials(mailbox, "partial", e):
                    tree.push(lo, hi, part)
        self._mine = {}
        pieces = [one.piece for one in self._delegated_to(self._me)]
        merged = {
            leaves: dict(zip(pieces, flat, strict=True)) for leaves, flat in tree.partials.items()
        }
        for owner in self._others:
            its = self._summed_by(owner, self._me)
            if its:
                cut = {leaves: [flat[piece] for piece in its] for leaves, flat in merged.items()}
                self._post_partials(mailbox, "merged", owner, cut, its)
        own = self._summed_by(self._me, self._me)
        self._of_zone = {p: {leaves: flat[p] for leaves, flat in merged.items()} for p in own}

    def _sum_pieces(self, mailbox: Mailbox) -> None:
        """Sum the pieces that are this pipeline's own, and send the sums where they go first."""
        assert self._of_zone is not None, "the zone's own sums come first"
        trees = {
            piece: TreeSum[Sequence[Tensor]](self._plan.leaves, _sums) for piece in self._of_zone
        }
        for piece, parts in self._of_zone.items():
            for (lo, hi), part in parts.items():
                trees[piece].push(lo, hi, (part,))
        self._of_zone = {}
        for kind, e in self._waits_for():
            pieces = self._summed_by(self._me, e)
            for (lo, hi), flat in self._take_partials(mailbox, kind, e):
                for piece, part in zip(pieces, flat, strict=True):
                    trees[piece].push(lo, hi, (part,))
        for piece, tree in trees.items():
            assert tree.root is not None, "the zones together cover every leaf"
            self._whole[piece] = tree.root[0]
        for e in self._others:
            delegate = self._me if e in self._near else e
            self._post_sums(mailbox, "shard", e, self._summed_by(self._me, delegate))

    def _post_sums(
        self, mailbox: Mailbox, kind: MessageKind, pipeline: int, pieces: Sequence[Piece]
    ) -> None:
        if pieces:
            tensors = [_apart(self._whole[piece]) for piece in pieces]
            self._post(mailbox, kind, pipeline, tensors, {})

    def _relay(self, mailbox: Mailbox) -> None:
        """Tell this zone the sums that came to it through this pipeline."""
        for kind, e in self._waits_for():
            self._whole |= zip(
                self._summed_by(e, self._me), self._take(mailbox, kind, e)[0], strict=True
            )
        for e in self._near:
            self._post_sums(mailbox, "relayed", e, self._relayed_by(self._me))

    def _gather(self, mailbox: Mailbox) -> None:
        for kind, e in self._waits_for():
            pieces = self._summed_by(e, e) if kind == "shard" else self._relayed_by(e)
            flat = self._take(mailbox, kind, e)[0]
            self._whole |= zip(pieces, flat, strict=True)
        self.gradient = self._put_together(self._whole)
        self._whole = {}


class Factored(BucketSum):
    """Each pipeline sends the factors of its microbatches, and all form and add every product. One
    that lacks some, because a microbatch used a weight in another way than by one product, sends
    its partial sums: more bytes, and the same bits."""

    def __init__(self, plan: ExchangePlan, bucket: Bucket, step: int, shared: Shared) -> None:
        super().__init__(plan, bucket, step, shared)
        self._waited = set(self._others)
        self._whole: TreeSum[Sequence[Tensor]] = TreeSum(plan.leaves, _sums)
        self._place = factors.CPU
        """Where this pipeline's gradients lie, and all sums with them."""

    def _send(self, mailbox: Mailbox, partials: Mapping[tuple[int, int], list[Tensor]]) -> None:
        plan, own = self._plan, self._plan.blocks[self._me]
        positions, found = self.bucket.positions, self._shared.factors
        if all((p, v) in found for p in positions for v in own):
            sent = {plan.names[p]: [one for v in own for one in found[p, v]] for p in positions}
            tensors, how = factors.packed(sent)
            for e in self._others:
                self._post(mailbox, "factors", e, tensors, {FACTORS: how})
        else:
            pieces = [Piece(p, 0, plan.tensors[p].size) for p in positions]
            cut = {leaves: self._cut(grads, pieces) for leaves, grads in partials.items()}
            for e in self._others:
                self._post_partials(mailbox, "factors", e, cut, pieces)
        for (lo, hi), part in partials.items():
            self._place = part[0].device
            self._whole.push(lo, hi, part)

    def _can_advance(self, mailbox: Mailbox) -> bool:
        return any(self._has(mailbox, "factors", e) for e in self._waited)

    def _advance(self, mailbox: Mailbox) -> None:
        for e in [e for e in self._waited if self._has(mailbox, "factors", e)]:
            tensors, meta = self._take(mailbox, "factors", e)
            if FACTORS in meta:
                self._add_products(tensors, meta, self._plan.blocks[e])
            else:
                shapes = [self._plan.shapes[p] for p in self.bucket.positions]
                for (lo, hi), flat in _partials_in(tensors, meta):
                    part = [x.reshape(shape) for x, shape in zip(flat, shapes, strict=True)]
                    self._whole.push(lo, hi, part)
            self._waited.remove(e)
        if not self._waited:
            assert self._whole.root is not None, "the blocks of all pipelines cover every leaf"
            self.gradient = list(self._whole.root)

    def _add_products(
        self, tensors: Sequence[Tensor], meta: Mapping[str, Any], block: range
    ) -> None:
        plan, positions = self._plan, self.bucket.positions
        shapes = {plan.names[p]: plan.shapes[p] for p in positions}
        came = factors.unpacked(tensors, meta[FACTORS], shapes)
        split = [factors.by_virtual_node(came[plan.names[p]], len(block)) for p in positions]
        for virtual_node, recorded in zip(block, zip(*split, strict=True), strict=True):
            leaf = []
            for p, own in zip(positions, recorded, strict=True):
                leaf.append(factors.summed(own, plan.shapes[p], self._place))
                if plan.tensors[p].entry.ship == FACTORS:
                    self._shared.factors[p, virtual_node] = own
            self._whole.push(virtual_node, virtual_node + 1, leaf)
