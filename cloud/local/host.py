"""The local cloud: the process that stands for AWS during a run on one machine.

`… cloud.local.host MODULE…` starts a fork server that has imported the modules, and answers with
Begun on standard output. So far it belongs to no run. It reads a HostConfig from standard input,
starts everything else that a run needs, and answers with Ready. Inside: moto and the metadata
services in HTTP threads; a store, a fork server and a reaper as children; one process group per
running instance. The main thread's loop makes all decisions and starts all processes; moto's
threads only wake it.
"""

import contextlib
import heapq
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bamboo import loading
from bamboo.disk import full_disk
from bamboo.errors import BambooError
from bamboo.new_files import open_to_append
from bamboo.private_files import keep_private
from cloud.local import fork_starter, reaper, services
from cloud.local.config import FILE_REFERENCE, Begun, HostConfig, Ready
from cloud.local.control import Answer, ControlServer, seconds_of
from cloud.local.directory import (
    Places,
    choose_directory,
    make_directory,
    make_scratch,
    scratch_of,
    zygote_of,
)
from cloud.local.environment import leave_settings
from cloud.local.faults import Market
from cloud.local.instances import Instances
from cloud.local.metadata import MetadataService
from cloud.local.valkey import ValkeyChild, start_valkey

_RESTARTS = 3
_LONGEST_WAIT_S = 3600.0
STORE_LOOK_S = 0.5
"""Seconds between two checks whether the disk has room for the store again."""

log = logging.getLogger("bamboo.local-cloud")


