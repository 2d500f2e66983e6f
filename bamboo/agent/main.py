"""An agent's life: it learns what it is, starts its worker, watches, and leaves for one reason.

The main thread waits for the first outcome: the worker's end, a fence, the run's end, or the loss
of the world around it. Whatever happens, the worker ends before the agent does. An agent never
decides that a node is lost; it reports what it saw.
"""

import logging
import os
import queue
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bamboo.agent.config import AgentConfig
from bamboo.agent.link import WorkerLink
from bamboo.agent.notices import NoticeWatch
from bamboo.agent.outcome import (
    EXIT_DONE,
    EXIT_FENCED,
    EXIT_ORPHANED,
    EXIT_WORKER,
    Fenced,
    Orphaned,
    Outcome,
    RunEnded,
)
from bamboo.agent.watch import Heartbeat, LogWatch, PeerWatch
from bamboo.config.load import job_from_json
from bamboo.coord.driver import Driver, join_run
from bamboo.coord.open import opened_in_time
from bamboo.coord.writes import Writes
from bamboo.core.events import FaultScope, NodeFailed, PeerLost
from bamboo.core.state import NodeStatus, Phase, Policy, State
from bamboo.errors import BambooError, InputError, StoreUnavailable
from bamboo.ids import NodeId, node_id
from bamboo.ports import (
    FENCED_STATUS,
    STORE_AWAY_STATUS,
    Identity,
    Metadata,
    Store,
    WorkerProcess,
    WorkerStarter,
)

WORKER_LOOK_S = 0.02
_RETRY_S = 0.1
_KILL_DEADLINE_S = 10.0
_APPEND_DEADLINE_S = 20.0
_STARTS = 3
"""A worker that ends before it has joined, by a signal or because the store was away, is started
this many times in all."""

