"""Faults to plant in a forked worker, so that tests can show that the comparison turns red.

Each is a function of one text argument that changes the program of its own process only. None is
ever imported by the program itself.
"""

import os
import time
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bamboo.runtime.node.diagnose
import bamboo.runtime.step.stage
from bamboo.ids import NodeId
from bamboo.models import Gradients, Tensors, run_layers
from bamboo.ports import Buffer, Delivered, MessageKey, PeerGone
from bamboo.runtime.node.preempt import Preemptions
from bamboo.runtime.node.records import ReplicaCheck
from bamboo.runtime.state.transfer import Transfers
from bamboo.runtime.step.bucket_sums import BucketSum
from bamboo.runtime.step.operations import Operations
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.stage import Pending, Stage
from bamboo.runtime.wire.link import Due, VirtualLink
from bamboo.runtime.wire.messages import Mailbox
from bamboo.runtime.wire.transport import ZmqTransport
from bamboo.topology.slots import Slot
from testbed.waiting import wait_until

FLIPPED = 1 << 12
"""In the middle of a float32's fraction: the lowest bit may be rounded away before it matters."""


def stale_replica(from_step: str) -> None:
    """From that step on the shadow acknowledges reduced gradients and does not step on them."""
    honest = Operations._update

    def update(self: Operations, run: SlotRun, gradient: list[Tensor], factor: float) -> None:
        if run.owner or run.step < int(from_step):
            honest(self, run, gradient, factor)

    Operations._update = update  # type: ignore[method-assign]


def wrong_order(unused: str) -> None:
    """Backwards of microbatches 1 and 2 change places. (0 and 1 would give the same sum.)"""
    del unused
    honest = SlotRun.__init__

    def swapped(self: SlotRun, **arguments: Any) -> None:
        honest(self, **arguments)
        program = list(self.program)
        one, two = (
            next(i for i, op in enumerate(program) if op.kind == "B" and op.microbatch == m)
            for m in (1, 2)
        )
        program[one], program[two] = program[two], program[one]
        self.program = tuple(program)

    SlotRun.__init__ = swapped  # type: ignore[method-assign]


def dropped_resend(unused: str) -> None:
    """What is kept for a slot with a new owner is not sent again."""
    del unused

    def resend(self: Mailbox, slot: object) -> int:
        del self, slot
        return 0

    Mailbox.resend = resend  # type: ignore[method-assign]


def flipped_bit(where: str) -> None:
    """`kind,step,index`: one bit of one number in that letter is another one."""
    kind, step, index = where.split(",")
    honest = Mailbox._route

    def route(
        self: Mailbox, node: Any, key: MessageKey, message: Any, *, at_rest: bool = False
    ) -> None:
        if (key.kind, key.step, key.index) == (kind, int(step), int(index)):
            tensors = [t.clone() for t in message.tensors]
            tensors[0].view(-1)[:1].view(torch.int32).bitwise_xor_(FLIPPED)
            message = type(message)(tensors=tuple(tensors), meta=message.meta)
        honest(self, node, key, message, at_rest=at_rest)

    Mailbox._route = route  # type: ignore[method-assign]


def never_sent(where: str) -> None:
    """`kind,step,index`: that letter is not sent, however often it is made."""
    kind, step, index = where.split(",")
    honest = Mailbox._route

    def route(
        self: Mailbox, node: Any, key: MessageKey, message: Any, *, at_rest: bool = False
    ) -> None:
        if (key.kind, key.step, key.index) != (kind, int(step), int(index)):
            honest(self, node, key, message, at_rest=at_rest)

    Mailbox._route = route  # type: ignore[method-assign]


def doubled_gradient(where: str) -> None:
    """`step,microbatch`: the backward of that microbatch counts twice."""
    doubled = tuple(map(int, where.split(",")))
    honest_forward, honest_backward = Stage.forward, Stage.backward_parts
    hit: list[Pending] = []

    def forward(
        self: Stage, x: Tensors, step: int, microbatch: int, cuts: Sequence[int] = ()
    ) -> Pending:
        pending = honest_forward(self, x, step, microbatch, cuts)
        if (step, microbatch) == doubled:
            hit.append(pending)
        return pending

    def backward(
        self: Stage, pending: Pending, gradients: Gradients | None
    ) -> Iterator[tuple[range, Callable[[], Gradients]]]:
        for layers, run_part in honest_backward(self, pending, gradients):
            doubles = any(one is pending for one in hit)
            yield layers, partial(twice, self, run_part) if doubles else run_part

    def twice(self: Stage, run_part: Callable[[], Gradients]) -> Gradients:
        before = [None if p.grad is None else p.grad.clone() for p in self.params]
        out = run_part()
        for p, old in zip(self.params, before, strict=True):
            if p.grad is not None:
                p.grad.add_(p.grad if old is None else p.grad - old)
        return out

    Stage.forward, Stage.backward_parts = forward, backward  # type: ignore[method-assign]


