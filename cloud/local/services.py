"""The helper processes besides the instances: reaper, fork server, store. Started by the host's
main thread, each tied to the host's life by a pipe or by the kernel."""

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from bamboo.errors import BambooError
from bamboo.loading import interpreter, steady_environment
from bamboo.new_files import open_to_append

ZYGOTE_READY_DEADLINE_S = 90.0
_STOP_DEADLINE_S = 2.0


def start_reaper(*, directory: Path, lifeline: int) -> subprocess.Popen[bytes]:
    """Start the last watcher. Until the directory has the link to a log, it writes to the host's
    own standard error."""
    return subprocess.Popen(
        interpreter("cloud.local.reaper", str(directory)),
        stdin=lifeline,
        stdout=subprocess.DEVNULL,
        process_group=0,
    )


def start_zygote(
    *,
    socket_path: Path,
    preload: Sequence[str],
    lifeline: int,
    log: Path | None,
    environment: Mapping[str, str] = os.environ,
) -> subprocess.Popen[bytes]:
    """Start the fork server; it and all workers to come get this environment. It is ready once
    `wait_for_zygote` has returned. Without a log it writes to this process's standard error."""
    socket_path.unlink(missing_ok=True)
    with nullcontext() if log is None else open_to_append(log) as output:
        return subprocess.Popen(
            interpreter("cloud.local.zygote", str(socket_path), *preload),
            stdin=lifeline,
            stdout=subprocess.PIPE,
            stderr=output,
            process_group=0,
            env=steady_environment(environment),
        )


def wait_for_zygote(
    zygote: subprocess.Popen[bytes], *, log: Path | None, launcher: int | None = None
) -> None:
    """Wait until the modules are imported. `launcher` is a pipe that ends when no process waits for
    this cloud any more. Raises BambooError with the end of its log, where it has one."""
    end_s = time.monotonic() + ZYGOTE_READY_DEADLINE_S
    received = b""
    assert zygote.stdout is not None
    with zygote.stdout as output:
        watched = [output.fileno(), *([] if launcher is None else [launcher])]
        while b"ready\n" not in received:
            readable, _, _ = select.select(watched, [], [], max(0.0, end_s - time.monotonic()))
            if launcher is not None and launcher in readable:
                if not os.read(launcher, 4096):
                    raise BambooError("the launcher is gone")
                continue
            part = os.read(output.fileno(), 4096) if readable else b""
            if not part:
                what = "ended" if readable else f"was not ready in {ZYGOTE_READY_DEADLINE_S} s"
                if log is not None:
                    what += "; its log ends:\n" + log.read_text(errors="replace")[-1500:]
                raise BambooError(f"the fork server {what}")
            received += part


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, a bounded wait, SIGKILL; returns when the process is reaped."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=_STOP_DEADLINE_S)