class Timers:
    """Calls that a loop is to make later."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_s: float, then: Callable[[], None]) -> None:
        """Call `then` after `delay_s`."""
        self._count += 1
        heapq.heappush(self._heap, (time.monotonic() + delay_s, self._count, then))

    def until_next_s(self) -> float | None:
        """How long the loop may wait; None: for ever."""
        if not self._heap:
            return None
        # The kernel refuses a wait of a month; after an early wake-up the loop waits again.
        return min(_LONGEST_WAIT_S, max(0.0, self._heap[0][0] - time.monotonic()))

    def call_due(self) -> None:
        """Make the calls that are due."""
        while self._heap and self._heap[0][0] <= time.monotonic():
            heapq.heappop(self._heap)[2]()


class KeptStore:
    """The store of a run here, which is started again when it ends and may be."""

    def __init__(
        self,
        places: Places,
        *,
        watch: Callable[[int, Callable[[], None]], None],
        after: Callable[[float, Callable[[], None]], None],
        may_restart: Callable[[int], bool],
    ) -> None:
        self._places = places
        self._watch = watch
        self._after = after
        self._may_restart = may_restart
        self._child = self._start()

    @property
    def url(self) -> str:
        return self._child.url

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def watch_it(self) -> None:
        """See it end."""
        self._watch(self.pid, self._ended)

    def stop(self) -> None:
        self._child.stop()

    def _start(self) -> ValkeyChild:
        return start_valkey(
            data_dir=self._places.run_dir / "store",
            socket_path=self._places.store,
            log_path=self._places.logs / "store.log",
        )

    def _ended(self) -> None:
        status = self._child.process.wait()
        full = full_disk(self._places.run_dir)
        if full:
            # The store ends rather than answer for what is not on disk; that is not its fault.
            log.warning("the store ended with status %d: %s", status, full)
            self._after(STORE_LOOK_S, self._when_there_is_room)
        elif self._may_restart(status):
            self._restart()

    def _when_there_is_room(self) -> None:
        """Workers train on meanwhile. The launcher decides how long a store may be away."""
        if full_disk(self._places.run_dir):
            self._after(STORE_LOOK_S, self._when_there_is_room)
        else:
            log.info("there is room again; starting the store")
            self._restart()

    def _restart(self) -> None:
        try:
            self._child = self._start()
        except BambooError as error:
            log.warning("%s", error)
            if full_disk(self._places.run_dir):
                self._after(STORE_LOOK_S, self._when_there_is_room)
            elif self._may_restart(1):
                self._after(STORE_LOOK_S, self._restart)
            return
        self.watch_it()


class Host:
    """Everything of one local cloud, from start to end, in one thread."""

    _config: HostConfig
    _places: Places

    def __init__(self, directory: Path, preload: Sequence[str], *, lifeline: int) -> None:
        self._directory = directory
        self._preload = preload
        self._lifeline = lifeline
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._ending = ""
        self._restarts_left = _RESTARTS
        self._timers = Timers()
        self._store: KeptStore | None = None
        self._detached = False
        self._alone_s = 0.0
        self._alone_until_s = 0.0
        self._alone_end_s: float | None = None
        # Before the mock is imported, because its import reads such settings.
        self._users_environment = leave_settings()

    def begin(self) -> Begun:
        """Start the fork server, before its run is known. Raises BambooError when it fails."""
        directory = self._directory
        self._reaper = services.start_reaper(directory=directory, lifeline=self._lifeline)
        make_directory(directory)  # the reaper now removes it, whatever is killed
        make_scratch(directory)
        self._zygote = self._start_zygote(None)
        # moto takes a while to import; the fork server imports at the same time.
        with loading.for_good():
            import cloud.local.mock_aws  # noqa: F401
        services.wait_for_zygote(self._zygote, log=None, launcher=0)
        return Begun(fork_server=str(zygote_of(directory)))

    def start(self, config: HostConfig) -> Ready:
        """Start all other parts, for this run. Raises BambooError when one does not come up."""
        from cloud.local.mock_aws import MockAws

        places = Places(directory=self._directory, run_dir=Path(config.run_dir))
        self._config = config
        self._places = places
        log_to(places.logs / "cloud.log", directory=places.directory)
        fork_starter.log_to(places.zygote, places.logs / "zygote.log")
        if config.store_url:
            write_private(places.store_url, config.store_url)
        else:
            self._store = KeptStore(
                places,
                watch=self._watch,
                after=self._timers.after,
                may_restart=partial(self._may_restart, "store"),
            )
        metadata = MetadataService()
        market = Market(config.spot_usd_per_hour)
        self._aws = MockAws(
            metadata=metadata,
            market=market,
            on_change=self._wake,
            calls=config.calls,
            most_instances=config.most_instances,
        )
        self._aws.start()
        self._instances = Instances(
            aws=self._aws,
            metadata=metadata,
            market=market,
            selector=self._selector,
            run_dir=places.run_dir,
            scratch=scratch_of(places.directory),
            command=config.agent_command,
            environment=self._agent_environment(),
            lifeline=self._lifeline,
            after=self._timers.after,
        )
        self._control = ControlServer(
            path=places.control,
            selector=self._selector,
            handle=self._handle,
            alone=self._count_alone,
        )
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._woken)
        self._selector.register(0, selectors.EVENT_READ, self._launcher_spoke)
        self._watch_services()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._end(f"signal {number}"))
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        return Ready(
            pid=os.getpid(),
            endpoint_url=self._aws.url,
            store_url=self._store_url(config.store_reference),
            control_path=str(places.control),
            socket_dir=str(places.directory),
        )

    def serve(self) -> None:
        """Serve until a shutdown is requested."""
        while not self._ending:
            for key, _ in self._selector.select(self._timers.until_next_s()):
                key.data()
            self._timers.call_due()
        log.info("ending: %s", self._ending)

    def stop(self) -> None:
        """End all instances, then the helpers. The reaper ends what is missed here."""
        self._control.close()
        self._instances.end_all()
        self._aws.stop()
        services.stop(self._zygote)
        if self._store is not None:
            self._store.stop()

    # ------------------------------------------------------------ parts

    def _start_zygote(self, log: Path | None) -> subprocess.Popen[bytes]:
        return services.start_zygote(
            socket_path=zygote_of(self._directory),
            preload=self._preload,
            lifeline=self._lifeline,
            log=log,
            environment=self._users_environment,
        )

    def _store_url(self, otherwise: str) -> str:
        return otherwise if self._store is None else self._store.url

    def _agent_environment(self) -> dict[str, str]:
        """The environment of every agent, without its own metadata endpoint."""
        places, config = self._places, self._config
        return {
            **config.agent_environment,
            "BAMBOO_RUN": config.run,
            "BAMBOO_RUN_DIR": str(places.run_dir),
            "BAMBOO_REDIS_URL": self._store_url(f"{FILE_REFERENCE}{places.store_url}"),
            "BAMBOO_SOCKET_DIR": str(places.directory),
            "BAMBOO_ZYGOTE": str(places.zygote),
            "BAMBOO_WORKER_ENTRY": config.worker_entry,
            "BAMBOO_LIFELINE_FD": "0",
            "BAMBOO_BOOT": "0",
            "BAMBOO_NOTICE_POLL_S": "0.2",
            "AWS_ENDPOINT_URL": self._aws.url,
            "AWS_REGION": config.region,
            "AWS_DEFAULT_REGION": config.region,
        }

    def _watch_services(self) -> None:
        self._watch(self._reaper.pid, self._reaper_ended)
        self._watch(self._zygote.pid, self._zygote_ended)
        if self._store is not None:
            self._store.watch_it()

    def _watch(self, pid: int, then: Callable[[], None]) -> None:
        """Call `then` once, from the loop, when child `pid` has ended."""
        pidfd = os.pidfd_open(pid)

        def ended() -> None:
            self._selector.unregister(pidfd)
            os.close(pidfd)
            then()

        self._selector.register(pidfd, selectors.EVENT_READ, ended)

    def _reaper_ended(self) -> None:
        if self._may_restart("reaper", self._reaper.wait()):
            self._reaper = services.start_reaper(
                directory=self._places.directory, lifeline=self._lifeline
            )
            self._watch(self._reaper.pid, self._reaper_ended)

    def _zygote_ended(self) -> None:
        if self._may_restart("fork server", self._zygote.wait()):
            zygote_log = self._places.logs / "zygote.log"
            self._zygote = self._start_zygote(zygote_log)
            services.wait_for_zygote(self._zygote, log=zygote_log)
            self._watch(self._zygote.pid, self._zygote_ended)

    def _may_restart(self, what: str, status: int) -> bool:
        self._restarts_left -= 1
        log.warning("the %s ended with status %d", what, status)
        if self._restarts_left < 0:
            self._end(f"the {what} ended with status {status}, and too often")
        return not self._ending

    # ------------------------------------------------------------ what wakes the loop

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes the loop as well
            os.write(self._wake_write, b"\0")

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        self._instances.reconcile()

    def _launcher_spoke(self) -> None:
        if os.read(0, 4096):
            return
        self._selector.unregister(0)
        if not self._detached:
            self._end("the launcher is gone")

    def _hold(self, *, alone_s: float, until_s: float) -> None:
        """A launcher of a detached run is here; the call says what happens when it goes."""
        self._detached = True
        self._alone_s = alone_s
        self._alone_until_s = until_s
        self._alone_end_s = None

    def _count_alone(self) -> None:
        """The last launcher has gone. Another may never come, so this needs an end."""
        if self._ending:
            return
        until_s, now_s = self._alone_until_s, time.time()
        left_s = max(0.0, until_s - now_s) if until_s > 0 else self._alone_s
        self._alone_end_s = time.monotonic() + left_s
        self._timers.after(left_s, self._end_if_alone)
        log.info("the launcher is gone; the end comes in %.0f s unless another one comes", left_s)

    def _end_if_alone(self) -> None:
        if self._alone_end_s is not None and time.monotonic() >= self._alone_end_s:
            self._end("no launcher came back in time")

    def _end(self, why: str) -> None:
        self._ending = self._ending or why

    def _handle(self, request: Mapping[str, Any]) -> Answer:
        match request["op"]:
            case "shutdown":
                self._end("asked to")
                return {"ok": True}
            case "hold":
                self._hold(
                    alone_s=seconds_of(request, "alone_s"), until_s=seconds_of(request, "until_s")
                )
                return {"ok": True}
            case "token":
                return {"ok": True, "token": self._aws.token}
            case "services":
                store = None if self._store is None else self._store.pid
                return {"ok": True, "services": {"store": store, "fork-server": self._zygote.pid}}
            case "instances" | "preempt" | "notice" | "advise" | "refuse" | "relent":
                return self._instances.handle(request)
            case other:
                raise ValueError(f"unknown op {other!r}")


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def read_config() -> HostConfig:
    """The first line of standard input, byte by byte, because what follows must stay in the
    pipe."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise BambooError("the launcher went before it said what to start")
        line += byte
    return HostConfig.parse(line)


def log_to(log: Path, *, directory: Path) -> None:
    """Send the output of this process there from now on, and at the end the reaper's."""
    with open_to_append(log) as output:
        os.dup2(output.fileno(), 2)
    reaper.log_of(directory).symlink_to(log)


def main(preload: Sequence[str]) -> int:
    """Begin, start, serve, stop. 0 after an orderly end, 1 when a part did not come up."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    loading.until_the_end()
    keep_private()
    lifeline, _held_until_exit = os.pipe()
    host = Host(choose_directory(), preload, lifeline=lifeline)
    try:
        os.write(1, host.begin().line())
        ready = host.start(read_config())
    except (BambooError, OSError, ImportError) as error:
        log.error("cannot start: %s", error)
        # Without its host the reaper ends whatever was started and removes the directory.
        return 1
    os.write(1, ready.line())
    os.dup2(2, 1)
    host.serve()
    host.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