def repeated_microbatch(where: str) -> None:
    """`step,left out,again`: in that step one microbatch is computed in the place of another."""
    step, left_out, again = map(int, where.split(","))
    honest = SlotRun.next_step

    def next_step(self: SlotRun) -> None:
        honest(self)
        true = self.batch.microbatches_of(self.plan.blocks[self.slot.pipeline])
        wrong = tuple(again if m == left_out else m for m in true)
        self.microbatches = wrong if self.step == step else true

    SlotRun.next_step = next_step  # type: ignore[method-assign]


class _Overflowing(torch.autograd.Function):
    """The identity, whose gradient is not finite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * float("inf")


def overflow(where: str) -> None:
    """`output|gradient,step,microbatch,layer`: that layer's output, or the gradient it takes, is
    not finite then."""
    what, *numbers = where.split(",")
    step, microbatch, layer = map(int, numbers)

    def run(
        layers: Sequence[tuple[int, nn.Module]],
        x: Tensors,
        again: Container[int] = (),
        /,
        *,
        seed: int,
        **at: Any,
    ) -> Tensors:
        for one in layers:
            x = run_layers([one], x, again, seed=seed, **at)
            if (one[0], at["step"], at["microbatch"]) == (layer, step, microbatch):
                if what == "output":
                    x = tuple(t * float("inf") for t in x)
                else:
                    x = tuple(
                        _Overflowing.apply(t) if t.requires_grad else t  # type: ignore[no-untyped-call]
                        for t in x
                    )
        return x

    bamboo.runtime.step.stage.run_layers = run  # type: ignore[attr-defined]
    bamboo.runtime.node.diagnose.run_layers = run  # type: ignore[attr-defined]


def noted_comparisons(folder: str) -> None:
    """No fault: each comparison of owner and shadow leaves `slot step` in a file of `folder`."""
    honest = ReplicaCheck.difference
    noted: set[tuple[object, int]] = set()

    def difference(self: ReplicaCheck, mailbox: Mailbox) -> str | None:
        new = (mailbox.replica_hashes.keys() & self._own.keys()) - noted
        noted.update(new)
        with (Path(folder) / f"comparisons-{os.getpid()}").open("a") as file:
            file.writelines(f"{slot} {step}\n" for slot, step in new)
        return honest(self, mailbox)

    ReplicaCheck.difference = difference  # type: ignore[method-assign]


def counted_bytes(folder: str) -> None:
    """No fault: each message to another node leaves `kind bytes`, of its tensors, in a file of
    `folder`."""
    honest = ZmqTransport.send
    file = (Path(folder) / f"sent-{os.getpid()}").open("a", buffering=1)

    def send(
        self: ZmqTransport, node: NodeId, key: MessageKey, buffers: Sequence[Buffer], *rest: Any
    ) -> bool:
        file.write(f"{key.kind} {sum(buffer.data.nbytes for buffer in buffers)}\n")
        return honest(self, node, key, buffers, *rest)

    ZmqTransport.send = send  # type: ignore[method-assign, assignment]


def slow_link(where: str) -> None:
    """`node,times`: what is sent to that node is so many times as long on the virtual link."""
    slow, times = where.split(",")
    honest = VirtualLink.due

    def due(
        self: VirtualLink, to: NodeId, size_bytes: int, now_s: float, *, yields: bool = False
    ) -> Due:
        longer = round(float(times) * size_bytes) if to == slow else size_bytes
        return honest(self, to, longer, now_s, yields=yields)

    VirtualLink.due = due  # type: ignore[method-assign]


def slow_sums(times: str) -> None:
    """What this node computes for an exchange takes so many times as long."""
    honest = BucketSum.advance

    def advance(self: BucketSum, mailbox: Mailbox, *, early: bool = False) -> None:
        begin_s = time.thread_time()
        honest(self, mailbox, early=early)
        until_s = begin_s + float(times) * (time.thread_time() - begin_s)
        while time.thread_time() < until_s:
            pass

    BucketSum.advance = advance  # type: ignore[method-assign]


def held(where: str) -> None:
    """No fault: `phase,step,folder`: the owner of a slot that reaches that phase leaves the file
    `held` in `folder`, and goes on once there is `go`; after half a minute without it, it fails."""
    held_phase, held_step, folder = where.split(",")
    honest = Preemptions.at
    held_file, go_file = Path(folder) / "held", Path(folder) / "go"

    def at(self: Preemptions, phase: str, slot: Slot, step: int, microbatch: int) -> None:
        if (phase, step) == (held_phase, int(held_step)) and not held_file.exists():
            held_file.touch()
            wait_until(go_file.exists, what="that the test goes on", timeout_s=30, poll_s=0.002)
        honest(self, phase, slot, step, microbatch)

    Preemptions.at = at  # type: ignore[method-assign]


def crash(where: str) -> None:
    """`step`: a layer raises there, as a user's own may."""
    crashes_at = int(where)
    honest = Stage.forward

    def forward(
        self: Stage, x: Tensors, step: int, microbatch: int, cuts: Sequence[int] = ()
    ) -> Pending:
        if step == crashes_at:
            raise RuntimeError("planted: this layer cannot go on")
        return honest(self, x, step, microbatch, cuts)

    Stage.forward = forward  # type: ignore[method-assign]


