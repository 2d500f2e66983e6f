"""A detached run as a user has it: launched by `bamboo launch --detach`, and attached to when its
launcher is gone.

Rule: `close` finds and ends every process of it. If this process itself is killed,
`budget.max_hours` ends the run.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bamboo.errors import BambooError, InputError
from bamboo.ids import RunId
from bamboo.loading import interpreter
from bamboo.new_files import open_to_append
from bamboo.runs import lock, run_folder
from bamboo.runs.run_folder import RunFolder
from bamboo.sites.here import SiteHere, is_of, site_here, tied

START_S = 360.0
LOOK_S = 0.1
KILLED_WITHIN_S = 10.0
AGAIN_S = 1.0
"""An `attach` that ended although the run goes on is called again after so long at the earliest."""


class LedRun:
    """The processes of one run, seen from outside."""

    def __init__(self, folder: RunFolder, cloud: SiteHere) -> None:
        self.folder = folder
        self.cloud = cloud
        self.launchers: set[int] = set()
        """Process ids of all launchers that the run has had."""
        self._killed: set[int] = set()
        self._left_alone = 0
        self._attached: subprocess.Popen[bytes] | None = None
        self._attach_at_s = 0.0

    def ended(self) -> bool:
        """Whether it has left its receipt."""
        return self.folder.receipt.exists()

    def launcher(self) -> int | None:
        """The live process that leads it, if there is one."""
        with contextlib.suppress(InputError):  # it exits while we look
            endpoint = self.folder.live_endpoint()
            if endpoint is not None:
                pid = int(endpoint["launcher_pid"])
                self.launchers.add(pid)
                return pid if is_of(pid, pid) else None
        return None

    def kill_launcher(self) -> None:
        """SIGKILL of the launcher and of what is attached, until `attend` is called as often.
        Raises ProcessLookupError when there is no launcher."""
        pid = self.launcher()
        if pid is None:
            raise ProcessLookupError("the run has no launcher")
        self._left_alone += 1
        self._detach()
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def attend(self) -> None:
        """Attach again."""
        self._left_alone -= 1
        self.look_after()

    def look_after(self) -> None:
        """Make sure that it is attached to where it has no launcher; call it often."""
        attached = self._attached is not None and self._attached.poll() is None
        if self._left_alone or attached or self.ended() or time.monotonic() < self._attach_at_s:
            return
        if self.launcher() is None and lock.is_free(self.folder):
            self._attach_at_s = time.monotonic() + AGAIN_S
            self._attached = self._attach()

    def gone_by_itself(self) -> int | None:
        """A launcher that ended although it was not killed and its run goes on."""
        if self.ended() or self.launcher() is not None or not lock.is_free(self.folder):
            return None
        unexplained = self.launchers - self._killed
        return next(iter(unexplained), None) if not self.ended() else None

    def close(self) -> None:
        """End everything that is left of it, by force."""
        self._detach()
        pid = self.launcher()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        self.cloud.stop()

    def _attach(self) -> "subprocess.Popen[bytes]":
        command = interpreter("cli.main", "attach", self.folder.id, "--json")
        with open_to_append(self.folder.path / "logs" / "attach.log") as log:
            return subprocess.Popen(
                tied(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def _detach(self) -> None:
        if self._attached is not None:
            self._attached.kill()
            self._attached.wait(KILLED_WITHIN_S)
            self._attached = None


@contextmanager
def led_run(job: Path, run: RunId, overrides: Sequence[str]) -> Iterator[LedRun]:
    """Launch a job. It is ended at the end of the block, whatever ends that. Raises InputError for
    wrong input, BambooError when the launch fails."""
    sets = [part for override in overrides for part in ("--set", override)]
    command = interpreter("cli.main", "launch", str(job), "--run", run)
    folder = RunFolder(id=run, path=run_folder.home() / run)
    try:
        done = subprocess.run(
            [*command, "--detach", "--json", *sets],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BambooError(
            f"the launch took longer than {START_S:g} s; see {folder.path}"
        ) from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        kind = InputError if done.returncode == InputError.exit_code else BambooError
        raise kind(said.removeprefix("error: "))
    led = LedRun(folder, site_here(folder))
    try:
        yield led
    finally:
        led.close()
