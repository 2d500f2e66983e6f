"""A CUDA GPU: operations are issued ahead of it, and copies run beside them.

    compute stream   F B F B ...             one stream, so one order of all that decides bits
    copy streams     device to host, host to device, each waits for the compute stream by an event
    watcher thread   waits for events and wakes the transport

Rules. (1) At most AHEAD forwards and backwards are issued ahead of the device, and redundant ones
only when it has nothing to do. (2) An operation that changes state or reads a number begins and
ends with an idle device. (3) Each tensor that is put on the device is an allocation of its own,
because kernels take other ways for other alignments. (4) A tensor is kept until the copy that reads
it is done.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from bamboo.runtime.device.staging import Staged

T = TypeVar("T")
AHEAD = 2
"""Forwards and backwards that are issued and not done: one runs, and the next is there when it
ends. With 4 or 16 a step of 12 layers of width 1024 took as long (H200, 2026-11-27)."""
QUEUED = frozenset({"F", "B", "FR", "BR", "E"})
"""Operations that may still run when their call returns."""
REDUNDANT = frozenset({"FR", "BR"})


@dataclass(slots=True)
class _Copy:
    """A copy from the device to pinned memory of the host."""

    tensors: tuple[Tensor, ...]
    event: torch.cuda.Event
    sources: tuple[Tensor, ...]
    """Kept until the copy is done."""

    def ready(self) -> bool:
        """Whether the copy is complete."""
        if self.sources and _is_done(self.event):
            self.sources = ()
        return not self.sources


@dataclass(slots=True)
class _Issued:
    """An operation that was issued."""

    kind: str
    begun: torch.cuda.Event
    done: torch.cuda.Event


@dataclass(kw_only=True)
class _Counters:
    overruns: int = 0
    busy_s: dict[str, float] = field(default_factory=dict)


class Cuda(_Counters):
    """One GPU, used by the thread that trains. `busy_s` is what its own events measure."""

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self.place = place
        self._compute = torch.cuda.current_stream(place)
        self._down = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
        self._up = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
        self._issued: deque[_Issued] = deque()
        self._events: queue.SimpleQueue[tuple[torch.cuda.Event, _Copy | None]] = queue.SimpleQueue()
        self._wake: Callable[[], None] | None = None

    def woken_by(self, wake: Callable[[], None]) -> None:
        """Start the thread that waits for events."""
        self._wake = wake
        threading.Thread(target=self._watch, name="device", daemon=True).start()

    def _watch(self) -> None:
        while True:
            event, copy = self._events.get()
            event.synchronize()
            if copy is not None:
                copy.ready()  # one that is only kept, and not sent, is asked by nobody else
            if self._wake is not None:
                self._wake()

    def _watched(self, event: torch.cuda.Event, copy: _Copy | None = None) -> None:
        if self._wake is not None:  # else nobody takes it out
            self._events.put((event, copy))

    # ------------------------------------------------------------------ operations

    def accepts(self, kind: str) -> bool:
        """Whether there is room in the queue; see the rules at the top of the file."""
        while self._issued and _is_done(self._issued[0].done):
            self._count(self._issued.popleft())
        if kind in QUEUED and kind not in REDUNDANT:
            return len(self._issued) < AHEAD
        return not self._issued

    def run(self, kind: str, stage: int, work: Callable[[], T], layers: range | None = None) -> T:
        """Issue an operation; see `Device`."""
        del stage, layers
        if kind in QUEUED:
            issued = _Issued(kind, _event(timed=True), _event(timed=True))
            issued.begun.record(self._compute)
            out = work()
            issued.done.record(self._compute)
            self._issued.append(issued)
            self._watched(issued.done)
            return out
        self.settle()
        begin_s = time.perf_counter()
        out = work()
        self._compute.synchronize()
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + time.perf_counter() - begin_s
        return out

    def _count(self, issued: _Issued) -> None:
        seconds = issued.begun.elapsed_time(issued.done) / 1e3
        self.busy_s[issued.kind] = self.busy_s.get(issued.kind, 0.0) + seconds

    def settle(self) -> None:
        """Wait for the device, copies included."""
        torch.cuda.synchronize(self.place)
        while self._issued:
            self._count(self._issued.popleft())

    def lay_out(self, cut: Sequence[int]) -> None:
        """Does nothing: no duration here depends on the cut."""

    def memory(self) -> dict[str, int]:
        """Bytes now and at most so far: of tensors, and of what torch keeps for tensors."""
        return {
            "allocated": torch.cuda.memory_allocated(self.place),
            "peak_allocated": torch.cuda.max_memory_allocated(self.place),
            "reserved": torch.cuda.memory_reserved(self.place),
            "peak_reserved": torch.cuda.max_memory_reserved(self.place),
        }

    # ------------------------------------------------------------------ copies

    def fetch(self, tensors: Sequence[Tensor], *, at_rest: bool = False) -> Staged:
        """Copy to pinned memory, behind all that was issued so far, even if `at_rest`: chunks of
        state may have been joined from several tensors on the compute stream. What lies on the host
        stays itself, because nothing there is changed in place."""
        del at_rest
        self._down.wait_stream(self._compute)
        with torch.cuda.stream(self._down):
            copies = tuple(
                _pinned(x).copy_(x, non_blocking=True) if x.device.type == self.place.type else x
                for x in tensors
            )
            event = _event()
            event.record(self._down)
        copy = _Copy(copies, event, tuple(tensors))
        if tensors:
            self._watched(event, copy)
        return copy

    def put(self, tensors: Sequence[Tensor], after: Staged | None = None) -> tuple[Tensor, ...]:
        """Copy to the device. The compute stream waits for the copy, the host does not."""
        if all(tensor.device == self.place for tensor in tensors):
            return tuple(tensors)
        if isinstance(after, _Copy):
            self._up.wait_event(after.event)
        sources = [x if x.is_pinned() else _pinned(x).copy_(x) for x in tensors]
        with torch.cuda.stream(self._up):
            out = [
                torch.empty(x.shape, dtype=x.dtype, device=self.place).copy_(x, non_blocking=True)
                for x in sources
            ]
        self._compute.wait_stream(self._up)
        for tensor in out:
            tensor.record_stream(self._compute)
        return tuple(out)


def _event(*, timed: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]


def _is_done(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]


def _pinned(like: Tensor) -> Tensor:
    """Memory of torch's pool of pinned memory, which gives a block out again only when the copies
    that used it are done."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
