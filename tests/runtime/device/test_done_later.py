"""A device that is done later than its calls return, as a GPU is: what leaves a node is what the
operations made, however late it is copied; and each way to get that wrong is seen."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bamboo.core.state import initial_state
from bamboo.ids import NodeId, RunId
from bamboo.ports import MessageKey
from bamboo.runtime.device import virtual
from bamboo.runtime.device.lagging import Lagging, _Copy
from bamboo.runtime.device.staging import OnHost, Staged
from bamboo.runtime.wire import messages
from bamboo.runtime.wire.frames import SENDABLE, to_tensor
from bamboo.runtime.wire.messages import Mailbox, Message
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from testbed.simulated import SimulatedTransport, Wires, World
from tests.runtime.test_interleavings import calmly, job, longer, victim

pytestmark = pytest.mark.timeout(120)

GRID = Grid(pipelines=1, stages=2)
S0, S1 = GRID.slots()
A, B = NodeId("a"), NodeId("b")
BEGIN = Assignment(grid=GRID, owners=(A, B), shadows=(B, A))


class Clock:
    """Stands still until it is turned."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Sender:
    """Node a with a mailbox on a device that is done later."""

    def __init__(self) -> None:
        self.clock, self.wires = Clock(), Wires()
        self.device = Lagging(clock=self.clock, most_delay_s=1.0)
        self.transport = SimulatedTransport(self.wires, A)
        self.transport.reconfigure(generation=1, members={A: A, B: B})
        self.mailbox = Mailbox(self.transport, A, self.device)
        self.mailbox.assign(BEGIN)

    def post(self, index: int, value: float) -> Tensor:
        tensor = torch.full((3,), value)
        key = MessageKey(kind="act", to=S1, source=S0, step=0, index=index)
        self.mailbox.post(key, [tensor])
        return tensor

    def sent(self) -> list[tuple[int, int, list[float]]]:
        """(index, generation, values) of each message that has left."""
        return [
            (
                m.key.index,
                m.generation,
                to_tensor(m.buffers[0]).tolist(),
            )
            for queue in self.wires.queues.values()
            for m in queue
        ]


def test_a_message_leaves_once_its_copy_is_made_and_in_its_order() -> None:
    sender = Sender()
    for index in range(3):
        sender.post(index, float(index))
    sender.mailbox.collect(0.0)
    assert not sender.sent()
    sender.clock.now_s = 10.0
    sender.mailbox.collect(0.0)
    assert sender.sent() == [(i, 1, [float(i)] * 3) for i in range(3)]


def test_a_copy_has_other_numbers_until_it_is_made_whatever_the_type() -> None:
    sender = Sender()
    tensors = [torch.tensor([1, 0, 3]).to(dtype) for dtype in SENDABLE]
    copy = sender.device.fetch(tensors)
    assert not any(torch.equal(a, b) for a, b in zip(copy.tensors, tensors, strict=True))
    sender.clock.now_s = 10.0
    assert copy.ready()
    there = sender.device.put(copy.tensors, copy)
    assert all(torch.equal(a, b) for a, b in zip(there, tensors, strict=True))


def test_a_message_without_tensors_does_not_overtake() -> None:
    sender = Sender()
    sender.post(0, 1.0)
    sender.mailbox.declare_safe(S0, 1)
    assert not [q for q in sender.wires.queues.values() if q]
    sender.clock.now_s = 10.0
    sender.mailbox.collect(0.0)
    (queue,) = sender.wires.queues.values()
    assert [m.key.kind for m in queue] == ["act", "ack"]


def test_what_is_kept_is_sent_again_as_it_was() -> None:
    sender = Sender()
    tensor = sender.post(0, 4.0)
    sender.mailbox.resend(S1)  # before the first copy is made
    sender.device.settle()
    tensor.zero_()  # whatever becomes of the tensor on the device
    sender.mailbox.collect(0.0)
    sender.mailbox.resend(S1)
    assert sender.sent() == [(0, 1, [4.0] * 3)] * 3


