"""The worker's threads to the outside: they follow the log, post, watch peers, report to the agent.

Rule: each thread does one blocking thing with a deadline and hands values over; none touches the
training. While the store is away, training goes on and reports wait in order. A node that was
overtaken reports nothing any more, because nobody else knows of what it would report.
"""

import contextlib
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from bamboo.coord.driver import Driver
from bamboo.coord.follow import Follower
from bamboo.core.effects import Fence
from bamboo.core.events import Event, PeerLost, StoreRefilled
from bamboo.core.liveness.partition import patience_s
from bamboo.core.state import State
from bamboo.errors import BambooError, BooksUnwritable, CoreMisuse, StoreUnavailable
from bamboo.ids import NodeId
from bamboo.jsonl import LineWriter
from bamboo.ports import TAKEN, Store, Transport
from bamboo.runtime.state.decision import Decided
from bamboo.runtime.wire.backlog import POLL_S, Backlog
from bamboo.runtime.wire.outbox import urgent_first
from bamboo.telemetry.records import EventRecord

RETRY_S = 0.1
SAY_DEADLINE_S = 5.0
"""The deadline of one try to report that a peer is gone; tries go on until the store takes it."""
OVERTAKEN_S = 5.0
"""An event that cannot be true may come from a history that the store has lost: this is how long
the thread that follows the log has to find that out."""
SAID_AGAIN = 512
"""Records that are written again to a store that was refilled: the launcher may not have read them
before the store lost them. A launcher that has read them drops the second copy."""


class Poster:
    """An `Outbox`: a queue in front of the store, and a file of what this node has noted.

    `state` returns the state as this node knows it: its run and generation go into the file. Once
    `overtaken` is set nothing is posted any more."""

    def __init__(
        self,
        store: Store,
        driver: Driver,
        log: Path | None,
        me: NodeId,
        state: Callable[[], State],
        *,
        overtaken: threading.Event,
    ) -> None:
        self._overtaken = overtaken
        self._store = store
        self._driver = driver
        self._me = me
        self._state = state
        self._backlog: Backlog[Event | Mapping[str, Any]] = Backlog()
        self._log: LineWriter | None = None
        if log is not None:
            with contextlib.suppress(BooksUnwritable):  # only the notes are lost
                self._log = LineWriter(log)
        self._records: deque[Mapping[str, Any]] = deque(maxlen=SAID_AGAIN)

    def event(self, event: Event) -> None:
        self._backlog.put(event)

    def metric(self, record: Mapping[str, Any]) -> None:
        self._backlog.put(record)

    def say_again(self) -> None:
        """Write the newest records again, because the store has lost them."""
        for record in urgent_first(self._records.copy()):
            self._backlog.put(record)

    def work(self, stop: threading.Event) -> None:
        """The thread's body: post until `stop` is set and the queue is empty."""
        self._backlog.work(lambda item: self._post(item, stop), stop)

    def _post(self, item: Event | Mapping[str, Any], stop: threading.Event) -> None:
        while not self._overtaken.is_set():
            try:
                if isinstance(item, Mapping):
                    self._store.append("metrics", json.dumps(dict(item)))
                    self._keep(item)
                else:
                    self._driver.append(item, deadline_s=POLL_S)
                    self._note(type(item).__name__, _plain(item))
                return
            except StoreUnavailable:
                if stop.wait(RETRY_S):
                    return
            except CoreMisuse:
                if not self._overtaken.wait(OVERTAKEN_S):
                    raise

    def _keep(self, record: Mapping[str, Any]) -> None:
        if record in self._records:
            return  # it was written a second time
        self._records.append(record)
        self._note(str(record["kind"]), record)

    def _note(self, kind: str, data: Mapping[str, Any]) -> None:
        if self._log is None or kind == "step":
            return
        state, step = self._state(), data.get("step")
        record = EventRecord(
            t_s=time.time(),
            run=state.run,
            generation=state.generation,
            node=self._me,
            kind=kind,
            step=step if isinstance(step, int) else None,
            data={name: data[name] for name in data if name not in ("kind", "node", "step")},
        )
        with contextlib.suppress(OSError, BambooError):  # only the notes are lost on a full disk
            self._log.write(record.to_json())

    def drained(self, timeout_s: float) -> bool:
        """Wait until all is posted; False when the time is up first."""
        return self._backlog.drained(timeout_s)


