"""Connections that have not logged in: few of them, and none that takes what members need.

libzmq accepts whoever connects, and knows no limit but the deadline of a handshake. So a thread
hears of each connection that a listening socket accepts, and asks the kernel how many bytes went
over it. A listening socket says its greeting to everybody, and nothing more before it has heard
what only a holder of the run's keys can say: a connection on which it said more has logged in. Of
all others, those are closed that sent more than a login has, and the oldest beyond `MOST_WAITING`.

Rule: a connection is known by its inode, and is closed by a descriptor of this thread's own: the
number that libzmq had for it may belong to another one by now.
"""

import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache

import zmq

MOST_WAITING = 512
"""Connections that may be about to log in at once; a member needs some milliseconds for it."""
FEW_WAITING = 64
"""Where descriptors are short: the youngest, of which one may be a member's."""
LOGIN_BYTES = 4096
"""More than a login sends: all of CURVE's, greeting included, has about 600."""
GREETING_BYTES = 64
"""What a listening socket says to everybody (ZMTP 3.1)."""
RESERVE = 256
"""Descriptors that nobody takes who has not logged in: recovery needs three for each peer."""
MOST_FILES = 1 << 16
"""Descriptors that a worker asks for: of an endless number, who walks over all takes too long."""
LOOK_S, MOST_S = 0.02, 0.25
"""From look to look while anybody waits to log in: a look that took long is followed by `DUTY`
times its length without one, within these bounds."""
DUTY = 10
IDLE_S = 0.5
"""How long the thread waits to hear of somebody, or of its end."""
_ACKED_AND_RECEIVED = struct.Struct("=120xQQ")
"""Of `struct tcp_info` (linux/tcp.h): bytes_acked and bytes_received, since Linux 4.1."""
_TRIAL_S = 1.0
_EVENT = struct.Struct("=Hi")
"""What a monitor says first (zmq_socket_monitor(3)): which event, and here the descriptor."""


def raise_file_limit() -> None:
    """Let this process have as many descriptors as the system gives it, up to MOST_FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class LoginGuard:
    """The thread that watches the connections which `listener`, a bound TCP socket, accepts. It
    is for a kernel that counts their bytes (`counts_bytes`)."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", listener: zmq.Socket[bytes]
    ) -> None:
        self._listener = listener
        address = f"inproc://accepted-{id(self)}"
        listener.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_MONITOR_STOPPED)
        self._events = context.socket(zmq.PAIR)
        self._events.setsockopt(zmq.RCVHWM, 0)  # libzmq's own thread would wait at a limit
        self._events.setsockopt(zmq.LINGER, 0)
        self._events.connect(address)
        self._waiting: dict[int, int] = {}
        """Descriptor by inode, in the order in which they came."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="logins", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._listener.disable_monitor()  # which the thread hears
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

    def _hear(self) -> None:
        """Note the connections that were accepted."""
        with suppress(zmq.Again):
            while True:
                event, descriptor = _EVENT.unpack(self._events.recv(zmq.NOBLOCK))
                self._events.recv()  # the address that was bound
                with suppress(OSError):  # it has ended meanwhile
                    if event == zmq.EVENT_ACCEPTED:
                        self._waiting[os.fstat(descriptor).st_ino] = descriptor

    def _look(self) -> None:
        """Forget who has logged in or ended, and close who may not wait any longer."""
        for inode, descriptor in list(self._waiting.items()):
            with _connection(descriptor, inode) as connection:
                said, heard = (0, 0) if connection is None else _bytes_of(connection)
                logged_in = said > GREETING_BYTES
                too_much = heard > LOGIN_BYTES and not logged_in
                if connection is not None and too_much:
                    _end(connection)
                if connection is None or logged_in or too_much:
                    del self._waiting[inode]
        short = max(self._waiting.values(), default=0) >= _reserve_from()
        most = FEW_WAITING if short else MOST_WAITING
        for inode in list(self._waiting)[: max(0, len(self._waiting) - most)]:
            with _connection(self._waiting.pop(inode), inode) as connection:
                if connection is not None:
                    _end(connection)


def _reserve_from() -> int:
    """The descriptor with which the reserve begins. The lowest free number is given first, so one
    that is in use says how many are."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (MOST_FILES if soft == resource.RLIM_INFINITY else soft) - RESERVE


@contextmanager
def _connection(descriptor: int, inode: int) -> Iterator[socket.socket | None]:
    """The connection of this inode, by a descriptor of the caller's own; None if it has ended."""
    own = None
    with suppress(OSError):
        own = os.dup(descriptor)
    if own is None or os.fstat(own).st_ino != inode:
        if own is not None:
            os.close(own)
        yield None
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=own) as connection:
        yield connection


def _end(connection: socket.socket) -> None:
    """libzmq finds the connection at its end, and closes it."""
    with suppress(OSError):  # the other side was first
        connection.shutdown(socket.SHUT_RDWR)


def _bytes_of(connection: socket.socket) -> tuple[int, int]:
    """How many bytes of this side's the other side has, and how many of its this side has."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AND_RECEIVED.size)
    acked, received = _ACKED_AND_RECEIVED.unpack(info)
    return int(acked), int(received)


@cache
def counts_bytes() -> bool:
    """Whether this kernel counts the bytes of a connection as Linux does: it is tried on one."""
    try:
        with ExitStack() as stack:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            there = stack.enter_context(socket.create_connection(server.getsockname(), _TRIAL_S))
            server.settimeout(_TRIAL_S)
            here = stack.enter_context(server.accept()[0])
            here.settimeout(_TRIAL_S)
            # What comes back says that the first bytes are there.
            for sender, receiver, size in ((here, there, 7), (there, here, 9)):
                sender.sendall(bytes(size))
                receiver.recv(size)
            return _bytes_of(here) == (7, 9)
    except (OSError, AttributeError, struct.error):  # no such question, or a shorter answer
        return False
