"""An agent's three views of its run: it renews its lease, judges the others' leases, reads the log.

Each has a thread of its own, so that a slow answer to one never makes the node look dead to the
others. None of them decides anything: losses are appended as events, decisions are read.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bamboo.agent.outcome import Fenced, Orphaned, Outcome, RunEnded
from bamboo.coord.driver import Driver
from bamboo.coord.follow import Follower
from bamboo.coord.writes import Writes
from bamboo.core.effects import End, Fence
from bamboo.core.liveness.detector import LeaseView, judge
from bamboo.core.state import Phase, Policy, State
from bamboo.errors import StoreUnavailable
from bamboo.ids import NodeId
from bamboo.ports import Store

_FOLLOW_S = 0.5
_RETRY_S = 0.2

log = logging.getLogger("bamboo.agent")


class Heartbeat:
    """Renews the node's lease with the worker's newest payload, every `beat_s`. `writes` gets
    whether the store has taken it, and `heard` is touched whenever it has."""

    def __init__(
        self,
        *,
        node: NodeId,
        store: Store,
        payload: Callable[[], str],
        beat_s: float,
        store_away_s: float,
        outcomes: "queue.Queue[Outcome]",
        writes: Writes,
        heard: Path | None = None,
    ) -> None:
        self._node = node
        self._store = store
        self._payload = payload
        self._heard = heard
        self._beat_s = beat_s
        self._store_away_s = store_away_s
        self._outcomes = outcomes
        self._writes = writes

    def run(self, stop: threading.Event) -> None:
        """Beat until `stop`; when the store takes nothing for `store_away_s`, end the agent."""
        taken_s = time.monotonic()
        while not stop.wait(self._beat_s):
            error = self.beat()
            if error is None:
                taken_s = time.monotonic()
            elif (away_s := time.monotonic() - taken_s) > self._store_away_s:
                why = f"the store has taken no beat for {away_s:.0f} s: {error}"
                self._outcomes.put(Orphaned(why=why))
                return

    def beat(self) -> StoreUnavailable | None:
        """Send one beat; returns why the store did not take it, or None."""
        try:
            self._store.beat(self._node, self._payload())
        except StoreUnavailable as error:
            self._writes.refused()
            return error
        self._writes.written()
        self._say_heard()
        return None

    def _say_heard(self) -> None:
        if self._heard is not None:
            # If it cannot be touched, the watching process takes this agent for silent, which is
            # safe.
            with contextlib.suppress(OSError):
                self._heard.touch()


class LogWatch:
    """Follows the log: keeps the newest state, and reports when this node's life is over."""

    def __init__(
        self,
        *,
        node: NodeId,
        store: Store,
        driver: Driver,
        state: State,
        outcomes: "queue.Queue[Outcome]",
    ) -> None:
        self._node = node
        self._store = store
        self._follower = Follower(driver)
        self._outcomes = outcomes
        self._first = state

    @property
    def state(self) -> State:
        """The newest state that was read."""
        return self._follower.state or self._first

    def run(self, stop: threading.Event) -> None:
        """Follow until `stop`."""
        while not stop.is_set():
            try:
                self.follow(timeout_s=_FOLLOW_S)
            except StoreUnavailable:
                stop.wait(_RETRY_S)

    def follow(self, *, timeout_s: float) -> None:
        """Read what is new and act on the effects that are addressed to this node."""
        decisions = self._follower.poll(self._store, timeout_s=timeout_s)
        if self._follower.overtaken:
            log.info("the store was refilled without decisions that this node had read")
            self._outcomes.put(Fenced())
        for decision in decisions:
            for effect in decision.effects:
                if isinstance(effect, Fence | End) and effect.to == self._node:
                    log.info("%s: %s", type(effect).__name__, decision.reason)
                    self._outcomes.put(Fenced() if isinstance(effect, Fence) else RunEnded())


class PeerWatch:
    """Judges the other nodes' leases every `every_s`, and reports those that are gone."""

    def __init__(
        self,
        *,
        node: NodeId,
        store: Store,
        driver: Driver,
        policy: Policy,
        state: Callable[[], State],
        writes: Writes,
        every_s: float,
    ) -> None:
        self._node = node
        self._store = store
        self._writes = writes
        self._driver = driver
        self._policy = policy
        self._state = state
        self._every_s = every_s
        self._view = LeaseView()

    def run(self, stop: threading.Event) -> None:
        """Judge until `stop`. Readings that fail are left out: the detector allows for them."""
        while not stop.wait(self._every_s):
            try:
                self.judge_once()
            except StoreUnavailable:
                continue

    def judge_once(self) -> None:
        """Read the leases once; append a PeerLost for each node that stood still too long. A loss
        that the store does not take at once is not repeated later, because the lease is judged
        again then."""
        state = self._state()
        if state.phase is Phase.FINISHED:
            return
        now_s, leases = self._store.leases()
        self._view, lost = judge(
            self._view,
            watched=[node.id for node in state.live_nodes() if node.id != self._node],
            leases=leases,
            now_s=now_s,
            writing=self._writes.now(),
            policy=self._policy,
            reporter=self._node,
        )
        for event in lost:
            appended = self._driver.append(event, deadline_s=0.0)
            if appended.changed:
                log.info("%s stood still: %s", event.node, appended.reason)
