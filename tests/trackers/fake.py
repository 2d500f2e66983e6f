"""`python -m bamboo.loading tests.trackers.fake RUN_DIR NAME KIND`: feeds a tracker that keeps what
it is told in a file, or misbehaves."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bamboo.loading import interpreter
from bamboo.trackers import process
from bamboo.trackers.adapters import ADAPTERS, TrackedRun
from bamboo.trackers.points import Point

SECRET = "s3cret-of-mine"


def command(kind: str) -> Any:
    """What feeds a fake tracker, as `Trackers` wants it."""
    return lambda path, name: interpreter("tests.trackers.fake", path, name, kind)


class Fake:
    """Its kind says what it does in place of taking points."""

    def __init__(self, tracked: TrackedRun, kind: str) -> None:
        self._folder, self._kind = tracked.folder, kind
        self._write({"opened": tracked.key})

    def _write(self, line: Mapping[str, Any]) -> None:
        with (self._folder / "kept.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _hang(self) -> None:
        (self._folder / "hangs").touch()
        while True:
            signal.pause()

    def job(self, values: Mapping[str, Any], *, step: int) -> None:
        self._write({"steps": values["train.steps"], "from": step})

    def log(self, points: Sequence[Point]) -> None:
        match self._kind:
            case "hangs":
                self._hang()
            case "holds":  # the interpreter, so that no thread of Python runs
                (self._folder / "hangs").touch()
                ctypes.PyDLL(None).sleep(1000)
            case "raises":
                raise ConnectionError(f"no route to https://me:{SECRET}@host/?token={SECRET}")
            case "dies" if any(point.step == 2 for point in points):
                os._exit(7)
            case "forks":  # a child that keeps all that was open
                if child := os.fork():
                    (self._folder / "child").write_text(str(child))
                    os._exit(7)
                self._hang()
        for point in points:
            self._write(asdict(point))

    def finish(self, outcome: str) -> None:
        self._write({"finished": outcome})
        if self._kind == "hangs in finish":
            self._hang()


def main(arguments: list[str]) -> int:
    """Feed it; a call that is to hang is ended after a second."""
    path, name, kind = arguments
    process.STALL_S = 1 if kind in ("hangs", "holds") else 60
    ADAPTERS[name] = lambda tracked: Fake(tracked, kind)
    return process.main([path, name])


def kept(run: Path, name: str) -> list[dict[str, Any]]:
    """What it wrote down."""
    path = run / "trackers" / name / "kept.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
