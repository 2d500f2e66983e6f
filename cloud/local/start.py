"""The launcher's side of the local cloud: start it, find it again, end it, see that it is gone."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from bamboo.errors import BambooError
from bamboo.ids import InstanceId
from bamboo.loading import interpreter
from cloud.ending import StillLive
from cloud.local.begun import (
    READY_DEADLINE_S,
    STOP_DEADLINE_S,
    BegunCloud,
    begin_local_cloud,
)
from cloud.local.config import HostConfig, Ready
from cloud.local.control import ControlClient
from cloud.local.directory import remove_directory
from cloud.local.mock_calls import MOST_INSTANCES, RUN_CALLS
from cloud.local.reach import mock_trouble
from cloud.local.session import is_member, kill_members, members

SEEN_GONE_S = 2.0


class LocalCloud:
    """A running local cloud. Its fields are what `endpoint.json` keeps, so that another process
    can find it again with `LocalCloud(ready)`."""

    def __init__(
        self,
        ready: Ready,
        *,
        process: "subprocess.Popen[bytes] | None" = None,
        asks: int | None = None,
    ) -> None:
        self.ready = ready
        self.pid = ready.pid
        self.endpoint_url = ready.endpoint_url
        self.store_url = ready.store_url
        self.control_path = Path(ready.control_path)
        self.socket_dir = Path(ready.socket_dir)
        self.control = ControlClient(self.control_path)
        self._process = process
        self._asks = asks
        self._held: socket.socket | None = None

    @cached_property
    def token(self) -> str:
        """The session token that its mock of AWS requires. Raises BambooError without an answer."""
        return self.control.token()

    end_s = 15.0
    """How long it may take to end its instances in order; ending the cloud ends them too."""

    def record(self) -> Mapping[str, Any]:
        """What `endpoint.json` keeps of it."""
        return {"cloud": asdict(self.ready)}

    def prepare(self) -> None:
        """Everything was started already. Raises BambooError where its mock is unreachable."""
        if trouble := self.unreachable():
            raise BambooError(trouble)

    def unreachable(self) -> str:
        """What is wrong with its mock of AWS where that does not answer at all, else ""."""
        return mock_trouble(self.endpoint_url, pid=self.pid)

    def not_ended(self, error: StillLive) -> BambooError:
        """The error for instances that were not seen to end."""
        return BambooError(
            f"instances may still be running ({error.names}): their local cloud, process "
            f"{self.pid}, did not end them within {self.end_s:g} s; it is ended itself now, "
            "by force if need be, and they with it"
        )

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str) -> None:
        """Take an instance; returns when it is killed, or has its notice. Raises InputError."""
        self.control.preempt(instance, notice_s=notice_s, cause=cause)

    @property
    def has_store(self) -> bool:
        """Whether the run has its own embedded store, and not one that the user named."""
        return self.store_url.startswith(f"unix://{self.socket_dir}/")

    def alive(self) -> bool:
        """Whether its host process runs."""
        if self._process is not None:
            return self._process.poll() is None
        # In an old file the number may be another process's by now; the directory's name is not.
        return self.socket_dir.exists() and is_member(self.pid, self.pid)

    def hold(self, *, alone_s: float, until_s: float = 0.0) -> None:
        """Be the launcher of a detached run, until `release` or the end of this process. The cloud
        then goes on by itself for `alone_s`, or until the Unix time `until_s` if that is given.
        Raises BambooError when it does not answer."""
        held, self._held = self._held, self.control.hold(alone_s=alone_s, until_s=until_s)
        if held is not None:
            held.close()  # only now, so that it was never without a launcher

    def release(self) -> None:
        """Stop holding it; safe to call again."""
        if self._held is not None:
            self._held.close()
            self._held = None
        if self._asks is not None:
            os.close(self._asks)
            self._asks = None

    def stop(self, *, deadline_s: float = STOP_DEADLINE_S) -> None:
        """End it in order, then by force, and make sure that no process of its session and no
        directory is left. Safe to call again. Raises BambooError naming what is left at the
        deadline."""
        if self._process is None and not self.socket_dir.exists():
            return  # the reaper removes it last of all
        end_s = time.monotonic() + deadline_s
        if self.alive():
            with contextlib.suppress(BambooError):
                self.control.shutdown()
        patience_s = deadline_s * 2 / 3
        while not self._ended() and time.monotonic() < end_s - (deadline_s - patience_s):
            time.sleep(0.02)
        left = kill_members(self.pid, spare=0, deadline_s=end_s - time.monotonic())
        # A directory is left to remove here only when the reaper itself was killed. A process that
        # was killed just now may be visible for a moment, and may have written there until then.
        end_s = time.monotonic() + SEEN_GONE_S
        while not self._gone() and time.monotonic() < end_s:
            remove_directory(self.socket_dir)
            time.sleep(0.02)
        self.release()
        if left or not self._gone():
            raise BambooError(
                f"the local cloud left processes {left} or {self.socket_dir}; end them by hand"
            )

    def _gone(self) -> bool:
        return self._ended() and not self.socket_dir.exists()

    def _ended(self) -> bool:
        """Whether none of its processes runs, its reaper included."""
        if self._process is not None and self._process.poll() is None:
            return False
        return not members(self.pid)


def start_local_cloud(
    *,
    run: str,
    run_dir: Path,
    begun: BegunCloud | None = None,
    preload: Sequence[str] = ("bamboo.runtime.node.worker",),
    worker_entry: str = "bamboo.runtime.node.worker:main",
    store_url: str = "",
    store_reference: str = "",
    region: str = "us-east-1",
    agent_command: Sequence[str] = (),
    agent_environment: Mapping[str, str] | None = None,
    spot_usd_per_hour: Mapping[str, Mapping[str, float]] | None = None,
    most_instances: int = MOST_INSTANCES,
    calls: Collection[str] = RUN_CALLS,
    deadline_s: float = READY_DEADLINE_S,
) -> LocalCloud:
    """Start a local cloud for one run, or give the run the one that has `begun`, and wait until all
    of it answers.

    It ends when this process does, unless `LocalCloud.hold` says otherwise. With an empty
    `store_url` it starts an embedded Valkey whose data is in `run_dir/store`. Nodes read another
    store's URL from a private file; `LocalCloud.store_url` is then `store_reference`. An empty
    `agent_command` means `bamboo agent`. `spot_usd_per_hour` (type -> zone -> USD/h) is what the
    mock answers as spot prices. The mock runs `most_instances` at once and answers only `calls`
    (`service:Action`). Raises BambooError with the end of its log when it is not ready by
    `deadline_s`, InputError where it cannot run at all.
    """
    end_s = time.monotonic() + deadline_s
    begun = begun or begin_local_cloud(preload, deadline_s=deadline_s)
    config = HostConfig(
        run=run,
        run_dir=str(run_dir.resolve()),
        region=region,
        worker_entry=worker_entry,
        store_url=store_url,
        store_reference=store_reference or store_url,
        agent_command=tuple(agent_command) or tuple(interpreter("cli.main", "agent")),
        agent_environment=dict(agent_environment or {}),
        spot_usd_per_hour=dict(spot_usd_per_hour or {}),
        most_instances=most_instances,
        calls=tuple(calls),
    )
    ready = begun.start(config, deadline_s=end_s - time.monotonic())
    return LocalCloud(ready, process=begun.process, asks=begun.held.asks)
