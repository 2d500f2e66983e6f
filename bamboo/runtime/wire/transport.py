"""The ZeroMQ transport: one bound PULL for all that arrives, and up to two PUSH to each peer.

Rules: a connection that ended is evidence that its peer is gone, and is never tried again (a node
that comes back is a new node). Messages that yield (`ports.YIELDING`) have a connection of their
own, made with the first of them: in a single stream, a boundary tensor of a millisecond would wait
behind a gradient of a second. Sockets close without lingering. A frame beyond the largest that is
ever sent closes the connection that carries it, unread; a message beyond `message_limit_bytes` is
dropped. Between hosts only holders of the run's keys are let in: by CURVE, which also encrypts, or
by a password in the clear where the job says so (a private network); `login_guard` watches the
connections that have not shown them yet. On one host the sockets lie in a directory that only the
user can enter.
"""

import errno
import os
import socket
import stat
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from bamboo.errors import InputError
from bamboo.ids import NodeId
from bamboo.ports import YIELDING, Buffer, Delivered, MessageKey, PeerGone
from bamboo.runtime.wire.assembly import Assembly
from bamboo.runtime.wire.frames import MOST_FRAME_BYTES, Malformed, decode, encode
from bamboo.runtime.wire.keys import Login, RunKeys
from bamboo.runtime.wire.link import AT_ONCE, Held, VirtualLink
from bamboo.runtime.wire.login_guard import LoginGuard, counts_bytes

_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)
_NOBLOCK = int(zmq.NOBLOCK)
"""Plain numbers, because the enumerations' own operators cost the hot loop four times as much."""
WAITING_CONNECTIONS = 4096
"""All members connect to each other at once at the start; one that is refused looks dead."""
SOCKETS = 32768
"""A peer takes three for each connection: one to send, and a pair to report its end."""
HANDSHAKE_S = 10.0
"""A connection that has not logged in by then is closed. A member needs milliseconds; a member
whose machine stands still for so long is gone by its heartbeat."""
DESCRIPTORS_WAIT_S = 1.0
"""Where no descriptor is left, those that strangers hold are freed within milliseconds."""
RETRY_S = 0.02
_WAKES = 4096
LEAST_WAIT_S = 1e-3
"""The poller cannot wait for less."""
KERNEL_BUFFER_BYTES = 4 << 20
"""Asked of the kernel, which may give less; with it a boundary tensor goes over in one piece."""


