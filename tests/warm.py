"""`bamboo` command lines as forks of one process that has imported everything (`warm_child`): what
is shown of a command is the same, and it takes a third of the processor.

Whoever shows something of an interpreter's start, of command lines or environments in /proc, or of
closed descriptors, starts a real one.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from bamboo.loading import steady_environment
from cloud.local import begun
from cloud.local.environment import without_settings
from cloud.local.fork_starter import ForkedWorker, fork
from cloud.local.services import wait_for_zygote
from cloud.local.zygote import Request
from testbed.forker import DEADLINE_S, ROOT

MODULES = (
    *(
        "bamboo.wiring.worker",
        "bamboo.runs.segment",
        "cli.main",
        "cloud.local.mock_aws",
        "cloud.local.host",
    ),
    *(
        "bamboo.controller.launching",
        "bamboo.controller.attempt",
        "bamboo.controller.background",
        "cloud.local.valkey",
    ),
    *(
        "bamboo.runtime.check.preflight",
        "bamboo.runtime.check.verify",
        "bamboo.runtime.check.verify_samples",
        "bamboo.runtime.after.program",
    ),
    *("bamboo.runtime.check.profile", "tests.launches.boots", "tests.warm_child"),
)


class Process:
    """As a `subprocess.Popen`, but what it says goes to files: `said` is the one to tell of."""

    def __init__(self, worker: ForkedWorker, said: Path | None = None) -> None:
        self._worker, self._said = worker, said
        self.pid = worker.pid
        self.returncode: int | None = None
        try:
            self._handle: int | None = os.pidfd_open(worker.pid)
        except ProcessLookupError:
            self._handle = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._worker.poll()
            if self.returncode is not None:
                self._worker.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self._handle is not None:
            ended, _, _ = select.select([self._handle], [], [], timeout)
            if not ended:
                raise subprocess.TimeoutExpired(["bamboo"], timeout or 0.0)
            os.close(self._handle)
            self._handle = None
        if self.returncode is None:
            self.returncode = self._worker.wait()
            self._worker.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self.wait(timeout)
        assert self._said is not None
        return self._said.read_text(), None

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None and self._handle is not None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """The server; `close` ends it."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="bw-")
        self._socket = Path(self._directory.name) / "zygote"
        log = Path(self._directory.name) / "log"
        with log.open("ab") as errors:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "cloud.local.zygote", str(self._socket), *MODULES],
                cwd=ROOT,
                env=without_settings(os.environ) | {"PYTHONHASHSEED": "0"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )
        wait_for_zygote(self._server, log=log)

    def begin(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        output: int,
        errors: int,
        given: int | None = None,
        umask: int | None = None,
        said: Path | None = None,
        leads: bool = False,
    ) -> Process:
        """Begin `python -m WORDS` in this folder and environment, in this process's group or, where
        it `leads`, in a session of its own."""
        config = {
            "words": json.dumps(list(words)),
            "folder": str(folder),
            "environment": json.dumps(dict(environment)),
            "umask": "" if umask is None else str(umask),
            "leads": "yes" if leads else "",
        }
        group = os.getpgid(0)
        request = Request(entry="tests.warm_child:enter", config=config, group=group, log="")
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            streams = (nothing if given is None else given, output, errors)
            return Process(fork(self._socket, request, streams), said)
        finally:
            os.close(nothing)

    def run(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        timeout_s: float,
        umask: int | None = None,
        told: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """The same to its end on an input of `told`, and what it said."""
        with (
            tempfile.TemporaryFile() as asked,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            asked.write(told.encode())
            asked.seek(0)
            process = self.begin(
                words,
                folder=folder,
                environment=environment,
                output=out.fileno(),
                errors=err.fileno(),
                given=asked.fileno(),
                umask=umask,
            )
            try:
                process.wait(timeout=timeout_s)
            finally:
                process.kill()
                status = process.wait()
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode())
        return subprocess.CompletedProcess(list(words), status, *said)

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            self._server.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(timeout=DEADLINE_S)
        self._directory.cleanup()


def ran(*words: str, told: str = "") -> subprocess.CompletedProcess[str]:
    """`python -m WORDS` here, in an environment as a launcher gives it."""
    how: dict[str, Any] = {"folder": Path.cwd(), "environment": steady_environment()}
    return warm().run(words, timeout_s=60.0, told=told, **how)


class Asked:
    """A process with torch (`bamboo.wiring.torch_process.Asked`) that is a fork."""

    def __init__(self, module: Sequence[str]) -> None:
        (given, to), (said, output), (told, errors) = os.pipe(), os.pipe(), os.pipe()
        self._process = warm().begin(
            ["bamboo.loading", *module],
            folder=Path.cwd(),
            environment=steady_environment(),
            given=given,
            output=output,
            errors=errors,
            leads=True,
        )
        for end in (given, output, errors):
            os.close(end)
        self.stdin, self.stdout, self.stderr = os.fdopen(to, "w"), os.fdopen(said), os.fdopen(told)

    def wait(self) -> None:
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> int:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()


@cache
def warm() -> Warm:
    """The one of this process, started when first asked for."""
    return Warm()


@contextmanager
def begun_warm() -> Iterator[None]:
    """Local clouds that this process begins in the block are forks, too."""

    def popen(words: Sequence[str], **how: Any) -> Process:
        assert how.pop("start_new_session")
        return warm().begin(
            words[words.index("-m") + 1 :],
            folder=Path.cwd(),
            environment=how["env"],
            given=how["stdin"],
            output=how["stdout"],
            errors=how["stderr"],
            leads=True,
        )

    with mock.patch.object(begun, "subprocess", SimpleNamespace(Popen=popen)):
        yield


def close_warm() -> None:
    """End it, if there is one."""
    if warm.cache_info().currsize:
        warm().close()
        warm.cache_clear()
