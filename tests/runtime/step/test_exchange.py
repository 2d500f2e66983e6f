"""The exchange: every slot of a column ends with the canonical sum, whoever computed which leaf.

The expected sums are written out here from the tree, not taken from the exchange.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bamboo.ids import NodeId
from bamboo.ports import MessageKey
from bamboo.runtime.step.exchange import Exchange, Stand, tie_index
from bamboo.runtime.step.exchange_plan import ExchangePlan, Tie
from bamboo.runtime.step.norm import squares
from bamboo.runtime.wire.messages import Mailbox
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.reduction import split
from bamboo.topology.slots import Slot
from bamboo.topology.sync import OWNER, ROWS, TREE, ZONED, SyncEntry
from bamboo.topology.virtual_nodes import blocks
from testbed.simulated import SimulatedTransport, Wires

SHAPES = ((3, 2), (5,), (1,))
STEP = 4


def tree_sum(lo: int, hi: int, leaf: Callable[[int], Tensor]) -> Tensor:
    """The sum over [lo, hi) as the canonical tree says."""
    if hi - lo == 1:
        return leaf(lo)
    mid = split(lo, hi)
    return tree_sum(lo, mid, leaf) + tree_sum(mid, hi, leaf)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Unlike with ==, -0.0 is not +0.0."""
    return one.shape == other.shape and torch.equal(
        one.contiguous().view(torch.int32), other.contiguous().view(torch.int32)
    )


def leaves(stage: int, virtual_node: int) -> list[Tensor]:
    """The gradient of a virtual node on a stage: numbers whose sum depends on its order, denormal
    ones among them, and a row without anything, or of -0.0."""
    generator = torch.Generator().manual_seed(1000 * stage + virtual_node)
    out = [torch.randn(shape, generator=generator) * 10**stage for shape in SHAPES]
    out[0][virtual_node % 3] = 0.0 if virtual_node % 2 else -0.0
    out[0][(stage + 1) % 3] = 0.0
    out[1][0] = -0.0
    out[1][1:3] = torch.tensor([3e-45, -1e-45]) * (virtual_node + 1)
    return out


def names(stage: int) -> tuple[str, ...]:
    """Each tensor belongs to a layer of its own."""
    return tuple(f"{len(SHAPES) * stage + i}.p" for i in range(len(SHAPES)))


def drawn_entries(draw: random.Random) -> tuple[SyncEntry, ...]:
    """Any way of synchronising each tensor, but for those that need a layer."""
    return tuple(
        SyncEntry(
            exchange=draw.choice((TREE, OWNER, ROWS, ZONED)),
            owner=draw.randrange(4),
            bucket=draw.choice((None, 0, 8, 24)),
        )
        for _ in SHAPES
    )