def _check_private(folder: Path) -> None:
    """On one host only the folder of the sockets keeps strangers out. Raises InputError."""
    try:
        found = folder.stat()
    except OSError as error:
        raise InputError(
            f"the folder {folder} of the sockets is not there: {error.strerror}; make it, for its "
            "owner alone (mode 0700)"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise InputError(
            f"the folder {folder} of the sockets has mode {stat.S_IMODE(found.st_mode):04o} and "
            f"owner {found.st_uid}, so others could reach this worker; give it mode 0700 and owner "
            f"{os.geteuid()}"
        )


class Ends:
    """Sees connections to peers end. One thread waits here; another says which ones to watch."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._watch_in, self._watch_out = _pipe(context, f"watch-{id(self)}")
        self._new: deque[tuple[NodeId, zmq.Socket[bytes]]] = deque()
        self._monitors: dict[zmq.Socket[bytes], NodeId] = {}
        self._told: set[NodeId] = set()

    def watch(self, node: NodeId, monitor: zmq.Socket[bytes]) -> None:
        """Watch a connection by the socket that reports its end."""
        self._new.append((node, monitor))
        self._watch_in.send(b"")

    def wait(self, timeout_s: float) -> Sequence[PeerGone]:
        """The peers whose connections end within this time, each of them once."""
        poller = zmq.Poller()
        poller.register(self._watch_out, zmq.POLLIN)
        for monitor in self._monitors:
            poller.register(monitor, zmq.POLLIN)
        gone = []
        for ready, _ in poller.poll(int(timeout_s * 1000)):
            if ready is self._watch_out:
                self._watch_out.recv()
                while self._new:
                    node, monitor = self._new.popleft()
                    self._monitors[monitor] = node
                continue
            node = self._monitors[ready]
            event = recv_monitor_message(ready)
            # Where a peer has two connections, both end.
            if event["event"] != zmq.EVENT_MONITOR_STOPPED and node not in self._told:
                self._told.add(node)
                gone.append(PeerGone(node=node, seen_at_s=time.monotonic()))
            del self._monitors[ready]
            ready.close(linger=0)
        return gone


def _pipe(
    context: zmq.Context[zmq.Socket[bytes]], name: str
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """An in-process pipe: (write end, read end)."""
    address = f"inproc://{name}"
    read = context.socket(zmq.PULL)
    read.bind(address)
    write = context.socket(zmq.PUSH)
    write.setsockopt(zmq.LINGER, 0)
    write.connect(address)
    return write, read


class ZmqTransport:
    """`ports.Transport` over ZeroMQ. `bind` is `ipc:///dir/name` or `tcp://host:*`."""

    def __init__(
        self,
        *,
        me: NodeId,
        bind: str,
        keys: RunKeys | None = None,
        encrypt: bool = True,
        message_limit_bytes: int = 1 << 28,
        heartbeat_s: float = 3.0,
        link: VirtualLink | None = None,
    ) -> None:
        if bind.startswith("tcp:") and keys is None:
            raise ValueError("a tcp transport needs the run's keys")
        if bind.startswith("ipc:"):
            _check_private(Path(bind.removeprefix("ipc://")).parent)
        self._me = me
        self._link = link
        self._login = None if keys is None else Login(keys=keys, encrypt=encrypt)
        self._heartbeat_ms = int(heartbeat_s * 1000)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, SOCKETS)
        self._auth: ThreadAuthenticator | None = None
        if self._login is not None:
            self._auth = ThreadAuthenticator(self._context)
            self._auth.start()
            self._login.admit(self._auth)
        self._pull = self._socket(zmq.PULL)
        self._pull.setsockopt(zmq.MAXMSGSIZE, min(message_limit_bytes, MOST_FRAME_BYTES))
        self._pull.setsockopt(zmq.BACKLOG, WAITING_CONNECTIONS)
        if self._login is not None:
            self._login.ask_at(self._pull)
        self._pull.bind(bind)
        self._endpoint = self._pull.getsockopt_string(zmq.LAST_ENDPOINT)
        self._guard: LoginGuard | None = None
        if self._login is not None and counts_bytes():
            self._guard = LoginGuard(self._context, self._pull)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._ends = Ends(self._context)
        self._poller = zmq.Poller()
        self._poller.register(self._pull, zmq.POLLIN)
        self._poller.register(self._wake_out.fileno(), zmq.POLLIN)
        self._peers: dict[NodeId, zmq.Socket[bytes]] = {}
        self._yielding: dict[NodeId, zmq.Socket[bytes]] = {}
        """To the same peers, for those that were sent a message that yields."""
        self._members: Mapping[NodeId, str] = {}
        self._generation = 0
        self._assembly = Assembly(message_limit_bytes)
        self._early: list[Delivered] = []
        self._held = Held()
        self._closed = False
        # pyzmq creates what it needs to send frames uncopied at the first such frame: do it now,
        # while it can be done.
        zmq.Frame(bytes(zmq.COPY_THRESHOLD), copy=False)
        self.malformed = 0
        self.sent_bytes: Counter[str] = Counter()

    @property
    def endpoint(self) -> str:
        return self._endpoint

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.RCVHWM, 0)
        made.setsockopt(zmq.SNDBUF, KERNEL_BUFFER_BYTES)
        made.setsockopt(zmq.RCVBUF, KERNEL_BUFFER_BYTES)
        made.setsockopt(zmq.HEARTBEAT_IVL, max(100, self._heartbeat_ms // 4))
        made.setsockopt(zmq.HEARTBEAT_TIMEOUT, self._heartbeat_ms)
        made.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1e3))
        return made

    def reconfigure(self, *, generation: int, members: Mapping[NodeId, str]) -> None:
        for sockets in (self._peers, self._yielding):
            for node in [n for n in sockets if n not in members]:
                peer = sockets.pop(node)
                peer.disable_monitor()
                peer.close(linger=0)
        self._generation = generation
        self._members = dict(members)
        self._assembly.keep(self._hears)
        for node, endpoint in members.items():
            if node != self._me and node not in self._peers:
                self._peers[node] = self._connect(node, endpoint)

    def _connect(self, node: NodeId, endpoint: str) -> zmq.Socket[bytes]:
        give_up_s = time.monotonic() + DESCRIPTORS_WAIT_S
        while True:
            try:
                peer, monitor = self._watched_push()
            except zmq.ZMQError as error:
                if error.errno != errno.EMFILE or time.monotonic() > give_up_s:
                    raise
                time.sleep(RETRY_S)
            else:
                break
        if self._login is not None:
            self._login.show_from(peer)
        self._ends.watch(node, monitor)
        peer.connect(endpoint)
        return peer

    def _watched_push(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """A socket that is not connected yet, and the one that reports its end."""
        peer = self._socket(zmq.PUSH)
        try:
            peer.setsockopt(zmq.RECONNECT_IVL, -1)
            return peer, peer.get_monitor_socket(_LOST)
        except zmq.ZMQError:
            peer.close(linger=0)
            raise

    def send(
        self,
        node: NodeId,
        key: MessageKey,
        buffers: Sequence[Buffer],
        meta: Mapping[str, Any],
        generation: int | None = None,
    ) -> bool:
        peer = self._peers.get(node)
        if peer is None:
            return False
        yields = key.kind in YIELDING
        if yields:
            if node not in self._yielding:
                self._yielding[node] = self._connect(node, self._members[node])
            peer = self._yielding[node]
        due = AT_ONCE
        if self._link is not None:
            size_bytes = sum(b.data.nbytes for b in buffers)
            due = self._link.due(node, size_bytes, time.monotonic(), yields=yields)
        frames = encode(
            key,
            sender=self._me,
            generation=self._generation if generation is None else generation,
            meta=meta,
            buffers=buffers,
            due=due,
        )
        try:
            for frame in frames:
                self.sent_bytes[key.kind] += len(frame)
                peer.send(frame, flags=_NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    def poll(self, timeout_s: float) -> Sequence[Delivered]:
        until_s = time.monotonic() + timeout_s
        out, woken = self._held.take_due(), False
        while True:
            # It is checked between any two operations: the poller, or a refused receive, costs more
            # than a look.
            if not out and timeout_s > 0 and not self._heard_early() and not self._waits():
                woken = self._wait(until_s - time.monotonic())
            self._receive(out)
            out += self._held.take_due()
            heard = [m for m in self._release_early() + out if self._accept(m)]
            # Messages that are not accepted, and frames that complete none, do not end the wait.
            if heard or woken or until_s - time.monotonic() < LEAST_WAIT_S:
                return heard
            out = []

    def _wait(self, timeout_s: float) -> bool:
        """Wait until something came, is due, or another thread called `wake`; whether one did."""
        if self._held.next_due_s is not None:
            timeout_s = min(timeout_s, self._held.next_due_s - time.monotonic())
        ready = dict(self._poller.poll(int(max(0.0, timeout_s) * 1000)))
        woken = self._wake_out.fileno() in ready
        if woken:
            self._drain_wake()
        return woken

    def _receive(self, out: list[Delivered]) -> None:
        """Add the messages that the frames which are here complete and that are due."""
        while self._waits():
            try:
                frame = self._pull.recv(flags=_NOBLOCK, copy=False)
            except zmq.Again:
                break  # its peer was dropped meanwhile
            try:
                part = decode(frame.buffer)
                message = self._assembly.take(part) if self._hears(part.message) else None
            except Malformed:
                self.malformed += 1
                continue
            if message is not None and part.due.at_s:
                self._held.hold(message, part.due)
            elif message is not None:
                out.append(message)

    def _waits(self) -> bool:
        """Whether a frame can be received now."""
        return bool(cast(int, self._pull.get(_EVENTS)) & _POLLIN)

    def _hears(self, message: Delivered) -> bool:
        """Whether the sender is a member, or of a generation that this node does not know yet."""
        return message.sender in self._members or message.generation > self._generation

    def _accept(self, message: Delivered) -> bool:
        if message.sender in self._members:
            return True
        if self._hears(message):
            self._early.append(message)
        return False

    def _heard_early(self) -> bool:
        """Whether a message that came too early can be accepted by now."""
        return any(message.sender in self._members for message in self._early)

    def _release_early(self) -> list[Delivered]:
        early, self._early = self._early, []
        return early

    def _drain_wake(self) -> None:
        # What does not fit ends another wait: to find nothing left costs more than that.
        with suppress(BlockingIOError):
            self._wake_out.recv(_WAKES)

    def wake(self) -> None:
        # Nothing is allocated for it: that may fail when descriptors are short, and `wake` must not
        # fail.
        with suppress(OSError):  # it is full, so the other thread wakes anyway, or it is closed
            self._wake_in.send(b"w")

    def wait_gone(self, timeout_s: float) -> Sequence[PeerGone]:
        return self._ends.wait(timeout_s)

    def close(self) -> None:
        """Close everything; call it when no thread waits in `wait_gone` any more."""
        if self._closed:
            return
        self._closed = True
        if self._guard is not None:
            self._guard.close()
        if self._auth is not None:
            self._auth.stop()
        for peer in (*self._peers.values(), *self._yielding.values()):
            peer.disable_monitor()
        for end in (self._wake_in, self._wake_out):
            end.close()
        self._context.destroy(linger=0)
