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
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measuring.claim import Claim
from benchmarks.measuring.mutations import EXCLUDED, Mutant, mutants_of
from benchmarks.measuring.options import at_least, more_than_zero, parsed, selected
from benchmarks.measuring.report import command_of, write_result

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("bamboo", "tests", "cli", "cloud", "pyproject.toml")
LEAST_KILLED = 0.85
SLOWER, SPARE_S = 3.0, 5.0
"""A mutant is killed as too slow after so many times a test's CPU time, and so much more."""


class Tests:
    """The tests of one room in a copy of the tree, whose files may be replaced."""

    def __init__(self, copy: Path, process: "subprocess.Popen[str]") -> None:
        self._copy, self._process = copy, process
        self._writes = 0

    def write(self, path: str, text: str) -> None:
        """Replace a file. Its time is another one each time, so no compiled module is taken for
        that of an earlier text of the same length."""
        self._writes += 1
        place = self._copy / path
        place.write_text(text, encoding="utf-8")
        os.utime(place, (self._writes, self._writes))

    def play(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request (`measuring/core_tests.py`)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def copied(room: str) -> Iterator[Tests]:
    """A copy of what the tests of a room need, and a process that plays them there."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder).resolve()
        for name in COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, copy / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, copy / name)
        runner = ROOT / "benchmarks" / "measuring" / "core_tests.py"
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        with subprocess.Popen(
            [sys.executable, str(runner), f"tests/{room}"],
            cwd=copy,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield Tests(copy, process)
            finally:
                process.terminate()


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


def played(tests: Tests, known: Mapping[str, Any], mutant: Mutant, text: str) -> str:
    """The name of the test that kills a mutant; "" when it survives."""
    reached = reaching(known, mutant)
    if not reached:
        return ""
    tests.write(mutant.path, mutant.apply(text))
    killer: str = tests.play({"tests": reached})["failed"]
    tests.write(mutant.path, text)
    return killer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--count", type=at_least(1), default=150)
    parser.add_argument("--room", default="core")
    parser.add_argument("--test-s", type=more_than_zero, default=math.inf)
    arguments = parsed(parser)
    room, texts = arguments.room, sources(arguments.room)
    if not texts or not (ROOT / "tests" / room).is_dir():
        parser.error(f"--room {room}: name a folder of bamboo/ that has one in tests/ too")
    places, mutants = drawn(texts, arguments.seed, arguments.count)
    survivors: list[dict[str, Any]] = []
    killers: Counter[str] = Counter()
    with copied(room) as tests:
        calm = tests.play({})
        if calm["failed"]:
            raise SystemExit(f"error: {calm['failed']} fails without a mutant; mend it first")
        known = {name: one for name, one in calm["tests"].items() if one[0] <= arguments.test_s}
        for number, mutant in enumerate(mutants, start=1):
            text = texts[mutant.path]
            killer = played(tests, known, mutant, text)
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
        "tests_left_out": sorted(set(calm["tests"]).difference(known)),
        "survivors": survivors,
        "killed_by": dict(killers.most_common()),
    }
    parts = selected(parser, arguments, "room", "seed", "count")
    print(write_result("mutants-of-core", command_of("mutants_of_core", arguments), body, *parts))


if __name__ == "__main__":
    main()