class Columns:
    """One node for each slot of a grid, each with its exchange of one step."""

    def __init__(
        self,
        pipelines: int,
        stages: int,
        virtual_nodes: int,
        ties: tuple[Tie, ...] = (),
        drawn: random.Random | None = None,
    ) -> None:
        """`drawn`: draws how tensors are synchronised; None: by the rules of an empty strategy."""
        self.entries = drawn_entries(drawn) if drawn is not None else ()
        self.zones = tuple(drawn.randrange(3) for _ in range(pipelines)) if drawn else ()
        self.grid = Grid(pipelines=pipelines, stages=stages)
        self.virtual_nodes, self.ties = virtual_nodes, ties
        self.nodes = {slot: NodeId(str(slot)) for slot in self.grid.slots()}
        self.assignment = Assignment(
            grid=self.grid,
            owners=tuple(self.nodes.values()),
            shadows=(None,) * self.grid.size,
        )
        self.wires = Wires()
        self.generation = 0
        self.transports: dict[NodeId, SimulatedTransport] = {}
        self.mailboxes: dict[Slot, Mailbox] = {}
        self.posted: list[tuple[Mailbox, MessageKey, list[Tensor]]] = []
        """What was sent, as it was then."""
        self.exchanges: dict[Slot, Exchange] = {}
        for slot, node in self.nodes.items():
            self.transports[node] = SimulatedTransport(self.wires, node)
            self.mailboxes[slot] = self.watched(Mailbox(self.transports[node], node))
            self.exchanges[slot] = Exchange(self.plan(slot), STEP)
        self.reassign()

    def watched(self, mailbox: Mailbox) -> Mailbox:
        honest = mailbox.post

        def post(
            key: MessageKey, tensors: Sequence[Tensor] = (), meta: Any = None, **how: bool
        ) -> None:
            honest(key, tensors, meta, **how)
            self.posted.append((mailbox, key, [tensor.clone() for tensor in tensors]))

        mailbox.post = post  # type: ignore[method-assign,assignment]
        return mailbox

    def check_kept(self) -> None:
        """What is kept for a new owner is what was sent, and keeps nothing else in memory."""
        for mailbox, key, tensors in self.posted:
            message = mailbox.kept(key)
            assert message is not None
            for kept, sent in zip(message.tensors, tensors, strict=True):
                assert same_bits(kept, sent)
                if key.kind == "partial" and not self.entries:
                    assert kept.untyped_storage().nbytes() == kept.nbytes

    def reassign(self) -> None:
        self.generation += 1
        members = {n: n for n in self.assignment.members()}
        for slot in self.grid.slots():
            self.mailboxes[slot].assign(self.assignment)
            transport = self.transports[self.nodes[slot]]
            transport.reconfigure(generation=self.generation, members=members)

    def plan(self, slot: Slot) -> ExchangePlan:
        users = {f"{layer}.{name}" for tie in self.ties for layer, name in tie.uses[1:]}
        return ExchangePlan(
            slot=slot,
            grid=self.grid,
            leaves=self.virtual_nodes,
            blocks=blocks(self.virtual_nodes, self.grid.pipelines),
            shapes=tuple(torch.Size(s) for s in SHAPES),
            names=names(slot.stage),
            counts_in_norm=tuple(name not in users for name in names(slot.stage)),
            ties=self.ties,
            entries=self.entries,
            zones=self.zones,
        )

    def fill(self, slot: Slot, draw: random.Random) -> None:
        """Give the slot the gradients of its virtual nodes, in any order, and its losses."""
        exchange = self.exchanges[slot]
        mine = list(exchange.plan.blocks[slot.pipeline])
        if slot.stage == self.grid.stages - 1:
            exchange.losses.update({v: 0.5 + v for v in mine})
        for virtual_node in draw.sample(mine, len(mine)):
            exchange.add_leaf(virtual_node, leaves(slot.stage, virtual_node))
        if draw.random() < 0.5:
            exchange.send_early(self.mailboxes[slot])

    def settle(self, draw: random.Random, alive: list[Slot] | None = None) -> None:
        """Deliver and advance in any order until nothing moves."""
        alive = list(self.grid.slots()) if alive is None else alive
        while True:
            busy = self.wires.busy()
            able = [s for s in alive if self.exchanges[s].can_advance(self.mailboxes[s])]
            if not busy and not able:
                return
            if busy and (not able or draw.random() < 0.7):
                link = draw.choice(busy)
                message = self.wires.queues[link].popleft()
                self.transports[link[1]].arrived.append(message)
                slot = next(s for s, n in self.nodes.items() if n == link[1])
                self.mailboxes[slot].collect(0.0)
            else:
                slot = draw.choice(able)
                exchange, mailbox = self.exchanges[slot], self.mailboxes[slot]
                if exchange.can_sum_early(mailbox) and draw.random() < 0.5:
                    exchange.sum_early(mailbox)
                else:
                    exchange.advance(mailbox)

    def expected(self, stage: int, place: int) -> Tensor:
        return tree_sum(0, self.virtual_nodes, lambda v: leaves(stage, v)[place])

    def check(self) -> None:
        self.check_kept()
        totals = set()
        for slot, exchange in self.exchanges.items():
            assert exchange.stand is Stand.DONE, f"{slot} stands at {exchange.stand!r}"
            if slot.stage == self.grid.stages - 1:
                assert exchange.losses == {v: 0.5 + v for v in range(self.virtual_nodes)}
            for place, gradient in enumerate(exchange.gradient):
                name = names(slot.stage)[place]
                tie = next(
                    (t for t in self.ties for use in t.uses if f"{use[0]}.{use[1]}" == name), None
                )
                if tie is None:
                    expected = self.expected(slot.stage, place)
                else:
                    uses = [
                        self.expected(s, u[0] % len(SHAPES))
                        for s, u in zip(tie.stages, tie.uses, strict=True)
                    ]
                    expected = uses[0]
                    for use in uses[1:]:
                        expected = expected + use
                assert same_bits(gradient, expected), f"{name} on {slot}"
            assert exchange.total_square_known(self.mailboxes[slot])
            totals.add(exchange.total_square(self.mailboxes[slot]))
        assert len(totals) == 1, "all slots know one norm"
        (total,) = totals
        assert total == self.norm()

    def norm(self) -> float:
        """Squares added parameter by parameter in global order, tied ones once."""
        total = 0.0
        for stage in range(self.grid.stages):
            exchange = self.exchanges[Slot(pipeline=0, stage=stage)]
            for gradient, counts in zip(
                exchange.gradient, exchange.plan.counts_in_norm, strict=True
            ):
                if counts:
                    total += squares([gradient])[0]
        return total


