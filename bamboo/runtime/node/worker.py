"""A worker process: joins the run as a node, trains until it ends, and leaves in order.

`main(config)` is what an agent starts. Keys of `config`, all text: run, node, instance, zone,
store_url, socket_dir, bind_host (tcp only); and, each of which may be empty, run_dir, run_url (the
run's files in a bucket), start_url (what its launcher stored there), agent_socket, scratch_dir
(removed by the process that ends this node). Its exit status: 0 when it left in order, 3 when it
was fenced or refused, 4 when the store, or the bucket with the data, did not answer before it had
joined, 1 after a fault.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from torch import Tensor

from bamboo.checkpoint.final import write_stage
from bamboo.checkpoint.open import OpenObjects, checkpoint_store
from bamboo.checkpoint.run_files import put_stage
from bamboo.config.load import job_from_json
from bamboo.config.resolve import kept_in
from bamboo.coord.driver import Driver, join_run
from bamboo.coord.follow import Follower
from bamboo.coord.open import open_store, opened_in_time
from bamboo.coord.strategies import Strategies
from bamboo.core.events import NodeFailed, NodeJoined, NodeLeft
from bamboo.core.numerics import facts_of
from bamboo.core.state import Faults, State
from bamboo.errors import (
    BambooError,
    CoreMisuse,
    StorageUnavailable,
    StoreRefused,
    StoreUnavailable,
)
from bamboo.ids import InstanceId, NodeId, RunId, ZoneId
from bamboo.models.build import USER_ERRORS
from bamboo.ports import FENCED_STATUS, STORE_AWAY_STATUS, ObjectStore, Store
from bamboo.runtime.device.host_memory import touch
from bamboo.runtime.node.arrival import (
    JOIN_DEADLINE_S,
    NOTHING_BROUGHT,
    Brought,
    attests,
    brought_for,
    documents_of,
    load_builder,
    needed_bytes,
    objects_of,
    speed_of,
    warm_up,
    write_aside_in,
)
from bamboo.runtime.node.control import (
    OVERTAKEN_S,
    Poster,
    follow_log,
    report_to_agent,
    watch_peers,
)
from bamboo.runtime.node.faults import reason_of, scope_of
from bamboo.runtime.node.finish import KeepStage
from bamboo.runtime.node.preempt import Preemptions
from bamboo.runtime.node.trainer import Trainer
from bamboo.runtime.state.checkpoints import Checkpoints
from bamboo.runtime.state.decision import Decided, Goodbye
from bamboo.runtime.step.numerics import local_numerics
from bamboo.runtime.wire.keys import RunKeys
from bamboo.runtime.wire.link import VirtualLink
from bamboo.runtime.wire.login_guard import raise_file_limit
from bamboo.runtime.wire.transport import ZmqTransport
from bamboo.topology.strategy import Strategy

FAULT_STATUS = 1
LEAVE_DEADLINE_S = 5.0
RETRY_S = 0.1


def main(config: Mapping[str, str], *, bucket: OpenObjects | None = None) -> int:
    """Run a worker to its end and return its exit status. `bucket` opens an `s3://` address."""
    run, node = RunId(config["run"]), NodeId(config["node"])
    write_aside_in(config.get("scratch_dir", ""))
    try:
        store = opened_in_time(
            lambda: open_store(config["store_url"], run), deadline_s=JOIN_DEADLINE_S
        )
        driver, begin = join_run(store, str(node), deadline_s=JOIN_DEADLINE_S)
    except (StoreRefused, StoreUnavailable):
        traceback.print_exc()  # not a fault of this node, so it does not end the run
        return STORE_AWAY_STATUS
    overtaken = threading.Event()
    worker: _Worker | None = None
    try:
        try:
            documents = documents_of(store, deadline_s=JOIN_DEADLINE_S)
            objects = objects_of(config.get("run_url", ""), bucket)
            brought = objects_of(config.get("start_url", ""), bucket)
            data = NOTHING_BROUGHT if brought is None else brought_for(documents, brought, bucket)
            refused = attests(
                driver,
                job_from_json(documents["job"]),
                node=node,
                instance=InstanceId(config["instance"]),
                zone=ZoneId(config["zone"]),
            )
        except (StoreRefused, StoreUnavailable, StorageUnavailable):
            traceback.print_exc()
            return STORE_AWAY_STATUS
        if refused:
            sys.stderr.write(f"{node} is refused: {refused}\n")
            return FENCED_STATUS
        worker = _Worker(
            config,
            store=store,
            driver=driver,
            first=begin.state,
            documents=documents,
            bucket=bucket,
            objects=objects,
            data=data,
            overtaken=overtaken,
        )
        goodbye = worker.live()
    except USER_ERRORS as error:
        traceback.print_exc()
        _say_fault(driver, config, error, overtaken, worker.step() if worker else -1)
        return FAULT_STATUS  # where the user's code calls sys.exit(0), too
    return FENCED_STATUS if goodbye is Goodbye.FENCED else 0


def keep_in_folder(folder: Path) -> KeepStage:
    """Returns a function that stores a stage of the final state in the run's folder, which all
    nodes share. It raises StorageUnavailable when the folder takes no more, because that is not
    this node's fault alone."""

    def keep(
        stage: int, tensors: Mapping[str, Tensor], step: int, constant: Collection[str] = ()
    ) -> None:
        try:
            write_stage(folder, stage, tensors, step, constant)
        except OSError as error:
            words = f"the final state cannot be written to {folder}: {error}; make room"
            raise StorageUnavailable(words) from None

    return keep