def test_a_message_to_itself_after_a_takeover_has_its_contents() -> None:
    sender = Sender()
    sender.post(0, 5.0)
    sender.mailbox.assign(BEGIN.replace(owners={S1: A}, shadows={S0: None, S1: None}))
    sender.mailbox.resend(S1)
    assert sender.mailbox.take(S1, "act", 0, 0).tensors[0].tolist() == [5.0] * 3


def test_a_new_era_forgets_what_has_not_left() -> None:
    sender = Sender()
    sender.post(0, 1.0)
    sender.mailbox.begin_era(2, BEGIN, 0)
    sender.clock.now_s = 10.0
    sender.mailbox.collect(0.0)
    assert not sender.sent()


def test_a_few_operations_are_issued_ahead_and_redundant_ones_wait_for_an_idle_device() -> None:
    sender = Sender()
    device = sender.device
    assert device.accepts("FR")
    for kind in ("F", "B"):
        assert device.accepts(kind)
        device.run(kind, 0, lambda: None)
        assert not device.accepts("FR")
        assert not device.accepts("X")
    assert not device.accepts("F")
    sender.clock.now_s = 10.0
    assert device.accepts("BR")


def test_what_reads_a_number_waits_for_an_idle_device() -> None:
    device = Sender().device
    device.run("B", 0, lambda: None)
    assert not device.accepts("X")
    assert not device.accepts("S")


def test_a_step_changes_nothing_that_is_yet_to_be_copied() -> None:
    sender = Sender()
    parameter = torch.full((3,), 6.0)
    key = MessageKey(kind="state", to=S0, source=S0, step=0, index=0)
    sender.mailbox.post_to(B, key, [parameter])
    sender.device.run("S", 0, parameter.zero_)
    sender.mailbox.collect(0.0)
    assert sender.sent() == [(0, 1, [6.0] * 3)]


def test_what_is_posted_leaves_in_its_own_generation() -> None:
    sender = Sender()
    state = initial_state(run=RunId("r"), grid=GRID, redundancy="stash")
    for generation in (1, 2):
        sender.mailbox.connect(replace(state, generation=generation))
        sender.transport.reconfigure(generation=generation, members={A: A, B: B})
        sender.post(generation, 7.0)
    assert not sender.sent(), "a new generation waits for no device"
    sender.clock.now_s = 10.0
    sender.mailbox.collect(0.0)
    assert sender.sent() == [(1, 1, [7.0] * 3), (2, 2, [7.0] * 3)]


def test_state_waits_for_no_operation() -> None:
    sender = Sender()
    for _ in range(50):
        sender.device.run("F", 0, lambda: None)
    sender.post(0, 1.0)
    key = MessageKey(kind="state", to=S0, source=S0, step=0)
    sender.mailbox.post_to(B, key, [torch.full((3,), 2.0)])
    sender.clock.now_s = sender.device.most_delay_s
    sender.mailbox.collect(0.0)
    assert sender.sent() == [(0, 1, [2.0] * 3)]


# ---------------------------------------------------------------- planted faults


def _copy_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Copy, "ready", lambda self: True)


def _send_without_asking(patch: pytest.MonkeyPatch) -> None:
    def send(mailbox: Mailbox) -> None:
        while mailbox._orders[0]:
            posted = mailbox._orders[0].popleft()
            made = replace(posted.message, copy=OnHost(posted.message.tensors))
            mailbox._orders[0].appendleft(posted._replace(message=made))
            plain(mailbox)

    plain = Mailbox._send_ready
    patch.setattr(Mailbox, "_send_ready", send)


def _take_without_waiting(patch: pytest.MonkeyPatch) -> None:
    def put(
        device: Lagging, tensors: Sequence[Tensor], after: Staged | None = None
    ) -> tuple[Tensor, ...]:
        del device, after
        return tuple(tensor.clone() for tensor in tensors)

    patch.setattr(Lagging, "put", put)


def _step_before_the_copies_are_made(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lagging, "settle", lambda device: device._ends_s.clear())


