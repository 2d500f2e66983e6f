"""How fast this machine copies bytes from one process into the memory of another, over loopback.

    python -m benchmarks.copy_bandwidth [--mb 512] [--rounds 3]

This is the yardstick for everything that moves state: one sender has the bytes, and one receiver
takes them into one piece of memory, in chunks of `CHUNK_BYTES`. They go through the library of the
transport (ZeroMQ, multipart, without copies of our own) and through a plain socket, each over a
unix socket and over TCP. The receiver has touched its memory before, as a node does before it
joins. Nothing is encrypted, checked, scheduled or answered.
"""

import argparse
import mmap
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import zmq

from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import command_of, median_and_quartiles, write_result

CHUNK_BYTES = 1 << 20
"""The chunk size at which plain sockets are fastest."""
WAYS = ("zmq ipc", "zmq tcp", "unix socket", "tcp socket")
PATIENCE_S = 60.0
KERNEL_BUFFER_BYTES = 4 << 20
WAITING = 64
"""Messages that ZeroMQ may hold on either side."""


def _family(way: str) -> int:
    return socket.AF_UNIX if way == "unix socket" else socket.AF_INET


def touched(size_bytes: int) -> bytearray:
    """Memory of which every page was written."""
    memory = bytearray(size_bytes)
    for at in range(0, size_bytes, mmap.PAGESIZE):
        memory[at] = 1
    return memory


def _receive_plain(way: str, size_bytes: int, said: Connection) -> None:
    into = memoryview(touched(size_bytes))
    with socket.socket(_family(way)) as listening, tempfile.TemporaryDirectory("bt") as folder:
        listening.settimeout(PATIENCE_S)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BUFFER_BYTES)
        listening.bind(f"{folder}/copy" if way == "unix socket" else ("127.0.0.1", 0))
        listening.listen(1)
        said.send(listening.getsockname())
        one, _ = listening.accept()
    with one:
        one.settimeout(PATIENCE_S)
        at = 0
        while at < size_bytes:
            got = one.recv_into(into[at : at + CHUNK_BYTES])
            if not got:
                raise RuntimeError(f"the sender hung up after {at} of {size_bytes} bytes")
            at += got
    said.send(time.monotonic())


def _send_plain(way: str, address: object, size_bytes: int, said: Connection) -> None:
    data = memoryview(bytearray(os.urandom(1 << 16) * (size_bytes >> 16)))
    with socket.socket(_family(way)) as one:
        one.settimeout(PATIENCE_S)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
        one.connect(address)
        said.send(time.monotonic())
        for at in range(0, len(data), CHUNK_BYTES):
            one.sendall(data[at : at + CHUNK_BYTES])


def _receive_zmq(way: str, size_bytes: int, said: Connection) -> None:
    into = memoryview(touched(size_bytes))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pull = context.socket(zmq.PULL)
    pull.setsockopt(zmq.RCVHWM, WAITING)
    pull.setsockopt(zmq.RCVBUF, KERNEL_BUFFER_BYTES)
    with tempfile.TemporaryDirectory(prefix="bt-") as folder:
        pull.bind(f"ipc://{folder}/copy" if way == "zmq ipc" else "tcp://127.0.0.1:*")
        said.send(pull.getsockopt_string(zmq.LAST_ENDPOINT))
        at = 0
        while at < size_bytes:
            if not pull.poll(int(1e3 * PATIENCE_S)):
                raise RuntimeError(f"nothing came after {at} of {size_bytes} bytes")
            _, chunk = pull.recv_multipart(copy=False)
            into[at : at + len(chunk)] = chunk.buffer
            at += len(chunk)
        said.send(time.monotonic())
        context.destroy(linger=0)


