"""Limits connections that have not logged in, so that they never take what members need.

libzmq accepts every connection and limits it only by the deadline of a handshake. So a thread is
told of each connection that a listening socket accepts, and asks the kernel how many bytes went
over it. A listening socket sends its greeting to everybody, and sends more only after it has
received what only a holder of the run's keys can send: a connection on which it sent more has
logged in. Of all other connections, the thread closes those that sent more than a login has, and
the oldest beyond `MOST_WAITING`.

Rule: a connection is known by its inode, and the thread closes it through a descriptor of its own:
the number that libzmq had for it may belong to another connection by now. That descriptor is made
at the start, because the thread is needed most when no descriptor is left.
"""

import os
import resource
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import TypeVar

import zmq

MOST_WAITING = 512
"""Connections that may be about to log in at once; a member logs in within some milliseconds."""
FEW_WAITING = 64
"""The limit where descriptors are short: the youngest stay, since one may be a member's."""
LOGIN_BYTES = 4096
"""More than a login sends: a whole CURVE login, greeting included, has about 600."""
GREETING_BYTES = 64
"""The greeting that a listening socket sends to everybody (ZMTP 3.1)."""
RESERVE = 256
"""Descriptors that connections without a login cannot take: recovery needs three for each peer."""
MOST_FILES = 1 << 16
"""Descriptors that a worker asks for: with an unlimited number, walking over all takes too long."""
LOOK_S, MOST_S = 0.02, 0.25
"""Bounds of the time between two looks while any connection waits to log in. Within them, the
thread pauses for `DUTY` times as long as the last look took."""
DUTY = 10
IDLE_S = 0.5
"""How long the thread waits for a new connection or for its end."""
_ACKED_AND_RECEIVED = struct.Struct("=120xQQ")
"""Fields of `struct tcp_info` (linux/tcp.h): bytes_acked and bytes_received, since Linux 4.1."""
_TRIAL_S = 1.0
_EVENT = struct.Struct("=Hi")
"""The start of a monitor's message (zmq_socket_monitor(3)): the event, and here the descriptor."""


T = TypeVar("T")


def raise_file_limit() -> None:
    """Let this process have as many descriptors as the system allows, up to MOST_FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class LoginGuard:
    """The thread that watches the connections which `listener`, a bound TCP socket, accepts. It
    needs a kernel that counts their bytes (`counts_bytes`)."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", listener: zmq.Socket[bytes]
    ) -> None:
        self._listener = listener
        self._port = int(listener.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        address = f"inproc://accepted-{id(self)}"
        listener.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_MONITOR_STOPPED)
        self._events = context.socket(zmq.PAIR)
        self._events.setsockopt(zmq.RCVHWM, 0)  # libzmq's own thread would wait at a limit
        self._events.setsockopt(zmq.LINGER, 0)
        self._events.connect(address)
        self._own = OwnDescriptor()
        self._waiting: dict[int, int] = {}
        """Descriptor by inode, in the order in which the connections came."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="logins", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        # It hears of this, and ends. Told otherwise it might end first, and libzmq would wait for
        # somebody to hear.
        self._listener.disable_monitor()
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        pause_s = LOOK_S
        while not self._stop.is_set():
            if self._events.poll(int(1e3 * (pause_s if self._waiting else IDLE_S))):
                self._hear()
            began_s = time.monotonic()
            self._look()
            pause_s = min(MOST_S, max(LOOK_S, DUTY * (time.monotonic() - began_s)))
            if self._waiting:
                self._stop.wait(pause_s)
        self._events.close(linger=0)
        self._own.close()

    def _hear(self) -> None:
        """Note the connections that were accepted."""
        with suppress(zmq.Again):
            while True:
                event, descriptor = _EVENT.unpack(self._events.recv(zmq.NOBLOCK))
                self._events.recv()  # the address that was bound
                if event == zmq.EVENT_MONITOR_STOPPED:
                    self._stop.set()
                if event == zmq.EVENT_ACCEPTED:
                    with suppress(OSError), self._own.of(descriptor) as own:
                        if _is_of_port(own, self._port):
                            self._waiting[os.fstat(own).st_ino] = descriptor

    def _look(self) -> None:
        """Forget connections that have logged in or ended, and close those that may not wait."""
        for inode, descriptor in list(self._waiting.items()):
            went = _asked(self._own, descriptor, inode, _bytes_of)
            if went is None or went[0] > GREETING_BYTES:
                del self._waiting[inode]
            elif went[1] > LOGIN_BYTES:
                self._end(inode)
        short = max(self._waiting.values(), default=0) >= _reserve_from()
        most = FEW_WAITING if short else MOST_WAITING
        for inode in list(self._waiting)[: max(0, len(self._waiting) - most)]:
            self._end(inode)

    def _end(self, inode: int) -> None:
        """Shut the connection down; libzmq finds that it has ended, and closes it."""
        descriptor = self._waiting.pop(inode)
        _asked(self._own, descriptor, inode, lambda one: one.shutdown(socket.SHUT_RDWR))


def _reserve_from() -> int:
    """The descriptor at which the reserve begins. The kernel gives the lowest free number first, so
    a number that is in use tells how many are."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (MOST_FILES if soft == resource.RLIM_INFINITY else soft) - RESERVE


