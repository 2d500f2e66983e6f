"""`python -m benchmarks.same_as CHECKOUT PYTHON`: compares this checkout with an older one.

Rule: both sides play the same cases by the same file, `player.py`, each in its own checkout. Only
what `differences.toml` names may differ. The older side's answers are kept by its commit, so a
later comparison plays this side alone.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OLDER_RUN = "older run"
CASES = {"transcripts": 1, "swarm": 2000, "simulations": 50, "receipts": 30}
CASES |= {"matrix": 200, "golden": 1}
"""How many cases each part has; transcripts come as they are."""
ANSWERS_VERSION = 1
"""Raise it when `player.py` answers otherwise: answers that are kept are then asked for anew."""
LONGEST_S = 7200.0
SHOWN = 5
SLICE = 50
"""So many cases are played by one process, and kept in one file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What `differences.toml` says: the map, and what one side has and the other has not."""

    names: Mapping[str, str]
    phrases: Mapping[str, str]
    fields: Sequence[str]
    added: Collection[str]
    """Cases that this side alone has, as `part case`."""

    @property
    def entries(self) -> set[str]:
        return {*self.names, *self.phrases, *self.fields, *self.added}


def differences_of(file: Path) -> Differences:
    """Raises ValueError for a map that is not one-to-one, and for a difference without a reason."""
    raw = tomllib.loads(file.read_text(encoding="utf-8"))
    for words in (raw["names"], raw["phrases"]):
        twice = [name for name, times in Counter(words.values()).items() if times > 1]
        chained = sorted(words.keys() & set(words.values()))
        if twice or chained:
            raise ValueError(f"{file}: the map is not one-to-one at {', '.join(twice + chained)}")
    for entry in (*raw["dropped_fields"], *raw["added"], *raw["set_aside"]):
        if not str(entry.get("reason", "")).endswith("."):
            raise ValueError(f"{file}: {entry} has no reason in a sentence")
    return Differences(
        names=raw["names"],
        phrases=raw["phrases"],
        fields=[entry["field"] for entry in raw["dropped_fields"]],
        added=[entry["case"] for entry in raw["added"]],
    )


def played(
    side: str, checkout: Path, python: Path, asked: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """The answers of one side. Raises RuntimeError where the player fails."""
    file, out = folder / f"{side}.asked.json", folder / f"{side}.out.json"
    file.write_text(json.dumps({**asked, "side": side, "out": str(out)}))
    child = subprocess.run(
        [python, HERE / "player.py", file],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"},
        timeout=LONGEST_S,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"the player of {checkout} ended with {child.returncode}")
    body: dict[str, Any] = json.loads(out.read_text())
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The two checkouts, with the interpreter of the older one and the folder of its answers."""

    checkout: Path
    python: Path
    cache: Path
    commit: str
    show: Path | None

    def both(self, asking: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What both sides answer: (older, this). The older one is only asked for what is not kept,
        or when texts are shown."""
        shown = str(self.show.resolve()) if self.show else ""
        asked = {**asking, "given": {}, "inputs": str(ROOT / "examples"), "show": shown}
        file = self.cache / f"{self.commit[:12]}-{asking['part']}-{_digest(asking)}.json"
        with tempfile.TemporaryDirectory() as name:
            if file.exists() and not shown:
                old: dict[str, Any] = json.loads(file.read_text())
            else:
                old = played("old", self.checkout, self.python, asked, Path(name))
                self.cache.mkdir(exist_ok=True)
                file.write_text(json.dumps(old))
            asked |= {"given": old["given"]}
            return old, played("new", ROOT, Path(sys.executable), asked, Path(name))


def compare(part: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """By `part case`, each case that differs or that one side alone has, in a line."""
    found = {}
    for case in sorted(old.keys() | new.keys()):
        name, ours, theirs = f"{part} {case}", new.get(case), old.get(case)
        if ours is None or theirs is None:
            found[name] = f"{'this' if theirs is None else 'the older'} side alone has it"
            continue
        unlike = [key for key in ours if ours[key] != theirs.get(key)]
        if unlike:
            found[name] = "; ".join(f"{k} {theirs[k]!s:.60} is now {ours[k]!s:.60}" for k in unlike)
    return found


def refused(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What is wrong with how a run of the older side is refused; takes that case out of both."""
    theirs, ours = old.pop(OLDER_RUN, None), new.pop(OLDER_RUN, None)
    if theirs is None or ours is None:
        return []
    said = ours["said"].strip()
    names = f"schema version {theirs['schema']} and this program reads {ours['schema']}"
    wrong = []
    if theirs["schema"] >= ours["schema"]:
        wrong.append(f"schema {theirs['schema']} was not raised: it is {ours['schema']}")
    if ours["exit"] != 2 or "\n" in said or names not in said or "golden" not in said:
        wrong.append(f"a run of the older schema ends with {ours['exit']}: {said}")
    return wrong or print(f"    a run of the older side: {said}") or []


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m benchmarks.same_as", description=__doc__)
    asked.add_argument("checkout", type=Path, help="the older checkout")
    asked.add_argument("python", type=Path, help="its interpreter")
    asked.add_argument("--cache", type=Path, default=ROOT / ".same_as", help="a folder")
    asked.add_argument("--parts", nargs="*", choices=CASES, default=list(CASES))
    asked.add_argument("--count", type=int, help="so many cases of each part, for a quick look")
    asked.add_argument("--cases", type=int, nargs="*", help="these cases, both sides anew")
    asked.add_argument("--jobs", type=int, default=1, help="so many slices of a part at a time")
    asked.add_argument("--show", type=Path, help="write the text of each case to this folder")
    given = asked.parse_args()
    differences = differences_of(HERE / "differences.toml")
    commit = _commit(given.checkout)
    sides = Sides(
        checkout=given.checkout.resolve(),
        python=given.python.absolute(),
        cache=given.cache,
        commit=commit,
        show=given.show,
    )
    met: set[str] = set()
    wrong: list[str] = []
    for part in given.parts:
        began = time.monotonic()
        count = CASES[part] if given.count is None else min(given.count, CASES[part])
        cases = given.cases or list(range(count))
        asked_of = [
            {
                "part": part,
                "cases": cases[first : first + SLICE],
                "names": differences.names,
                "phrases": differences.phrases,
                "dropped_fields": differences.fields,
            }
            for first in range(0, len(cases), SLICE)
        ]
        with ThreadPoolExecutor(given.jobs) as pool:
            slices = list(pool.map(sides.both, asked_of))
        found = []
        for old, new in slices:
            met |= {*old["met"], *new["met"]}
            found += [
                f"{part}: the older side has {word} for something else" for word in old["taken"]
            ]
            found += refused(old["answers"], new["answers"])
            for name, line in compare(part, old["answers"], new["answers"]).items():
                if name in differences.added and name.split()[1] not in old["answers"]:
                    met.add(name)
                else:
                    found.append(f"{name}: {line}")
        wrong += found
        number, took_s = sum(len(old["answers"]) for old, _ in slices), time.monotonic() - began
        print(f"{part:12} {number:5} cases, {len(found)} unlike  ({took_s:.0f} s)", flush=True)
        for line in found[:SHOWN]:
            print(f"    {line}", flush=True)
    if given.parts == list(CASES) and given.count is None:
        unused = [f"differences.toml: nothing needs {word}" for word in differences.entries - met]
        print("\n".join(unused) or "every entry of differences.toml was needed")
        wrong += unused
    print(f"this checkout {_commit(ROOT)[:12]} beside {commit[:12]}: {len(wrong)} unlike")
    return 1 if wrong else 0


def _commit(checkout: Path) -> str:
    return subprocess.run(
        ["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def _digest(asking: Mapping[str, Any]) -> str:
    """What an answer depends on besides the commit: the question, and what the player does."""
    text = json.dumps([ANSWERS_VERSION, asking], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


if __name__ == "__main__":
    raise SystemExit(main())