def _send_zmq(way: str, address: object, size_bytes: int, said: Connection) -> None:
    del way
    data = memoryview(bytearray(os.urandom(1 << 16) * (size_bytes >> 16)))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    push = context.socket(zmq.PUSH)
    push.setsockopt(zmq.SNDHWM, WAITING)
    push.setsockopt(zmq.SNDBUF, KERNEL_BUFFER_BYTES)
    push.setsockopt(zmq.SNDTIMEO, int(1e3 * PATIENCE_S))
    push.connect(str(address))
    said.send(time.monotonic())
    for at in range(0, len(data), CHUNK_BYTES):
        push.send_multipart([b"%d" % at, data[at : at + CHUNK_BYTES]], copy=False)
    context.destroy(linger=int(1e3 * PATIENCE_S))


def copies_gb_per_s(way: str, *, size_bytes: int, pairs: int = 1) -> float:
    """GB/s of so many pairs of processes at once, all together: from the first byte of the first
    pair to the last byte of the last. Raises RuntimeError when one of them does not finish."""
    plain = "socket" in way
    receive: Callable[..., None] = _receive_plain if plain else _receive_zmq
    send: Callable[..., None] = _send_plain if plain else _send_zmq
    spawn = multiprocessing.get_context("spawn")
    started, listeners, senders = [], [], []
    try:
        for _ in range(pairs):
            here, there = spawn.Pipe()
            process = spawn.Process(target=receive, args=(way, size_bytes, there), daemon=True)
            process.start()
            started.append(process)
            listeners.append(here)
        for address in [_told(listener) for listener in listeners]:
            here, there = spawn.Pipe()
            process = spawn.Process(
                target=send, args=(way, address, size_bytes, there), daemon=True
            )
            process.start()
            started.append(process)
            senders.append(here)
        began_s = min(_told(one) for one in senders)
        ended_s = max(_told(one) for one in listeners)
    finally:
        for process in started:
            process.join(0.5 * PATIENCE_S)
            process.kill()
    return pairs * (size_bytes >> 16 << 16) / (ended_s - began_s) / 1e9


def _told(said: Connection) -> float:
    """The next value that a process sends."""
    if not said.poll(PATIENCE_S):
        raise RuntimeError(f"a process that copies said nothing for {PATIENCE_S:g} s")
    found: float = said.recv()
    return found


def yardstick(*, size_bytes: int, rounds: int) -> dict[str, list[float]]:
    """GB/s of each way, alone and with two pairs at once, interleaved round by round."""
    found: dict[str, list[float]] = {
        f"{way}, {pairs} at once": [] for way in WAYS for pairs in (1, 2)
    }
    for _ in range(rounds):
        for way in WAYS:
            for pairs in (1, 2):
                rate = copies_gb_per_s(way, size_bytes=size_bytes, pairs=pairs)
                found[f"{way}, {pairs} at once"].append(rate)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """The fastest way, by the median."""

    way: str
    gb_per_s: float


def shown(found: dict[str, list[float]]) -> dict[str, Yardstick]:
    """Print all ways. Returns the fastest of those over TCP, and of all."""
    print(f"copies on one machine in chunks of {CHUNK_BYTES >> 10} KiB, GB/s")
    for way, rates in found.items():
        middle, low, high = median_and_quartiles(rates)
        print(f"  {way:24} {middle:6.2f}  quartiles {low:.2f}-{high:.2f}")
    middles = {way: median_and_quartiles(rates)[0] for way, rates in found.items()}
    out = {}
    for name, ways in (("tcp", [way for way in middles if "tcp" in way]), ("any", list(middles))):
        best = max(ways, key=lambda way: middles[way])
        out[name] = Yardstick(way=best, gb_per_s=middles[best])
        print(f"  the fastest, {name}: {best}, {middles[best]:.2f} GB/s")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=at_least(1), default=512)
    parser.add_argument("--rounds", type=at_least(1), default=3)
    arguments = parsed(parser)
    found = yardstick(size_bytes=arguments.mb << 20, rounds=arguments.rounds)
    best = {name: asdict(one) for name, one in shown(found).items()}
    command = command_of("copy_bandwidth", arguments)
    print(write_result("copy-bandwidth", command, {"gb_per_s": found, "best": best}))


if __name__ == "__main__":
    main()