def keep_in_bucket(objects: ObjectStore, *, patience_s: float) -> KeepStage:
    """Returns a function that stores a stage of the final state in the run's bucket. All that was
    trained may depend on it, so it tries for `patience_s` when the bucket is away, and then raises
    StorageUnavailable."""

    def keep(
        stage: int, tensors: Mapping[str, Tensor], step: int, constant: Collection[str] = ()
    ) -> None:
        give_up_s = time.monotonic() + patience_s
        while True:
            try:
                put_stage(objects, stage, tensors, step, constant)
            except StorageUnavailable:
                if time.monotonic() >= give_up_s:
                    raise
                time.sleep(RETRY_S)
            else:
                return

    return keep


def _say_fault(
    driver: Driver,
    config: Mapping[str, str],
    error: BaseException,
    overtaken: threading.Event,
    step: int = -1,
) -> None:
    """Report a fault of this node; the core decides whether the run ends for it. A node that was
    overtaken reports none: the run goes on without it."""
    if overtaken.is_set() or (isinstance(error, CoreMisuse) and overtaken.wait(OVERTAKEN_S)):
        return

    def before() -> Faults | None:
        try:
            return driver.state().faults
        except BambooError:  # the store is away
            return None

    event = NodeFailed(
        node=NodeId(config["node"]),
        instance=InstanceId(config["instance"]),
        zone=ZoneId(config["zone"]),
        scope=scope_of(error, before),
        reason=reason_of(error, run=config["run"], node=config["node"]),
        step=step,
    )
    try:
        driver.append(event, deadline_s=LEAVE_DEADLINE_S)
    except StoreUnavailable:
        traceback.print_exc()  # the store is away: the others will learn of it by this node's lease