class OwnDescriptor:
    """A descriptor that refers to nothing, or for a while to what another descriptor refers to."""

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._own = os.dup(self._nothing)

    @contextmanager
    def of(self, descriptor: int) -> Iterator[int]:
        """Make it refer to the same thing, whatever happens to `descriptor`. Raises OSError."""
        os.dup2(descriptor, self._own, inheritable=False)
        try:
            yield self._own
        finally:
            os.dup2(self._nothing, self._own, inheritable=False)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._own)
        os.close(self._nothing)


def _is_of_port(own: int, port: int) -> bool:
    """Whether it is a connection that came to this port over TCP. A connection that has ended
    meanwhile may have left its number to anything. Raises OSError."""
    if not stat.S_ISSOCK(os.fstat(own).st_mode):
        return False
    found = socket.socket(fileno=own)
    try:
        inet = found.family in (socket.AF_INET, socket.AF_INET6)
        return inet and found.getsockname()[1] == port and bool(found.getpeername())
    finally:
        found.detach()


def _asked(
    own_descriptor: OwnDescriptor, descriptor: int, inode: int, ask: Callable[[socket.socket], T]
) -> T | None:
    """The answer of a connection to a question; None if it has ended. No two sockets share an
    inode, but something that is not a socket may have the same one."""
    try:
        with own_descriptor.of(descriptor) as own:
            found = os.fstat(own)
            if found.st_ino != inode or not stat.S_ISSOCK(found.st_mode):
                return None
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=own)
            try:
                return ask(connection)
            finally:
                connection.detach()
    except OSError:
        return None


def _bytes_of(connection: socket.socket) -> tuple[int, int]:
    """(bytes that the other side has acknowledged, bytes that this side has received)."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AND_RECEIVED.size)
    acked, received = _ACKED_AND_RECEIVED.unpack(info)
    return int(acked), int(received)


@cache
def counts_bytes() -> bool:
    """Whether this kernel counts a connection's bytes as Linux does; one connection is tried."""
    try:
        with ExitStack() as stack:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            there = stack.enter_context(socket.create_connection(server.getsockname(), _TRIAL_S))
            server.settimeout(_TRIAL_S)
            here = stack.enter_context(server.accept()[0])
            here.settimeout(_TRIAL_S)
            # The answer proves that the first bytes have arrived.
            for sender, receiver, size in ((here, there, 7), (there, here, 9)):
                sender.sendall(bytes(size))
                receiver.recv(size)
            return _bytes_of(here) == (7, 9)
    except (OSError, AttributeError, struct.error):  # no such question, or a shorter answer
        return False