SIZES = st.integers(1, 4).flatmap(lambda d: st.tuples(st.just(d), st.integers(d, 9)))


@settings(max_examples=60)
@given(SIZES, st.integers(1, 3), st.integers(0, 10_000))
def test_every_mapping_and_order_gives_the_canonical_sum(
    sizes: tuple[int, int], stages: int, seed: int
) -> None:
    draw = random.Random(seed)
    columns = Columns(sizes[0], stages, sizes[1], drawn=draw)
    for slot in draw.sample(columns.grid.slots(), columns.grid.size):
        columns.fill(slot, draw)
    columns.settle(draw)
    columns.check()


def test_only_of_the_stage_with_losses_do_pipelines_hear_that_sum_nothing() -> None:
    columns, draw = Columns(3, 2, 3), random.Random(0)
    columns.entries = (SyncEntry(exchange=OWNER, owner=0),) * len(SHAPES)
    columns.exchanges = {slot: Exchange(columns.plan(slot), STEP) for slot in columns.nodes}
    for slot in columns.grid.slots():
        columns.fill(slot, draw)
    columns.settle(draw)
    columns.check()
    partials = [key.to for _, key, _ in columns.posted if key.kind == "partial"]
    heard = [{to.pipeline for to in partials if to.stage == stage} for stage in range(2)]
    assert heard == [{0}, {0, 1, 2}]


TIES = (
    Tie(number=0, uses=((0, "p"), (6, "p")), stages=(0, 2)),
    Tie(number=1, uses=((1, "p"), (4, "p"), (7, "p")), stages=(0, 1, 2)),
)


@settings(max_examples=30)
@given(SIZES, st.integers(0, 10_000))
def test_tied_uses_are_added_in_layer_order(sizes: tuple[int, int], seed: int) -> None:
    draw = random.Random(seed)
    columns = Columns(sizes[0], 3, sizes[1], TIES, draw)
    for slot in columns.grid.slots():
        columns.fill(slot, draw)
    columns.settle(draw)
    columns.check()


def test_two_uses_on_one_stage_need_no_message() -> None:
    tie = Tie(number=0, uses=((3, "p"), (3, "p")), stages=(1, 1))
    columns = Columns(1, 2, 1, (tie,))
    draw = random.Random(0)
    for slot in columns.grid.slots():
        columns.fill(slot, draw)
    columns.settle(draw)
    assert all(e.stand is Stand.DONE for e in columns.exchanges.values())