class _Worker:
    def __init__(
        self,
        config: Mapping[str, str],
        *,
        store: Store,
        driver: Driver,
        first: State,
        documents: Mapping[str, str],
        bucket: OpenObjects | None,
        objects: ObjectStore | None,
        data: Brought,
        overtaken: threading.Event,
    ) -> None:
        self._overtaken = overtaken
        self._config = config
        self._store = store
        self._driver = driver
        self._bucket = bucket
        self._first = first
        self._documents = documents
        self._me = NodeId(config["node"])
        self._job = job_from_json(documents["job"])
        run_dir = config.get("run_dir", "")
        self._run_dir = Path(run_dir) if run_dir else None
        if self._run_dir is not None:
            self._job = kept_in(self._run_dir.absolute(), self._job)
        self._job = data.of(self._job)
        self._objects = objects
        self._data = data
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.step: Callable[[], int] = lambda: -1
        """The step that this node is in."""

    def live(self) -> Goodbye:
        threading.excepthook = self._thread_broke
        job, me = self._job, self._me
        strategy = Strategy.from_json(self._documents["strategy"])
        speed = speed_of(job, self._config["zone"])
        builder = load_builder(job, strategy, self._data, run_dir=self._run_dir, speed=speed)
        touch(needed_bytes(builder))
        warm_up(builder)
        transport = self._transport()
        log = self._run_dir / "events" / f"{me}.jsonl" if self._run_dir else None
        follower = Follower(self._driver)
        poster = Poster(
            self._store,
            self._driver,
            log,
            me,
            lambda: follower.state or self._first,
            overtaken=self._overtaken,
        )
        stamp_file = self._run_dir / "kills.jsonl" if self._run_dir else None
        checkpoints = self._checkpoints(strategy, poster)
        strategies = Strategies()
        trainer = Trainer(
            me=me,
            builder=builder,
            transport=transport,
            outbox=poster,
            preemptions=Preemptions(job.chaos.kill, node=str(me), stamp_file=stamp_file),
            keep_final=self._keep_final(),
            checkpoints=checkpoints,
            strategies=strategies,
        )
        executor = trainer.executor
        self.step = lambda: max((x.step for x in tuple(executor.owned.values())), default=-1)
        self._thread("save", lambda: checkpoints.work(self._stop))
        self._thread("follow", lambda: self._follow(follower, poster, trainer, strategies))
        self._thread("post", lambda: poster.work(self._stop))
        self._thread(
            "watch",
            lambda: watch_peers(
                transport=transport,
                driver=self._driver,
                me=me,
                state=lambda: follower.state or self._first,
                seen=trainer.saw_gone,
                stop=self._stop,
            ),
        )
        self._link_to_agent(trainer)
        poster.event(
            NodeJoined(
                node=me,
                instance=InstanceId(self._config["instance"]),
                zone=ZoneId(self._config["zone"]),
                endpoint=transport.endpoint,
                pid=os.getpid(),
                numerics=facts_of(local_numerics(job)),
            )
        )
        goodbye = trainer.run()
        if goodbye is Goodbye.ENDED:
            poster.event(NodeLeft(node=me, reason="the run is over"))
        poster.drained(LEAVE_DEADLINE_S)
        self._stop.set()
        for thread in self._threads:
            thread.join(LEAVE_DEADLINE_S)
        transport.close()
        self._store.close()
        return goodbye

    def _keep_final(self) -> KeepStage | None:
        """In the run's folder, or in its bucket where there is no folder."""
        if self._run_dir is not None:
            return keep_in_folder(self._run_dir / "final")
        if self._objects is None:
            return None
        # Within the time that the others, and the agent, allow for a step.
        return keep_in_bucket(self._objects, patience_s=self._job.cluster.step_timeout_s / 2)

    def _follow(
        self, follower: Follower, poster: Poster, trainer: Trainer, strategies: Strategies
    ) -> None:
        def tell(decided: Decided) -> None:
            if strategies.fetch(self._store, decided.state, self._stop):
                follower.note_documents(strategies.documents())
            trainer.tell(decided)

        follow_log(
            follower=follower,
            store=self._store,
            me=self._me,
            poster=poster,
            tell=tell,
            answered=trainer.log_watch.answered,
            overtaken=self._overtaken,
            stop=self._stop,
        )

    def _checkpoints(self, strategy: Strategy, poster: Poster) -> Checkpoints:
        config = self._job.checkpoint
        run = RunId(self._config["run"])
        return Checkpoints(
            me=self._me,
            run=run,
            semantic_hash=strategy.semantics.hash_at,
            objects=checkpoint_store(
                config.url,
                run=run,
                run_dir=self._run_dir,
                run_url=self._config.get("run_url", ""),
                bucket=self._bucket,
            ),
            config=config,
            last_step=self._job.train.steps,
            scratch=Path(tempfile.gettempdir()),
            outbox=poster,
            layers=json.loads(self._documents["limits"]).get("layers", ()),
        )

    def _transport(self) -> ZmqTransport:
        cluster = self._job.cluster
        link = None
        if cluster.virtual_link_gbps or cluster.virtual_link_latency_ms:
            link = VirtualLink(
                gbps=cluster.virtual_link_gbps, latency_s=cluster.virtual_link_latency_ms / 1e3
            )
        keys = None
        if cluster.transport == "ipc":
            bind = f"ipc://{self._config['socket_dir']}/{self._me}"
        else:
            bind = f"tcp://{self._config.get('bind_host') or '127.0.0.1'}:*"
            keys = RunKeys.from_dict(json.loads(self._documents["keys"]))
            raise_file_limit()
        return ZmqTransport(
            me=self._me,
            bind=bind,
            keys=keys,
            encrypt=cluster.encrypt,
            message_limit_bytes=json.loads(self._documents["limits"])["frame_bytes"],
            heartbeat_s=cluster.gone_s,
            link=link,
        )

    def _thread(self, name: str, body: "threading._Target") -> None:  # type: ignore[name-defined]
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _thread_broke(self, broken: threading.ExceptHookArgs) -> None:
        """A node that lost a thread would only half work, so this is a fault like any other."""
        if self._stop.is_set():
            return
        try:
            with contextlib.suppress(OSError):  # the log's disk may be full
                traceback.print_exception(broken.exc_value)
            if isinstance(broken.exc_value, Exception):
                step = self.step()
                _say_fault(self._driver, self._config, broken.exc_value, self._overtaken, step)
        finally:
            os._exit(1)

    def _link_to_agent(self, trainer: Trainer) -> None:
        path = self._config.get("agent_socket", "")
        if not path:
            return
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(LEAVE_DEADLINE_S)
        try:
            connection.connect(path)
        except OSError:
            _end_without_agent()
        cluster = self._job.cluster
        beat_s = cluster.beat_ms / 1e3
        # Its lease ends before the others report that they wait for it in vain.
        patience_s = max(cluster.gone_s, cluster.step_timeout_s - 2 * cluster.gone_s)
        self._thread(
            "agent",
            lambda: report_to_agent(
                connection,
                trainer.progress,
                beat_s=beat_s,
                patience_s=patience_s,
                agent_gone=_end_without_agent,
                taken=trainer.log_watch.taken,
                stop=self._stop,
            ),
        )


def _end_without_agent() -> None:
    """The instance is ending: end as though killed with it, which tells nothing about the run."""
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.stdin.readline())))
