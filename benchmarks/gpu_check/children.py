"""Processes that a part starts: measurements that answer in JSON, and commands of Bamboo.

Rule: each has a deadline, is the leader of a session of its own, and is ended by its id with all of
that session. What goes wrong is `ChildFailed`, with the last line that the process wrote.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MEASURE = "benchmarks.gpu_check.measure"
TO_END_S = 20.0
"""How long a launcher may take to end in order once it is asked to."""
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
LOOK_S = 0.2
CARD = "/dev/nvidia"
"""How the files of cards begin."""
SAID = 300
"""Characters of an error that are shown."""


class ChildFailed(RuntimeError):
    """A process ended with an error, or not in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The end of a part, by the monotonic clock."""

    end_s: float

    @classmethod
    def after(cls, limit_s: float) -> "Deadline":
        """The deadline in so many seconds."""
        return cls(end_s=time.monotonic() + limit_s)

    def left_s(self) -> float:
        """Seconds until the end; at least 0."""
        return max(self.end_s - time.monotonic(), 0.0)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, in which every child finds this checkout first, wherever it is
    started. The workspace of cuBLAS is fixed, because it decides bits."""
    known = dict(os.environ)
    old = [str(Path(p).resolve()) for p in known.get("PYTHONPATH", "").split(os.pathsep) if p]
    known["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *old]))
    known.setdefault(WORKSPACE, ":4096:8")
    return known | dict(more or {})


def measure(
    what: str,
    asked: Mapping[str, Any],
    *,
    timeout_s: float,
    more: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The answer of one measurement in a fresh process. Raises ChildFailed."""
    command = [sys.executable, "-m", MEASURE, what, json.dumps(asked)]
    done = run(command, timeout_s=timeout_s, more=more)
    if done.status != 0:
        raise ChildFailed(done.complaint())
    return done.answer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A process that has ended by itself."""

    status: int
    out: str
    err: str

    def complaint(self) -> str:
        """The last line that it wrote about what went wrong."""
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return " ".join(lines[-1].split())[:SAID] if lines else f"it ended with {self.status}"

    def answer(self) -> dict[str, Any]:
        """The JSON object in the last line of its standard output. Raises ChildFailed."""
        lines = self.out.strip().splitlines()
        try:
            found = json.loads(lines[-1]) if lines else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ChildFailed(f"it gave no answer: {self.complaint()}")
        return found


def run(command: Sequence[str], *, timeout_s: float, more: Mapping[str, str] | None = None) -> Done:
    """Run a process to its end. Raises ChildFailed when it takes longer than `timeout_s`; it is
    then ended, with its session."""
    process = _start(command, more)
    try:
        out, err = process.communicate(timeout=max(timeout_s, 0.1))
    except subprocess.TimeoutExpired:
        end(process)
        _, err = process.communicate(timeout=TO_END_S)
        said = err.strip().splitlines()[-1][:SAID] if err.strip() else "nothing"
        raise ChildFailed(f"not done within {timeout_s:.0f} s; it said last: {said}") from None
    finally:
        end(process)
    return Done(status=process.returncode, out=out, err=err)


@contextlib.contextmanager
def beside(what: str, asked: Mapping[str, Any], *, timeout_s: float) -> Iterator[int]:
    """A measurement that goes on until the block ends; its process id, once it has said that it is
    ready. Raises ChildFailed when it does not say so in time."""
    process = _start([sys.executable, "-m", MEASURE, what, json.dumps(asked)], None)
    assert process.stdout is not None
    late = threading.Timer(timeout_s, lambda: end(process, at_once=True))
    late.start()
    try:
        line = process.stdout.readline()
        late.cancel()
        if not line:
            raise ChildFailed(f"{what} was not ready within {timeout_s:.0f} s")
        yield process.pid
    finally:
        late.cancel()
        end(process, at_once=True)
        process.communicate(timeout=TO_END_S)


def _start(command: Sequence[str], more: Mapping[str, str] | None) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        list(command),
        cwd=ROOT,
        env=environment(more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: "subprocess.Popen[str]", *, at_once: bool = False) -> None:
    """End a process and all of its session: by request, then by force. Does nothing for those that
    have ended."""
    if process.poll() is None and not at_once:
        process.send_signal(signal.SIGINT)
        give_up_s = time.monotonic() + TO_END_S
        while process.poll() is None and time.monotonic() < give_up_s:
            time.sleep(0.05)
    for pid in _in_session(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def on_the_card(variable: str) -> Iterator[set[int]]:
    """The ids of processes that have this variable in their environment and have opened a card at
    some time of the block."""
    seen: set[int] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            seen.update(_with_card(variable))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(TO_END_S)


def _with_card(variable: str) -> list[int]:
    out = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            words = (folder / "environ").read_bytes().split(b"\0")
            named = any(word.startswith(f"{variable}=".encode()) for word in words)
            if named and any(os.readlink(x).startswith(CARD) for x in folder.glob("fd/*")):
                out.append(int(folder.name))
    return out


def _in_session(session: int) -> list[int]:
    out = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            # After the name, which may contain anything: state, parent, group, session.
            if int(file.read_text().rpartition(")")[2].split()[3]) == session:
                out.append(int(file.parent.name))
    return out
