"""What a stranger can do at the ports of workers, without the run's keys.

`.venv/bin/python -m tests.security.worker_ports HOST:PORT...` holds thousands of connections to
each port, greets slowly, and sends large frames before it has logged in, for `--seconds` of each
kind. It prints how many connections each port still holds, and how many bytes it took from those
that have not logged in: its exit status is 1 where a port took more than a login needs, or holds
more connections than it should, 2 where nobody listens. The ports of a run with cluster.transport =
"tcp" stand in its event log: grep -rho 'tcp://[0-9.:]*' runs/RUN/events. Whether the run goes on,
and with the same bits, is to be seen at the run: with `--hold` it says so once all connections have
been made, and keeps at it until its own input ends.
"""

import argparse
import contextlib
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

MOST_HELD = 1024
"""More connections than this are not held for who has not logged in."""
MOST_TAKEN_BYTES = 16 << 20
"""Bytes of one connection that has not logged in: what the kernels on both sides may hold, and a
frame."""
PART_BYTES = 1 << 18
OTHER_FILES = 64
"""Files that this process has open beside its connections."""
SLOW, SLOW_S = 20, 0.2
"""How many greet slowly at each port, and how long from byte to byte."""
GREETINGS = {
    mechanism: b"\xff" + bytes(8) + b"\x7f\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)
    for mechanism in (b"CURVE", b"PLAIN", b"NULL")
}
"""ZMTP 3.1."""
FRAME_BYTES = (4 << 20, 1 << 30)
"""Of the commands that a handshake is made of: what a node takes, and what it should not."""


@dataclass(slots=True)
class Stranger:
    """One connection, and what it says: `words` gives the bytes that go out next, or nothing while
    it waits."""

    connection: socket.socket
    words: Iterator[bytes]
    sent_bytes: int = 0
    due_s: float = 0.0
    open: bool = True


def silence() -> Iterator[bytes]:
    """Connect, and say nothing."""
    yield from ()


def slow_greeting() -> Iterator[bytes]:
    """A greeting, byte by byte."""
    for byte in GREETINGS[b"CURVE"]:
        yield bytes([byte])
        yield b""


def large_frame(mechanism: bytes, size_bytes: int) -> Callable[[], Iterator[bytes]]:
    """A greeting, and then a frame that is, or says that it is, so large."""

    def words() -> Iterator[bytes]:
        yield GREETINGS[mechanism]
        yield b"\x06" + size_bytes.to_bytes(8, "big")
        for _ in range(size_bytes // PART_BYTES):
            yield b"x" * PART_BYTES

    return words


KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "silence": silence,
    "slow greeting": slow_greeting,
    **{
        f"{size_bytes >> 20} MiB, {name.decode()}": large_frame(name, size_bytes)
        for size_bytes in FRAME_BYTES
        for name in GREETINGS
    },
}


