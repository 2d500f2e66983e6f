"""A local cloud before it belongs to a run: its fork server answers, and it waits for its run.

Rule: the process that holds the pipe to it is its launcher. The pipe can be handed to a child, so
the cloud is never without a launcher. When no process holds it, the cloud ends.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bamboo import extras
from bamboo.errors import BambooError, InputError
from bamboo.loading import interpreter, let_outlive
from bamboo.new_files import open_to_append
from cloud.local.config import Begun, HostConfig, Ready
from cloud.local.fork_starter import ForkedWorker, fork
from cloud.local.session import is_member, kill_members, members
from cloud.local.zygote import Request

READY_DEADLINE_S = 120.0
STOP_DEADLINE_S = 15.0
STORE_VARIABLE = "BAMBOO_REDIS_URL"
_TAIL_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the launcher holds of a host: process id, fork server's socket, and three descriptors,
    for requests, for answers, and for the file with its error output."""

    pid: int
    fork_server: str
    asks: int
    answers: int
    log: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.asks, self.answers, self.log)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Held":
        """In a process that inherits the descriptors."""
        held = cls(**json.loads(text))
        for descriptor in held.descriptors:
            os.set_inheritable(descriptor, False)
        return held


class BegunCloud:
    """A local cloud that does not belong to a run yet. Its fork server has imported what workers
    need, and can already fork for others. `process` is its host, where that is a child of this
    process."""

    def __init__(self, held: Held, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.held = held
        self.process = process

    def fork(
        self, *, entry: str, config: Mapping[str, str], streams: tuple[int, int, int]
    ) -> ForkedWorker:
        """Call `entry` with `config` in a fork with these streams and a process group of its own.
        Nothing is left of the group when its end is reported. Raises BambooError where that
        fails."""
        request = Request(entry=entry, config=config, group=0, log="")
        return fork(Path(self.held.fork_server), request, streams)

    def start(self, config: HostConfig, *, deadline_s: float) -> Ready:
        """Make it this run's cloud; `held.asks` stays open. Raises BambooError with the end of its
        log when it is not ready in time, and gives it up then."""
        held, logs = self.held, Path(config.run_dir) / "logs"
        with contextlib.ExitStack() as undo:
            undo.callback(self.give_up)  # also when the wait is interrupted
            logs.mkdir(parents=True, exist_ok=True)
            with open_to_append(logs / "cloud.log") as log:
                log.write(_said(held.log))
            _tell(held.asks, config.line())
            line = _line(held.answers, deadline_s=deadline_s)
            if line:
                undo.pop_all()
                os.close(held.answers)
                os.close(held.log)
                return Ready.parse(line)
        said = (logs / "cloud.log").read_text(errors="replace")
        raise BambooError(f"the local cloud did not start; its log ends:\n{_end_of(said)}")

    def give_up(self) -> None:
        """End it; nothing is left of it."""
        self.let_go(lives=False)
        _abandon(self.held.pid, self.process)

    def let_go(self, *, lives: bool = True) -> None:
        """Release it, because another process has it now, to which it was handed over."""
        for descriptor in self.held.descriptors:
            os.close(descriptor)
        if lives and self.process is not None:
            let_outlive(self.process)


def begin_local_cloud(
    preload: Sequence[str], *, deadline_s: float = READY_DEADLINE_S
) -> BegunCloud:
    """Start the part of a local cloud that is the same for every run, and wait until its fork
    server has imported the modules `preload`.

    Raises BambooError with the end of its log when that is not done by `deadline_s`, InputError
    where a local cloud is impossible.
    """
    if sys.platform != "linux":
        raise InputError(
            f"the local cloud needs Linux, this is {sys.platform}; "
            "start the launch in a Linux container"
        )
    extras.need("local", what="a launch on this machine")
    with contextlib.ExitStack() as undo:
        asked, asks = os.pipe()
        undo.callback(os.close, asks)
        answers, says = os.pipe()
        undo.callback(os.close, answers)
        with tempfile.TemporaryFile() as file:  # there is no run that could keep one
            log = os.dup(file.fileno())
        undo.callback(os.close, log)
        try:
            process = subprocess.Popen(
                interpreter("cloud.local.host", *preload),
                stdin=asked,
                stdout=says,
                stderr=log,
                start_new_session=True,
                # Its children inherit the environment, and the URL may contain a password.
                env={k: v for k, v in os.environ.items() if k != STORE_VARIABLE},
            )
        finally:
            os.close(asked)
            os.close(says)
        undo.callback(_abandon, process.pid, process)  # also when the wait is interrupted
        line = _line(answers, deadline_s=deadline_s)
        if line:
            undo.pop_all()
            server = Begun.parse(line).fork_server
            held = Held(pid=process.pid, fork_server=server, asks=asks, answers=answers, log=log)
            return BegunCloud(held, process)
        said = _said(log).decode(errors="replace")
    raise BambooError(f"the local cloud did not start; its log ends:\n{_end_of(said)}")


def _abandon(pid: int, process: "subprocess.Popen[bytes] | None") -> None:
    """End a host that belongs to no run. Its own reaper, if there is one, removes the rest."""
    if process is not None:
        process.kill()
        process.wait(timeout=STOP_DEADLINE_S)
    elif is_member(pid, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end_s = time.monotonic() + STOP_DEADLINE_S
    while members(pid) and time.monotonic() < end_s:
        time.sleep(0.02)
    kill_members(pid, spare=0, deadline_s=STOP_DEADLINE_S)


def _line(answers: int, *, deadline_s: float) -> bytes:
    """The host's answer, or nothing when it ended or the deadline passed."""
    end_s = time.monotonic() + deadline_s
    received = b""
    while not received.endswith(b"\n"):
        readable, _, _ = select.select([answers], [], [], max(0.0, end_s - time.monotonic()))
        part = os.read(answers, 65536) if readable else b""
        if not part:
            return b""
        received += part
    return received


def _tell(asks: int, line: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # it was killed meanwhile and will not answer
        while line:
            line = line[os.write(asks, line) :]


def _said(log: int) -> bytes:
    """The whole log, without moving the position of its writers."""
    return os.pread(log, os.fstat(log).st_size, 0)


def _end_of(text: str) -> str:
    return text[-_TAIL_CHARACTERS:].strip() or "(empty)"
