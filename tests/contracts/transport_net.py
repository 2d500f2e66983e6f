"""Members of one run over one kind of transport, for tests: in this process and in others."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import zmq

from bamboo.ids import NodeId
from bamboo.ports import Delivered, MessageKey, MessageKind, PeerGone
from bamboo.runtime.wire.keys import RunKeys
from bamboo.runtime.wire.transport import ZmqTransport
from bamboo.topology.slots import Slot
from testbed.forker import Process, shared_forker
from testbed.waiting import wait_until

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
KEYS = RunKeys.generate()
HERE = Slot(pipeline=0, stage=0)
NEVER_S = 0.15
"""How long a message that must not come is waited for, after one that must has come."""


def key(step: int, kind: MessageKind = "act") -> MessageKey:
    return MessageKey(kind=kind, to=HERE, source=HERE, step=step)


class Net:
    """Makes members of one run over one kind of transport, and closes them.

    Kinds: `ipc`, `tcp` (keys and encryption), `plain` (tcp, keys, in the clear)."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self.keys = None if kind == "ipc" else KEYS
        self.encrypt = kind != "plain"
        self.made: list[ZmqTransport] = []
        self.processes: list[Process] = []

    def bind(self, node: str) -> str:
        return f"ipc://{self.folder}/{node}" if self.kind == "ipc" else "tcp://127.0.0.1:*"

    def member(self, node: NodeId, **settings: Any) -> ZmqTransport:
        made = ZmqTransport(
            me=node, bind=self.bind(node), keys=self.keys, encrypt=self.encrypt, **settings
        )
        self.made.append(made)
        return made

    def pair(self, **settings: Any) -> tuple[ZmqTransport, ZmqTransport]:
        """Members a and b of generation 1."""
        a, b = self.member(A, **settings), self.member(B, **settings)
        members = {A: a.endpoint, B: b.endpoint}
        for one in (a, b):
            one.reconfigure(generation=1, members=members)
        return a, b

    def process(self, node: NodeId, to: ZmqTransport, to_node: NodeId) -> tuple[Process, str]:
        """A peer in a process of its own, which has connected to `to`; and its endpoint."""
        file = self.folder / f"{node}.endpoint"
        config = {
            "node": node,
            "bind": self.bind(node),
            "keys": json.dumps(self.keys.to_dict()) if self.keys else "",
            "encrypt": "yes" if self.encrypt else "",
            "to": to_node,
            "endpoint": to.endpoint,
            "endpoint_file": str(file),
        }
        log = self.folder / f"{node}.log"
        entry = "tests.contracts.transport_peer:main"
        process = shared_forker().start(config, log, entry)
        self.processes.append(process)
        wait_until(file.exists, what="the peer's endpoint", timeout_s=20)
        return process, file.read_text()

    def close(self) -> None:
        for process in self.processes:
            process.close()
        for made in self.made:
            made.close()


@contextlib.contextmanager
def raw_sender(to: ZmqTransport, prepare: Callable[[zmq.Socket[bytes]], None]) -> Iterator[Any]:
    """A plain socket, connected to the member `to`."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as sender:
        sender.setsockopt(zmq.LINGER, 0)
        prepare(sender)
        sender.connect(to.endpoint)
        yield sender


def with_keys(net: Net) -> Callable[[zmq.Socket[bytes]], None]:
    def prepare(sender: zmq.Socket[bytes]) -> None:
        if net.keys is None:
            return
        if not net.encrypt:
            sender.plain_username, sender.plain_password = b"worker", net.keys.client_secret
        else:
            sender.curve_serverkey = net.keys.server_public
            sender.curve_publickey = net.keys.client_public
            sender.curve_secretkey = net.keys.client_secret

    return prepare


def receive(at: ZmqTransport, count: int, timeout_s: float = 10.0) -> list[Delivered]:
    """The next messages, at least `count`."""
    out: list[Delivered] = []

    def enough() -> bool:
        out.extend(at.poll(0.05))
        return len(out) >= count

    wait_until(enough, what=f"{count} messages", timeout_s=timeout_s, poll_s=0.0)
    return out


def steps(messages: Sequence[Delivered]) -> list[int]:
    return [m.key.step for m in messages]


def gone(at: ZmqTransport, timeout_s: float = 10.0) -> list[PeerGone]:
    return wait_until(
        lambda: list(at.wait_gone(0.1)), what="a lost peer", timeout_s=timeout_s, poll_s=0.0
    )