def _plain(event: Event) -> dict[str, Any]:
    """An event's fields as JSON values."""
    return {field.name: _json_value(getattr(event, field.name)) for field in fields(event)}


def _json_value(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else str(value)


def follow_log(
    *,
    follower: Follower,
    store: Store,
    me: NodeId,
    poster: Poster,
    tell: Callable[[Decided], None],
    answered: Callable[[], None],
    overtaken: threading.Event,
    stop: threading.Event,
) -> None:
    """Thread: hand every decision to `tell` as soon as it is in the log; call `answered` whenever
    the store answers, which is at least every POLL_S while it is there. A node whose decisions were
    lost with the store has done work that no other node knows of: it is fenced, and `overtaken` is
    set."""
    while not stop.is_set():
        known = follower.state
        try:
            decisions = follower.poll(store, timeout_s=POLL_S)
        except StoreUnavailable:
            stop.wait(RETRY_S)
            continue
        read_s = time.monotonic()
        if follower.overtaken:
            assert known is not None
            overtaken.set()
            tell(Decided(state=known, effects=(Fence(to=me),), read_s=read_s))
            return
        for decision in decisions:
            tell(
                Decided(
                    state=decision.state,
                    effects=decision.effects,
                    read_s=read_s,
                    now_s=decision.now_s,
                )
            )
            if isinstance(decision.event, StoreRefilled):
                poster.say_again()
        answered()


def watch_peers(
    *,
    transport: Transport,
    driver: Driver,
    me: NodeId,
    state: Callable[[], State],
    seen: Callable[[str, float], None],
    stop: threading.Event,
) -> None:
    """Thread: report each peer whose connection ends. Many nodes may see it; the first report
    counts. A report that the store did not take is repeated once it is back: when two live nodes do
    not reach each other, no other node may know of it."""
    unreached: set[NodeId] = set()
    unsaid: list[NodeId] = []
    while not stop.is_set():
        found = transport.wait_gone(POLL_S)
        for gone in found:
            unreached.add(gone.node)
            seen(gone.node, gone.seen_at_s)
        if found and stop.wait(patience_s(state(), me, unreached)):
            return
        unsaid += [gone.node for gone in found]
        while unsaid and not stop.is_set():
            try:
                driver.append(
                    PeerLost(node=unsaid[0], reporter=me, cause="disconnect"),
                    deadline_s=SAY_DEADLINE_S,
                )
            except StoreUnavailable:
                break  # others may be gone meanwhile; look at once
            del unsaid[0]


def report_to_agent(
    connection: socket.socket,
    progress: Callable[[], Mapping[str, Any]],
    *,
    beat_s: float,
    patience_s: float,
    agent_gone: Callable[[], None],
    taken: Callable[[bool], None],
    stop: threading.Event,
) -> None:
    """Thread: write one JSON line per beat to the agent; the end of the connection means that the
    agent is dead. `taken` gets the agent's answer: whether the store takes what this node writes.
    The counter in a line grows while the trainer's loop turns (`turns` in its progress), or has not
    stood still for `patience_s`, because a single operation may take long."""
    count = 0
    turns = None
    turned_s = time.monotonic()
    while not stop.is_set():
        told, now_s = progress(), time.monotonic()
        if told["turns"] != turns:
            turns, turned_s = told["turns"], now_s
        if now_s - turned_s < patience_s:
            count += 1
        line = json.dumps({"progress": count, **told}).encode() + b"\n"
        try:
            connection.settimeout(beat_s)
            connection.sendall(line)
            while (left_s := now_s + beat_s - time.monotonic()) > 0:
                connection.settimeout(left_s)
                answer = connection.recv(64)
                if not answer:
                    agent_gone()
                    return
                taken(answer.endswith(TAKEN))
        except TimeoutError:
            continue
        except OSError:
            agent_gone()
            return
