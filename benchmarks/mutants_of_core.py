"""How many mutants of a room its own tests kill (`make mutants`).

    python -m benchmarks.mutants_of_core [--seed 1] [--count 150] [--room core] [--test-s 2]

Draws mutants by a seed out of all that `measuring/mutations.py` finds in `bamboo/ROOM`, and plays
`tests/ROOM` against each one in a copy of the tree: the tests that run the mutated function, the
quickest first, until one fails. Outside of functions all tests count. A mutant under which a test
takes several times its CPU time is killed as well. The survivors are listed with their diffs; what
is left out by rule stands in `EXCLUDED`. Equivalent mutants that no rule finds count as survivors.
`--test-s` leaves out tests that take more CPU seconds: what they alone would kill counts as a
survivor too.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measuring.claim import Claim
from benchmarks.measuring.mutations import EXCLUDED, Mutant, mutants_of
from benchmarks.measuring.options import at_least, more_than_zero, parsed, selected
from benchmarks.measuring.report import command_of, write_result

ROOT = Path(__file__).resolve().parents[1]
LEAST_KILLED = 0.85
SLOWER, SPARE_S = 5.0, 2.0
"""A mutant is killed as too slow after so many times a test's CPU time, and so much more."""


class Tests:
    """The tests of one room in a copy of the tree."""

    def __init__(self, copy: Path, room: str) -> None:
        self._copy, self._room = copy, room
        self._process = self._started()
        self._writes = 0

    def play(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request (`measuring/core_tests.py`)."""
        return _answer(self._process, request)

    def play_anew(self, path: str, text: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The same with another text of a file, in a process of its own."""
        place = self._copy / path
        before = place.read_text(encoding="utf-8")
        self._write(place, text)
        process = self._started()
        try:
            return _answer(process, request)
        finally:
            _end(process)
            self._write(place, before)

    def close(self) -> None:
        _end(self._process)

    def _started(self) -> "subprocess.Popen[str]":
        runner = ROOT / "benchmarks" / "measuring" / "core_tests.py"
        return subprocess.Popen(
            [sys.executable, str(runner), f"tests/{self._room}"],
            cwd=self._copy,
            env={name: os.environ[name] for name in os.environ if name != "PYTHONPATH"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _write(self, place: Path, text: str) -> None:
        """Its time is another one each time, so no compiled module is taken for that of an earlier
        text of the same length."""
        self._writes += 1
        place.write_text(text, encoding="utf-8")
        os.utime(place, (self._writes, self._writes))


def _answer(process: "subprocess.Popen[str]", request: Mapping[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it has said why it ended
        print(json.dumps(request), file=process.stdin, flush=True)
    answer: dict[str, Any] = json.loads(process.stdout.readline() or '{"failed": "the start"}')
    return answer


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()


@contextlib.contextmanager
def copied(room: str) -> Iterator[Tests]:
    """A copy of what the tests of a room need, and a process that plays them there."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder).resolve()
        for place in ROOT.glob("*/__init__.py"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(place.parent, copy / place.parent.name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", copy)
        tests = Tests(copy, room)
        try:
            yield tests
        finally:
            tests.close()


def sources(room: str) -> dict[str, str]:
    """The text of each Python file of a room, by its path from the root."""
    files = sorted((ROOT / "bamboo" / room).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def drawn(texts: Mapping[str, str], seed: int, count: int) -> tuple[int, list[Mutant]]:
    """The number of all places, and so many mutants drawn from them."""
    places = [mutant for path, text in texts.items() for mutant in mutants_of(path, text)]
    order = random.Random(seed).sample(places, len(places))
    valid = (mutant for mutant in order if mutant.is_another(texts[mutant.path]))
    return len(places), [mutant for mutant, _ in zip(valid, range(count), strict=False)]


def reaching(known: Mapping[str, Any], mutant: Mutant) -> dict[str, float]:
    """The tests that run the mutated function with their limits of CPU seconds, the quickest
    first."""
    place = [mutant.path, mutant.function]
    found = {
        name: seconds
        for name, (seconds, reached) in known.items()
        if mutant.function is None or reached is None or place in reached
    }
    by_time = sorted(found, key=lambda name: found[name])
    return {name: SLOWER * found[name] + SPARE_S for name in by_time}


def played(tests: Tests, reached: Mapping[str, float], mutant: Mutant, text: str) -> str:
    """The name of the test that kills a mutant; "" when it survives."""
    if not reached:
        return ""
    request: dict[str, Any] = {"tests": reached}
    if mutant.function is None:
        answer = tests.play_anew(mutant.path, mutant.apply(text), request)
    else:
        request["mutant"] = [mutant.path, mutant.function, mutant.apply(text)]
        answer = tests.play(request)
    killer: str = answer["failed"]
    return killer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--count", type=at_least(1), default=150)
    parser.add_argument("--room", default="core")
    parser.add_argument("--test-s", type=more_than_zero, default=1000.0)
    arguments = parsed(parser)
    room, texts = arguments.room, sources(arguments.room)
    if not texts or not (ROOT / "tests" / room).is_dir():
        parser.error(f"--room {room}: name a folder of bamboo/ that has one in tests/ too")
    places, mutants = drawn(texts, arguments.seed, arguments.count)
    survivors: list[dict[str, Any]] = []
    killers: Counter[str] = Counter()
    with copied(room) as tests:
        calm = tests.play({"most_s": arguments.test_s})
        if calm["failed"]:
            raise SystemExit(f"error: {calm['failed']} fails without a mutant; mend it first")
        known = calm["tests"]
        for number, mutant in enumerate(mutants, start=1):
            text = texts[mutant.path]
            killer = played(tests, reaching(known, mutant), mutant, text)
            where = f"{mutant.path}:{mutant.line}"
            print(f"{number:4} {where} {mutant.kind}: {killer or 'SURVIVED'}", flush=True)
            if killer:
                killers[killer] += 1
                continue
            diff = mutant.diff(text)
            print("\n".join(diff), flush=True)
            survivors.append({"at": where, "kind": mutant.kind, "diff": diff})
    killed = 1 - len(survivors) / len(mutants)
    claim = Claim(
        about=f"mutants of {room} killed", found=killed, limit=LEAST_KILLED, at_most=False
    )
    print(claim.line())
    body = {
        "claims": [{"about": claim.about, "found": killed, "limit": LEAST_KILLED}],
        "places": places,
        "mutants": len(mutants),
        "left_out": EXCLUDED,
        "tests": len(known),
        "tests_left_out": calm["left_out"],
        "survivors": survivors,
        "killed_by": dict(killers.most_common()),
    }
    parts = selected(parser, arguments, "room", "seed", "count")
    print(write_result("mutants-of-core", command_of("mutants_of_core", arguments), body, *parts))


if __name__ == "__main__":
    main()