@settings(max_examples=60)
@given(SIZES, st.integers(0, 10_000))
def test_a_slot_with_a_new_owner_does_it_all_again(sizes: tuple[int, int], seed: int) -> None:
    """At any moment one slot's owner goes; its heir starts from the gradients, and takes the rest
    from what the others keep."""
    draw = random.Random(seed)
    columns = Columns(sizes[0], 2, sizes[1], drawn=draw)
    victim = draw.choice(columns.grid.slots())
    others = [s for s in columns.grid.slots() if s != victim]
    heir = draw.choice(others)  # one of the same column sends itself messages
    for slot in others:
        columns.fill(slot, draw)
    if draw.random() < 0.8:
        columns.fill(victim, draw)
        columns.exchanges[victim].advance(columns.mailboxes[victim])
        for link in columns.wires.busy():
            if link[0] == columns.nodes[victim]:
                for _ in range(draw.randint(0, len(columns.wires.queues[link]))):
                    columns.wires.queues[link].pop()
    columns.settle(draw, others)
    columns.assignment = columns.assignment.replace(
        owners={victim: columns.nodes[heir]}, shadows={}
    )
    columns.nodes[victim] = columns.nodes[heir]
    columns.mailboxes[victim] = columns.mailboxes[heir]
    columns.exchanges[victim] = Exchange(columns.plan(victim), STEP)
    columns.reassign()
    for slot in others:
        columns.mailboxes[slot].resend(victim)
    columns.fill(victim, draw)
    columns.settle(draw)
    columns.check()


def test_a_whole_gradient_is_taken_as_it_is_and_passed_on() -> None:
    """A slot that lacks partials goes on with the reduced gradient that another one kept."""
    draw = random.Random(0)
    columns = Columns(3, 2, 4)
    column = [s for s in columns.grid.slots() if s.stage == 1]
    late, source = column[0], column[2]
    columns.fill(late, draw)
    columns.exchanges[late].advance(columns.mailboxes[late])
    assert columns.exchanges[late].stand is Stand.SUMMING
    reduced = [columns.expected(1, place) for place in range(len(SHAPES))]
    mailbox = columns.mailboxes[source]
    key = columns.exchanges[source]._key("reduced", late)
    mailbox.post_to(columns.nodes[late], key, reduced, {"losses": [[v, 0.5 + v] for v in range(4)]})
    columns.settle(draw, [late])
    assert columns.exchanges[late].stand is Stand.DONE
    assert all(
        same_bits(a, b) for a, b in zip(columns.exchanges[late].gradient, reduced, strict=True)
    )
    assert columns.exchanges[late].losses == {v: 0.5 + v for v in range(4)}
    assert columns.mailboxes[column[1]].has(column[1], "reduced", STEP)


def test_who_takes_a_whole_gradient_still_gives_tied_stages_what_they_wait_for() -> None:
    """An heir that copies the reduced gradient has no use of its own to send, but their sum."""
    draw = random.Random(0)
    columns = Columns(2, 3, 4, TIES)
    heir, source = Slot(pipeline=0, stage=0), Slot(pipeline=1, stage=0)
    for slot in columns.grid.slots():
        if slot != heir:
            columns.fill(slot, draw)
    late = [s for s in columns.grid.slots() if s.pipeline == 0 and s != heir]
    columns.fill(heir, draw)
    columns.exchanges[heir].advance(columns.mailboxes[heir])
    columns.settle(draw, [s for s in columns.grid.slots() if s != heir])
    assert {columns.exchanges[s].stand for s in late} == {Stand.TYING}
    # The first owner of the slot did all of its part, but its ties were lost with it.
    columns.exchanges[source].advance(columns.mailboxes[source])
    uses = [columns.expected(s, 0) for s in (0, 2)], [columns.expected(s, 1) for s in (0, 1, 2)]
    reduced = [uses[0][0] + uses[0][1], uses[1][0] + uses[1][1] + uses[1][2]]
    reduced.append(columns.expected(0, 2))
    mailbox = columns.mailboxes[heir]
    for kind in ("partial", "shard"):
        mailbox._inbox[heir].pop((kind, STEP, 1), None)
    key = columns.exchanges[source]._key("reduced", heir)
    columns.mailboxes[source].post_to(
        columns.nodes[heir], key, reduced, {"losses": [[v, 0.5 + v] for v in range(4)]}
    )
    columns.settle(draw)
    columns.check()


def test_numbers_of_ties_do_not_collide() -> None:
    numbers = [tie_index(tie, place) for tie in TIES for place in range(len(tie.uses))]
    assert len(set(numbers)) == len(numbers)