def _output_memory_used_again(patch: pytest.MonkeyPatch) -> None:
    def post(
        mailbox: Mailbox, key: MessageKey, tensors: Sequence[Tensor] = (), *rest: Any, **more: Any
    ) -> None:
        plain(mailbox, key, tensors, *rest, **more)
        if key.kind == "grad" and mailbox.assignment.owner(key.to) != mailbox._me:
            for tensor in tensors:
                tensor.zero_()

    plain = Mailbox.post
    patch.setattr(Mailbox, "post", post)


def _keep_over_eras(patch: pytest.MonkeyPatch) -> None:
    def begin(mailbox: Mailbox, era: int, assignment: Assignment, step: int) -> None:
        held = list(mailbox._orders[0])
        plain(mailbox, era, assignment, step)
        mailbox._orders[0].extend(held)

    plain = Mailbox.begin_era
    patch.setattr(Mailbox, "begin_era", begin)


def _take_along_to_a_new_generation(patch: pytest.MonkeyPatch) -> None:
    def send(transport: SimulatedTransport, *message: Any) -> bool:
        return plain(transport, *message[:-1])

    plain = SimulatedTransport.send
    patch.setattr(SimulatedTransport, "send", send)


def _keep_what_the_device_has(patch: pytest.MonkeyPatch) -> None:
    """The stash has the tensor itself, whose memory is written again, and no copy of it."""

    def post(
        mailbox: Mailbox, key: MessageKey, tensors: Sequence[Tensor] = (), *rest: Any, **more: Any
    ) -> None:
        plain(mailbox, key, tensors, *rest, **more)
        mailbox._stash[key.step][key] = Message(tensors=tuple(tensors))

    plain = Mailbox.post
    patch.setattr(Mailbox, "post", post)


def _acknowledge_at_issue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(messages, "AT_REST", messages.AT_REST | {"ack"})


def _state_behind_operations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(messages, "AT_REST", frozenset())


def _read_a_number_of_a_busy_device(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(virtual, "QUEUED", virtual.QUEUED | {"X"})


def _no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lagging, "accepts", lambda device, kind: True)


def _any_order() -> None:
    """Runs that lose a node give the calm run's bits, in a few orders."""
    for seed in range(6):
        draw = random.Random(seed)
        modes, steps = draw.choice(("stash", "eager")), 4
        settings = longer(job(stages=3, redundancy=modes, device="lagging"), steps)
        world = World(settings, draw)
        node = victim(world)
        if node is not None:
            world.kill(node)
        world.run(until=lambda: False)
        calmly(world, settings, steps)


# Each is seen by a test of its own; that runs see two of them as well takes a while, for a run
# that stands still is given many turns, and is shown by `make chaos`.
PLANTED = (
    (_copy_too_early, test_a_message_leaves_once_its_copy_is_made_and_in_its_order),
    pytest.param(_copy_too_early, _any_order, marks=pytest.mark.full),
    (_send_without_asking, test_a_message_leaves_once_its_copy_is_made_and_in_its_order),
    pytest.param(_send_without_asking, _any_order, marks=pytest.mark.full),
    (_take_without_waiting, test_a_message_to_itself_after_a_takeover_has_its_contents),
    (_step_before_the_copies_are_made, test_a_step_changes_nothing_that_is_yet_to_be_copied),
    (_keep_over_eras, test_a_new_era_forgets_what_has_not_left),
    (_take_along_to_a_new_generation, test_what_is_posted_leaves_in_its_own_generation),
    (_output_memory_used_again, _any_order),
    (_keep_what_the_device_has, test_what_is_kept_is_sent_again_as_it_was),
    (_acknowledge_at_issue, test_a_message_without_tensors_does_not_overtake),
    (_state_behind_operations, test_state_waits_for_no_operation),
    (_read_a_number_of_a_busy_device, test_what_reads_a_number_waits_for_an_idle_device),
    (_no_limit, test_a_few_operations_are_issued_ahead_and_redundant_ones_wait_for_an_idle_device),
)


@pytest.mark.parametrize(("plant", "shows"), PLANTED, ids=lambda one: one.__name__.strip("_"))
def test_a_planted_fault_is_seen(
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    shows: Callable[[], None],
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        shows()