log = logging.getLogger("bamboo.agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """The run as the agent found it."""

    store: Store
    driver: Driver
    policy: Policy
    beat_s: float
    state: State


def run_agent(
    *,
    metadata: Metadata,
    store: Callable[[], Store],
    starter: WorkerStarter,
    config: AgentConfig,
) -> int:
    """Live as the agent of this instance until its worker has left or must not go on.

    `store` opens the run's store (`coord.open.open_store`); it is called again while the store
    refuses, up to `config.open_deadline_s`. Returns the exit status: 0 left in order, 1 the worker
    ended unexpectedly, 10 fenced, 11 cloud or store gone for good. Raises InputError when there is
    no metadata service or no store.
    """
    identity = metadata.identity()
    node = node_id(identity.instance, config.boot)
    run = _open(store, node, deadline_s=config.open_deadline_s)
    try:
        agent = _Agent(identity=identity, node=node, run=run, starter=starter, config=config)
        return agent.live(metadata)
    finally:
        run.store.close()


class _Agent:
    """One life of an agent; `live` is called once."""

    def __init__(
        self,
        *,
        identity: Identity,
        node: NodeId,
        run: _Run,
        starter: WorkerStarter,
        config: AgentConfig,
    ) -> None:
        self._identity = identity
        self._node = node
        self._run = run
        self._starter = starter
        self._config = config
        self._outcomes: queue.Queue[Outcome] = queue.Queue()
        self._stop = threading.Event()
        self._writes = Writes(every_s=run.beat_s)
        self._link = WorkerLink(
            config.socket_dir / f"a-{node}.sock",
            taken=lambda: self._writes.now().succeeds(every_s=run.beat_s),
        )
        self._log = LogWatch(
            node=node,
            store=run.store,
            driver=run.driver,
            state=run.state,
            outcomes=self._outcomes,
        )
        self._starts_left = _STARTS

    def live(self, metadata: Metadata) -> int:
        """Start threads and worker; returns the exit status of the first outcome that ends it."""
        threads = self._threads(metadata)
        for thread in threads:
            thread.start()
        worker: WorkerProcess | None = None
        try:
            worker = self._start_worker()
            while True:
                status = worker.poll()
                if status is not None:
                    end = self._worker_ended(status)
                    if end is not None:
                        return end
                    worker = self._start_worker()
                try:
                    outcome = self._outcomes.get(timeout=WORKER_LOOK_S)
                except queue.Empty:
                    continue
                return self._end(outcome, worker)
        except BambooError as error:
            log.error("%s", error)
            self._say_failed(FaultScope.NODE, f"no worker can be started: {error}")
            return EXIT_WORKER
        finally:
            if worker is not None:
                _kill(worker)
            self._stop.set()
            for thread in threads:
                thread.join(timeout=_KILL_DEADLINE_S)

    def _start_worker(self) -> WorkerProcess:
        self._starts_left -= 1
        config = self._config
        worker = self._starter.start(
            config={
                "run": config.run,
                "node": self._node,
                "instance": self._identity.instance,
                "zone": self._identity.zone,
                "store_url": config.store_url,
                "socket_dir": str(config.socket_dir),
                "run_dir": config.run_dir,
                "run_url": config.run_url,
                "start_url": config.start_url,
                "bind_host": self._identity.address,
                "agent_socket": str(self._link.path),
                "scratch_dir": config.scratch_dir,
            }
        )
        log.info("%s: worker %d", self._node, worker.pid)
        return worker

    def _worker_ended(self, status: int) -> int | None:
        """Handle a worker that ended by itself: in order, too early to matter (None: start
        another), or as a loss that the members must learn of."""
        try:
            state = self._run.driver.state()
        except StoreUnavailable:
            state = self._log.state
        node = state.node(self._node)
        if state.phase is Phase.FINISHED or (node is not None and not node.status.live):
            log.info("the worker left with status %d", status)
            return EXIT_FENCED if node and node.status is NodeStatus.GONE else EXIT_DONE
        innocent = status < 0 or status == STORE_AWAY_STATUS
        if node is None and innocent and self._starts_left > 0:
            log.warning("the worker ended with %d before it joined; starting another", status)
            return None
        log.error("the worker ended with status %d", status)
        if node is not None:
            self._say(PeerLost(node=self._node, reporter=self._node, cause="exit"))
        elif status < 0:
            how = f"its worker was killed {_STARTS} times before it joined, by signal {-status}"
            self._say_failed(FaultScope.NODE, f"{how}; has its machine memory enough?")
        elif status not in (STORE_AWAY_STATUS, FENCED_STATUS):
            # It broke by itself and did not report why: any other worker would break in the same
            # way.
            self._say_failed(
                FaultScope.RUN, f"its worker ended with status {status} before it joined"
            )
        # It was fenced without being known: the store has lost the record that it joined.
        return EXIT_WORKER

    def _say_failed(self, scope: FaultScope, reason: str) -> None:
        self._say(
            NodeFailed(
                node=self._node,
                instance=self._identity.instance,
                zone=self._identity.zone,
                scope=scope,
                reason=f"{reason}; see its log: bamboo logs {self._config.run}",
            )
        )

    def _say(self, event: PeerLost | NodeFailed) -> None:
        try:
            self._run.driver.append(event, deadline_s=_APPEND_DEADLINE_S)
        except StoreUnavailable as error:
            log.warning("the loss is not in the log; its lease will run out: %s", error)

    def _end(self, outcome: Outcome, worker: WorkerProcess) -> int:
        match outcome:
            case Fenced():
                return EXIT_FENCED
            case Orphaned(why=why):
                log.error("%s", why)
                return EXIT_ORPHANED
            case RunEnded():
                end_s = time.monotonic() + self._config.leave_s
                while worker.poll() is None and time.monotonic() < end_s:
                    time.sleep(WORKER_LOOK_S)
                if worker.poll() is None:
                    log.warning("the worker did not leave within %g s", self._config.leave_s)
                return EXIT_DONE

    def _threads(self, metadata: Metadata) -> list[threading.Thread]:
        run = self._run
        config = self._config
        writes = self._writes
        heartbeat = Heartbeat(
            node=self._node,
            store=run.store,
            payload=lambda: self._link.payload,
            beat_s=run.beat_s,
            store_away_s=config.store_away_s,
            outcomes=self._outcomes,
            writes=writes,
            heard=config.heard_file,
        )
        peers = PeerWatch(
            node=self._node,
            store=run.store,
            driver=run.driver,
            policy=run.policy,
            state=lambda: self._log.state,
            writes=writes,
            every_s=run.beat_s,
        )
        notices = NoticeWatch(
            node=self._node,
            metadata=metadata,
            append=run.driver.append,
            poll_s=config.notice_poll_s,
        )
        bodies = [self._link.run, heartbeat.run, self._log.run, peers.run, notices.run]
        if config.lifeline_fd is not None:
            bodies.append(Lifeline(config.lifeline_fd, self._outcomes).run)
        return [
            threading.Thread(target=body, args=(self._stop,), name=str(body), daemon=True)
            for body in bodies
        ]


class Lifeline:
    """Reports the end of a pipe that only the cloud's own process holds open."""

    def __init__(self, fd: int, outcomes: "queue.Queue[Outcome]") -> None:
        self._fd = fd
        self._outcomes = outcomes

    def run(self, stop: threading.Event) -> None:
        """Wait for the end of the pipe, or for `stop`."""
        while not stop.is_set():
            readable, _, _ = select.select([self._fd], [], [], 0.5)
            if readable and not os.read(self._fd, 4096):
                self._outcomes.put(Orphaned(why="the local cloud is gone"))
                return


def _open(store: Callable[[], Store], node: NodeId, *, deadline_s: float) -> _Run:
    """Open the store and read the run, and retry until `deadline_s`: an instance may be up before
    the network is. Raises the last error."""
    end_s = time.monotonic() + deadline_s
    while True:
        opened = opened_in_time(store, deadline_s=end_s - time.monotonic())
        try:
            driver, begin = join_run(opened, node, deadline_s=end_s - time.monotonic())
            job = job_from_json(opened.document("job"))
            return _Run(
                store=opened,
                driver=driver,
                policy=begin.policy,
                beat_s=job.cluster.beat_ms / 1000,
                state=driver.state(),
            )
        except BambooError as error:
            opened.close()
            # The store may go away, or lose the run, between two requests.
            if not isinstance(error, InputError | StoreUnavailable) or time.monotonic() > end_s:
                raise
            time.sleep(_RETRY_S)


def _kill(worker: WorkerProcess) -> None:
    """Send SIGKILL and wait until the worker has ended."""
    worker.kill()
    end_s = time.monotonic() + _KILL_DEADLINE_S
    while worker.poll() is None and time.monotonic() < end_s:
        time.sleep(WORKER_LOOK_S)