def full_gpu(where: str) -> None:
    """`step`: a forward finds no room on the device there."""
    full_at = int(where)
    honest = Stage.forward

    def forward(
        self: Stage, x: Tensors, step: int, microbatch: int, cuts: Sequence[int] = ()
    ) -> Pending:
        if step == full_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return honest(self, x, step, microbatch, cuts)

    Stage.forward = forward  # type: ignore[method-assign]


def broken_receiver(unused: str) -> None:
    """The node breaks when the first of a replica comes to it."""
    del unused

    def broken(self: Transfers, found: object, chunk: int, message: object) -> None:
        raise RuntimeError("planted: nothing is taken in")

    Transfers._chunk_came = broken  # type: ignore[method-assign]


def clock_jump(where: str) -> None:
    """`step,seconds`: from that step on the wall clock of this process is so much ahead."""
    step, ahead_s = where.split(",")
    honest_time, honest_step = time.time, SlotRun.next_step
    jumped = False

    def now() -> float:
        return honest_time() + (float(ahead_s) if jumped else 0.0)

    def next_step(self: SlotRun) -> None:
        nonlocal jumped
        honest_step(self)
        jumped = jumped or self.step >= int(step)

    time.time = now
    SlotRun.next_step = next_step  # type: ignore[method-assign]


def partition(where: str) -> None:
    """`file,node,node..`: once there is that file nothing goes to those nodes and nothing comes
    from them, and the transport says that their connections have ended. The store is reached as
    ever."""
    file, *names = where.split(",")
    apart = [NodeId(name) for name in names]
    honest_send, honest_accept = ZmqTransport.send, ZmqTransport._accept
    honest_gone = ZmqTransport.wait_gone
    cut: list[NodeId] = []

    def send(self: ZmqTransport, node: NodeId, *message: Any) -> bool:
        return True if node in cut else honest_send(self, node, *message)

    def accept(self: ZmqTransport, message: Delivered) -> bool:
        return message.sender not in cut and honest_accept(self, message)

    def wait_gone(self: ZmqTransport, timeout_s: float) -> Sequence[PeerGone]:
        if not cut and Path(file).exists():
            cut.extend(apart)
            return [PeerGone(node=node, seen_at_s=time.monotonic()) for node in apart]
        found = honest_gone(self, min(timeout_s, 0.005))
        return [gone for gone in found if gone.node not in cut]

    ZmqTransport.send = send  # type: ignore[assignment, method-assign]
    ZmqTransport._accept = accept  # type: ignore[method-assign]
    ZmqTransport.wait_gone = wait_gone  # type: ignore[method-assign]


def damaged_chunk(unused: str) -> None:
    """The disk of this node gives another byte at the begin of each chunk but the first."""
    del unused
    honest = os.pread

    def pread(descriptor: int, count: int, begin: int) -> bytes:
        part = honest(descriptor, count, begin)
        return bytes([part[0] ^ 1]) + part[1:] if begin else part

    os.pread = pread


FAULTS: dict[str, Callable[[str], None]] = {
    fault.__name__: fault
    for fault in (
        stale_replica,
        wrong_order,
        dropped_resend,
        flipped_bit,
        never_sent,
        doubled_gradient,
        repeated_microbatch,
        overflow,
        noted_comparisons,
        counted_bytes,
        slow_link,
        slow_sums,
        held,
        crash,
        full_gpu,
        broken_receiver,
        clock_jump,
        partition,
        damaged_chunk,
    )
}