class Crowd:
    """Strangers at one port. They connect and speak as the port lets them; none ever waits."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._selector = selectors.DefaultSelector()
        self._slow: list[Stranger] = []
        """Those that wait to go on, in the order in which they do."""
        self.strangers: list[Stranger] = []

    def add(self, count: int, words: Callable[[], Iterator[bytes]]) -> None:
        """Let more strangers connect; who is refused is not counted."""
        for _ in range(count):
            connection = socket.socket()
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect(self._address)
            one = Stranger(connection, words())
            self.strangers.append(one)
            self._selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, one)

    def work(self, until_s: float) -> None:
        """Say what is to be said until then (time.monotonic())."""
        while (now_s := time.monotonic()) < until_s:
            while self._slow and self._slow[0].due_s <= now_s:
                self._listen(self._slow.pop(0), speak=True)
            next_s = min([until_s, *(one.due_s for one in self._slow[:1])])
            for key, events in self._selector.select(next_s - now_s):
                one: Stranger = key.data
                if events & selectors.EVENT_READ:
                    self._hear(one)
                if one.open and events & selectors.EVENT_WRITE:
                    self._speak(one)

    def held(self) -> int:
        """How many connections the port holds."""
        return sum(one.open for one in self.strangers)

    def most_taken_bytes(self) -> int:
        """How much one of them could send."""
        return max((one.sent_bytes for one in self.strangers), default=0)

    def close(self) -> None:
        """Leave."""
        for one in self.strangers:
            self._end(one)
        self._selector.close()

    def _hear(self, one: Stranger) -> None:
        try:
            while said := one.connection.recv(4096):
                del said
        except BlockingIOError:
            return
        except OSError:
            pass
        self._end(one)

    def _speak(self, one: Stranger) -> None:
        word = next(one.words, None)
        if word:
            try:
                one.sent_bytes += one.connection.send(word)
            except BlockingIOError:
                return
            except OSError:
                self._end(one)
            return
        self._listen(one, speak=False)
        if word is not None:
            one.due_s = time.monotonic() + SLOW_S
            self._slow.append(one)

    def _listen(self, one: Stranger, *, speak: bool) -> None:
        """Hear of what comes, and of whether more can be sent."""
        if one.open:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if speak else 0)
            self._selector.modify(one.connection, events, one)

    def _end(self, one: Stranger) -> None:
        if one.open:
            one.open = False
            self._selector.unregister(one.connection)
            one.connection.close()


def _hold(crowds: Sequence[Crowd], connections: int) -> None:
    """Connect to all ports and greet slowly at each, until standard input ends."""
    for crowd in crowds:
        crowd.add(SLOW, slow_greeting)
        crowd.add(connections - SLOW, silence)
    sys.stdout.write("all connections have been made\n")
    sys.stdout.flush()
    ended = selectors.DefaultSelector()
    ended.register(sys.stdin, selectors.EVENT_READ)
    while not ended.select(0):
        for crowd in crowds:
            crowd.work(time.monotonic() + SLOW_S / len(crowds))


def _raise_limit(parser: argparse.ArgumentParser, connections: int) -> None:
    """Each connection is a descriptor; a shell mostly has room for 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard - OTHER_FILES
    if hard != resource.RLIM_INFINITY and connections > most:
        parser.error(f"this user may open {hard} files; take --connections of {most} at most")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(words: Sequence[str]) -> int:
    """The command; see the top of the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.worker_ports")
    parser.add_argument("ports", nargs="+", metavar="HOST:PORT")
    parser.add_argument("--connections", type=int, default=5000, help="to each port")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--hold", action="store_true", help="until standard input ends")
    asked = parser.parse_args(words)
    addresses = [
        (host, int(number)) for host, _, number in (p.rpartition(":") for p in asked.ports)
    ]
    for port, address in zip(asked.ports, addresses, strict=True):
        try:
            socket.create_connection(address, timeout=5.0).close()
        except OSError as error:
            parser.error(f"nothing was tried: {port}: {error.strerror or error}")
    _raise_limit(parser, asked.connections * (len(addresses) if asked.hold else 1))
    if asked.hold:
        _hold([Crowd(address) for address in addresses], asked.connections)
        return 0
    failed = False
    for port, address in zip(asked.ports, addresses, strict=True):
        for kind, says in KINDS.items():
            crowd = Crowd(address)
            try:
                crowd.add(asked.connections if says is silence else 100, says)
                crowd.work(time.monotonic() + asked.seconds)
                held, taken = crowd.held(), crowd.most_taken_bytes()
            finally:
                crowd.close()
            bad = held > MOST_HELD or taken > MOST_TAKEN_BYTES
            failed = failed or bad
            sys.stdout.write(
                f"{port} {kind}: holds {held} of {len(crowd.strangers)} connections, took "
                f"{taken / 1e6:.1f} MB of one{' - TOO MUCH' if bad else ''}\n"
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
