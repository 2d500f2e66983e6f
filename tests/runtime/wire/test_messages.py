"""Mailbox: who gets a message, what is kept for whom, and what is forgotten when."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bamboo.ids import NodeId
from bamboo.ports import YIELDING, MessageKey, MessageKind
from bamboo.runtime.device.devices import Cpu
from bamboo.runtime.device.staging import Staged
from bamboo.runtime.wire.messages import Mailbox
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from testbed.simulated import SimulatedTransport, Wires

GRID = Grid(pipelines=1, stages=3)
S0, S1, S2 = GRID.slots()
A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
BEGIN = Assignment(grid=GRID, owners=(A, B, C), shadows=(C, A, B))
B_LOST = BEGIN.replace(owners={S1: A}, shadows={S1: None, S2: None})


class Office:
    """Three nodes with mailbox, and wires that are emptied on demand."""

    def __init__(self) -> None:
        self.wires = Wires()
        self.transports = {n: SimulatedTransport(self.wires, n) for n in (A, B, C)}
        self.mailboxes = {n: Mailbox(transport, n) for n, transport in self.transports.items()}
        self.assign(BEGIN, 1)

    def assign(self, assignment: Assignment, generation: int) -> None:
        for node, mailbox in self.mailboxes.items():
            mailbox.assign(assignment)
            members = {n: n for n in assignment.members()}
            self.transports[node].reconfigure(generation=generation, members=members)

    def carry(self) -> None:
        """Everything that is under way arrives."""
        for link in self.wires.busy():
            self.transports[link[1]].arrived.extend(self.wires.queues[link])
            self.wires.queues[link].clear()
        for mailbox in self.mailboxes.values():
            mailbox.collect(0.0)


def message(kind: MessageKind, to: Slot, source: Slot, step: int, index: int = 0) -> MessageKey:
    return MessageKey(kind=kind, to=to, source=source, step=step, index=index)


ONE = torch.tensor([1.0, 2.0])


@pytest.fixture
def office() -> Office:
    return Office()


def test_a_message_goes_to_the_owner_of_its_slot_only(office: Office) -> None:
    office.mailboxes[A].post(message("act", S1, S0, 0, 3), [ONE], {"x": 1})
    office.carry()
    assert office.mailboxes[B].has(S1, "act", 0, 3)
    assert not office.mailboxes[C].has(S1, "act", 0, 3)
    found = office.mailboxes[B].take(S1, "act", 0, 3)
    assert torch.equal(found.tensors[0], ONE)
    assert found.meta == {"x": 1}


def test_a_message_to_oneself_needs_no_wire(office: Office) -> None:
    office.mailboxes[B].post(message("grad", S1, S2, 0), [ONE])
    assert office.mailboxes[B].has(S1, "grad", 0)
    assert not office.wires.busy()


def test_also_to_the_shadow(office: Office) -> None:
    office.mailboxes[C].post(message("grad", S1, S2, 0), [ONE], also_shadow=True)
    office.carry()
    assert office.mailboxes[B].has(S1, "grad", 0)
    assert office.mailboxes[A].has(S1, "grad", 0)


def test_the_first_message_of_a_key_wins_and_later_ones_are_dropped(office: Office) -> None:
    key = message("act", S1, S0, 0)
    office.mailboxes[A].post(key, [ONE])
    office.mailboxes[A].post(key, [ONE + 1])
    office.carry()
    assert torch.equal(office.mailboxes[B].take(S1, "act", 0).tensors[0], ONE)
    office.mailboxes[A].post(key, [ONE + 2])
    office.carry()
    assert not office.mailboxes[B].has(S1, "act", 0), "a message that was taken does not come again"


def test_what_was_sent_is_kept_and_sent_again_to_the_new_owner(office: Office) -> None:
    for index in range(3):
        office.mailboxes[C].post(message("grad", S1, S2, 0, index), [ONE + index])
    office.mailboxes[C].post(message("act", S0, S2, 0), [ONE])
    office.carry()
    office.assign(B_LOST, 2)
    assert office.mailboxes[C].resend(S1) == 3
    office.carry()
    for index in range(3):
        assert torch.equal(office.mailboxes[A].take(S1, "grad", 0, index).tensors[0], ONE + index)
    assert not office.mailboxes[A].has(S0, "act", 0, 1)


def test_the_stash_is_read_by_key(office: Office) -> None:
    key = message("act", S1, S0, 0, 2)
    assert office.mailboxes[A].kept(key) is None
    office.mailboxes[A].post(key, [ONE])
    kept = office.mailboxes[A].kept(key)
    assert kept is not None
    assert torch.equal(kept.tensors[0], ONE)
    assert office.mailboxes[A].kept(message("act", S1, S0, 1, 2)) is None


class Counting(Cpu):
    """Notes how many tensors are put on it."""

    placed = 0

    def put(self, tensors: Sequence[Tensor], after: Staged | None = None) -> tuple[Tensor, ...]:
        self.placed += len(tensors)
        return super().put(tensors, after)


def test_gradients_that_a_replica_cannot_take_yet_wait_on_the_host(office: Office) -> None:
    device = Counting()
    waiting = office.mailboxes[A] = Mailbox(office.transports[A], A, device)
    waiting.assign(BEGIN)
    sender = office.mailboxes[B]
    # Node A is to shadow two slots of node B, which it gets in one message.
    office.assign(BEGIN.replace(owners={S2: B}, shadows={S1: A, S2: A}), 2)
    for step in range(3):
        sender.ship(S1, step, [ONE], {"of": 1}, more=True)
        sender.ship(S2, step, [ONE + 1, ONE + 2], {"of": 2})
        sender.post_to(A, message("follow", S1, S1, 0, step), [ONE + 3], {})
    office.carry()
    assert waiting.has(S2, "ship", 2)
    assert device.placed == 0
    first, second = waiting.take(S1, "ship", 1), waiting.take(S2, "ship", 1)
    assert (first.meta, second.meta) == ({"of": 1}, {"of": 2})
    assert [x.tolist() for x in (*first.tensors, *second.tensors)] == [
        (ONE + n).tolist() for n in range(3)
    ]
    _, followed = waiting.of_feeds[0]
    assert waiting.opened(followed, "follow").tensors[0].tolist() == (ONE + 3).tolist()
    assert device.placed == 4


def test_what_goes_to_a_node_directly_is_not_kept(office: Office) -> None:
    office.mailboxes[B].post_to(A, message("ship", S1, S1, 0), [ONE])
    office.carry()
    assert office.mailboxes[A].has(S1, "ship", 0)
    assert office.mailboxes[B].stash_bytes == 0
    assert office.mailboxes[B].resend(S1) == 0


def test_nothing_is_forgotten_before_every_slot_is_safe(office: Office) -> None:
    a = office.mailboxes[A]
    for step in range(3):
        a.post(message("act", S1, S0, step), [ONE])
    assert a.stash_bytes == 24
    for slot in (S0, S1):
        a.declare_safe(slot, 2)
    a.prune({})
    assert a.safe_step == 0
    assert a.stash_bytes == 24
    office.mailboxes[C].declare_safe(S2, 1)
    office.carry()
    a.prune({})
    assert a.safe_step == 1
    assert a.kept(message("act", S1, S0, 0)) is None
    assert a.kept(message("act", S1, S0, 1)) is not None
    assert (a.stash_bytes, a.peak_stash_bytes) == (16, 24)


def test_pruning_forgets_arrived_messages_too(office: Office) -> None:
    office.mailboxes[A].post(message("act", S1, S0, 0), [ONE])
    office.mailboxes[A].post(message("act", S1, S0, 1), [ONE])
    office.carry()
    b = office.mailboxes[B]
    for slot in GRID.slots():
        b.declare_safe(slot, 1)
    b.prune({})
    assert not b.has(S1, "act", 0)
    assert b.has(S1, "act", 1)


def test_an_acknowledgement_never_goes_back(office: Office) -> None:
    office.mailboxes[C].declare_safe(S2, 5)
    office.mailboxes[C].declare_safe(S2, 3)
    office.carry()
    assert {mailbox.safe[S2] for mailbox in office.mailboxes.values()} == {5}


def test_a_shadows_hash_comes_with_its_acknowledgement(office: Office) -> None:
    office.mailboxes[A].declare_safe(S1, 1, {"hash": "abc"})
    office.carry()
    assert office.mailboxes[B].replica_hashes == {(S1, 1): "abc"}


def test_a_tensor_that_changes_later_was_sent_as_it_was(office: Office) -> None:
    """What is posted across a wire is copied by the wire, never shared with the receiver."""
    tensor = ONE.clone()
    office.mailboxes[A].post(message("act", S1, S0, 0), [tensor])
    tensor.add_(1)
    office.carry()
    assert torch.equal(office.mailboxes[B].take(S1, "act", 0).tensors[0], ONE)


@pytest.mark.parametrize(
    ("kind", "where_it_came"),
    [("act", False), ("grad", False), ("tie", False), ("partial", True), ("ship", True)],
)
def test_what_a_matrix_product_takes_is_memory_of_torchs(
    office: Office, kind: MessageKind, where_it_came: bool
) -> None:
    office.mailboxes[A].post(message(kind, S1, S0, 5), [ONE])
    (sent,) = office.wires.queues[A, B, kind in YIELDING]
    office.carry()
    (tensor,) = office.mailboxes[B].take(S1, kind, 5).tensors
    came_at = torch.frombuffer(sent.buffers[0].data, dtype=torch.float32).data_ptr()
    assert torch.equal(tensor, ONE)
    assert (tensor.data_ptr() == came_at) is where_it_came


@given(st.integers(0, 10_000))
def test_bytes_in_the_stash_are_what_is_kept(seed: int) -> None:
    """In any order of posts, acknowledgements and prunings."""
    draw = random.Random(seed)
    office = Office()
    mailbox = office.mailboxes[A]
    kept: dict[MessageKey, int] = {}
    peak = 0
    for _ in range(30):
        if draw.random() < 0.6:
            key = message("act", S1, S0, mailbox.safe_step + draw.randrange(2), draw.randrange(40))
            if key not in kept:
                size = draw.randrange(5)
                mailbox.post(key, [torch.zeros(size)])
                kept[key] = 4 * size
        else:
            slot = draw.choice(GRID.slots())
            mailbox.declare_safe(slot, mailbox.safe[slot] + draw.randrange(2))
            mailbox.prune({})
            kept = {k: size for k, size in kept.items() if k.step >= mailbox.safe_step}
        peak = max(peak, sum(kept.values()))
        assert mailbox.stash_bytes == sum(kept.values())
        assert all(mailbox.kept(key) is not None for key in kept)
    assert mailbox.peak_stash_bytes == peak


def test_a_message_of_the_new_era_outlives_its_beginning(office: Office) -> None:
    """Who reads the log later than others hears of the new era before he reads that it began."""
    old, new = message("act", S1, S0, 4), message("act", S1, S0, 5)
    office.mailboxes[A].post(old, (ONE,))
    office.carry()
    office.transports[A].reconfigure(generation=3, members={n: n for n in (A, B, C)})
    office.mailboxes[A].post(new, (ONE,))
    pull = message("pull", S1, S1, 0)
    office.mailboxes[A].post_to(B, pull, (), {"since": 9})
    office.carry()
    office.mailboxes[B].begin_era(3, BEGIN, 5)
    assert not office.mailboxes[B].has(S1, "act", 4)
    assert office.mailboxes[B].has(S1, "act", 5)
    assert [key for key, _ in office.mailboxes[B].of_transfers] == [pull]
