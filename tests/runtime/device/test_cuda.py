"""The rules of a GPU's device room, on streams and events that only note what they are asked.

No number is computed on a card here: what is shown is what waits for what, and what is kept."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from bamboo.core.events import FaultScope
from bamboo.runtime.device import cuda
from bamboo.runtime.device.cuda import Cuda, _Copy
from bamboo.runtime.node.faults import scope_of
from testbed.waiting import wait_until

pytestmark = pytest.mark.timeout(30)
PLACE = torch.device("cpu", 0)
"""Not equal to the device of a tensor of the host, so that tensors count as being elsewhere."""


class Card:
    """Stands where `torch.cuda` does; `log` has what was asked, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.events: list[Event] = []
        self.names = iter(("down", "up"))
        self.now = self.compute = Stream(self, "compute")
        self.error: Exception | None = None
        self.is_fast = False
        """Whether all is done as soon as it is issued."""

    def said(self) -> list[str]:
        out, self.log = self.log, []
        return out

    @contextmanager
    def stream(self, stream: "Stream") -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    def synchronize(self, place: torch.device) -> None:
        assert place == PLACE
        for event in self.events:
            event.done = True
        self.log.append("idle")


class Stream:
    def __init__(self, card: Card, name: str) -> None:
        self.card, self.name = card, name

    def wait_stream(self, other: "Stream") -> None:
        self.card.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: "Event") -> None:
        self.card.log.append(f"{self.name} waits for {event.name}")

    def synchronize(self) -> None:
        self.card.log.append(f"{self.name} is done")


class Event:
    def __init__(self, card: Card) -> None:
        self.card, self.name, self.done = card, f"event {len(card.events)}", card.is_fast
        card.events.append(self)

    def record(self, stream: Stream) -> None:
        self.card.log.append(f"{self.name} behind {stream.name}")

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        if self.card.error is not None:
            raise self.card.error

    def elapsed_time(self, other: "Event") -> float:
        assert other.done
        return 2.0


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    found = Card()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: found.compute)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: Stream(found, next(found.names)))
    monkeypatch.setattr(torch.cuda, "stream", found.stream)
    monkeypatch.setattr(torch.cuda, "synchronize", found.synchronize)
    monkeypatch.setattr(cuda, "_event", lambda **_: Event(found))
    monkeypatch.setattr(
        cuda, "_pinned", lambda x: found.log.append("pinned") or torch.empty_like(x)
    )
    monkeypatch.setattr(
        Tensor, "record_stream", lambda _, stream: found.log.append(f"kept for {stream.name}")
    )
    return found


def finish(card: Card) -> None:
    for event in card.events:
        event.done = True


def test_two_operations_are_issued_ahead_and_redundant_ones_into_an_empty_queue(card: Card) -> None:
    device = Cuda(PLACE)
    for kind in ("F", "B"):
        assert device.accepts(kind)
        assert device.run(kind, 0, lambda: card.log.append("issued") or 1) == 1
        assert not device.accepts("FR")
        assert not device.accepts("X")
    assert not device.accepts("F")
    assert card.said() == [
        *("event 0 behind compute", "issued", "event 1 behind compute"),
        *("event 2 behind compute", "issued", "event 3 behind compute"),
    ]
    card.events[1].done = True
    assert device.accepts("F")
    assert not device.accepts("BR")
    finish(card)
    assert device.accepts("BR")
    assert device.busy_s == {"F": 2e-3, "B": 2e-3}, "what the events measure"


@pytest.mark.parametrize("kind", ["X", "S", "R"])
def test_what_changes_state_begins_and_ends_with_an_idle_device(card: Card, kind: str) -> None:
    device = Cuda(PLACE)
    device.run("B", 0, lambda: None)
    card.said()
    device.run(kind, 0, lambda: card.log.append("work"))
    assert card.said() == ["idle", "work", "compute is done"]
    assert set(device.busy_s) == {"B", kind}
    assert device.accepts("FR")


def test_a_copy_to_the_host_waits_for_the_computation_and_keeps_its_sources(card: Card) -> None:
    device, source = Cuda(PLACE), torch.arange(3.0)
    staged = device.fetch([source], at_rest=True)
    assert card.said() == ["down waits for compute", "pinned", "event 0 behind down"]
    assert not staged.ready()
    assert staged.sources[0] is source, "its memory must not be given out again"
    finish(card)
    assert staged.ready()
    assert not staged.sources
    assert staged.tensors[0].tolist() == [0.0, 1.0, 2.0]
    assert staged.tensors[0] is not source


def test_a_copy_that_is_kept_and_never_sent_frees_its_sources(card: Card) -> None:
    device = Cuda(PLACE)
    device.woken_by(lambda: None)
    card.is_fast = True
    staged = device.fetch([torch.zeros(1)])
    assert isinstance(staged, _Copy)
    wait_until(lambda: not staged.sources, what="the sources of a copy that is done are freed")


def test_a_copy_to_the_device_is_an_allocation_of_its_own_behind_what_it_comes_from(
    card: Card,
) -> None:
    device = Cuda(PLACE)
    staged = device.fetch([torch.arange(4.0)])
    card.said()
    view = torch.arange(9.0)[1:5]
    mine, other = device.put([staged.tensors[0], view], staged)
    assert card.said() == [
        *("up waits for event 0", "pinned", "pinned", "compute waits for up"),
        *("kept for compute", "kept for compute"),
    ]
    assert other.tolist() == [1.0, 2.0, 3.0, 4.0]
    for tensor in (mine, other):
        assert tensor.storage_offset() == 0
        assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_the_watcher_wakes_for_each_event_and_an_error_of_the_card_is_its_nodes(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[BaseException | None] = []
    woken, over = threading.Event(), threading.Event()
    monkeypatch.setattr(
        threading, "excepthook", lambda told: (broken.append(told.exc_value), over.set())
    )
    device = Cuda(PLACE)
    device.woken_by(woken.set)
    device.run("F", 0, lambda: None)
    assert woken.wait(10)
    card.error = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    device.fetch([torch.zeros(1)])
    assert over.wait(10)
    (error,) = broken
    assert error is not None
    assert scope_of(error) is FaultScope.DEVICE
