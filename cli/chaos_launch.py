"""A `bamboo launch` in a process of its own, for somebody who watches it from outside.

Rule: it cannot outlive this process, and `close` leaves nothing of it behind.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from bamboo.errors import BambooError, InputError
from bamboo.ids import RunId
from cli import runs
from cli.runs import RunFolder

if TYPE_CHECKING:
    from cloud.local.start import LocalCloud

LEAVE_S = 60.0
"""So long an interrupted launcher may take to end everything."""
LOOK_S = 0.1


class LaunchedRun:
    """The launcher's process and the folder of its run."""

    def __init__(
        self, folder: RunFolder, process: "subprocess.Popen[bytes]", output: IO[bytes]
    ) -> None:
        self.folder = folder
        self.cloud: LocalCloud | None = None
        """Its local cloud, once that is known."""
        self._process = process
        self._output = output

    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> None:
        """Until it ends, but no longer than that."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=timeout_s)

    def wait_for_first_step(self, timeout_s: float) -> None:
        """Raises InputError for wrong input, BambooError when it ends or takes too long."""
        end_s = time.monotonic() + timeout_s
        metrics = self.folder.metrics
        while not (metrics.exists() and metrics.stat().st_size > 0):
            if self.ended():
                said = self.said() or "nothing"
                kind = InputError if self.status == InputError.exit_code else BambooError
                raise kind(f"the launcher ended before the first step: {said.splitlines()[-1]}")
            if time.monotonic() > end_s:
                raise BambooError(f"no step within {timeout_s:g} s of the launch")
            self.wait(LOOK_S)

    def said(self) -> str:
        """All that it has printed."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End it, gently at first, and keep what it said with the run's logs."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.ended():
                self._process.send_signal(number)
                self.wait(LEAVE_S)
        logs = self.folder.path / "logs"
        if logs.is_dir():
            (logs / "launch.log").write_text(self.said() + "\n", encoding="utf-8")
        self._output.close()


@contextmanager
def launched(job: Path, run: RunId, overrides: Sequence[str]) -> Iterator[LaunchedRun]:
    """Launch a job; ended at the end of the block, whatever ends that."""
    sets = [part for override in overrides for part in ("--set", override)]
    python = [sys.executable, "-P", "-m"]
    command = [*python, "cloud.local.lifeline", str(os.getpid()), *python, "cli.main"]
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the run
    process = subprocess.Popen(
        [*command, "launch", str(job), "--run", run, "--json", *sets],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,
    )
    found = LaunchedRun(RunFolder(id=run, path=runs.home() / run), process, output)
    try:
        yield found
    finally:
        found.close()
