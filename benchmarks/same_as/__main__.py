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
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring.report import write_result

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CASES = {
    "transcripts": 1,
    "receipts": 30,
    "simulations": 50,
    "swarm": 2000,
    "matrix": 200,
    "golden": 1,
}
"""How many cases each part has; transcripts come as they are."""
OLDER_RUN = "older run"
LONGEST_S = 7200.0
SHOWN = 5
SLICE = 50
"""So many cases are played by one process, and kept in one file."""


def differences_of(file: Path) -> dict[str, Any]:
    """What may differ. Raises ValueError for a map that is not one-to-one, and for a difference
    without a reason."""
    raw = tomllib.loads(file.read_text(encoding="utf-8"))
    for words in (raw["names"], raw["phrases"]):
        twice = [name for name, times in Counter(words.values()).items() if times > 1]
        chained = sorted(words.keys() & set(words.values()))
        if twice or chained:
            raise ValueError(f"{file}: the map is not one-to-one at {', '.join(twice + chained)}")
    for entry in (*raw["dropped_fields"], *raw["added"], *raw["set_aside"]):
        if not str(entry.get("reason", "")).endswith("."):
            raise ValueError(f"{file}: {entry} has no reason in a sentence")
    return raw


def both(given: argparse.Namespace, asking: Mapping[str, Any]) -> tuple[Any, Any]:
    """What both sides answer: (older, this). The older one is asked only for what is not kept, or
    when texts are shown."""
    shown = str(given.show.resolve()) if given.show else ""
    if given.show:
        given.show.mkdir(parents=True, exist_ok=True)
    asked = {**asking, "given": {}, "inputs": str(ROOT / "examples"), "show": shown}
    question = json.dumps([(HERE / "player.py").read_text(), asking], sort_keys=True).encode()
    name = f"{commit(given.checkout)}-{asking['part']}-{hashlib.sha256(question).hexdigest()[:12]}"
    file = given.cache / f"{name}.json"
    if file.exists() and not shown:
        old = json.loads(file.read_text())
    else:
        old = played("old", given.checkout.resolve(), given.python, asked)
        given.cache.mkdir(exist_ok=True)
        file.write_text(json.dumps(old))
    return old, played("new", ROOT, Path(sys.executable), asked | {"given": old["given"]})


def played(side: str, checkout: Path, python: Path, asked: Mapping[str, Any]) -> Any:
    """The answers of one side. Raises CalledProcessError where the player fails."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "asked.json"), Path(folder, "out.json")
        file.write_text(json.dumps({**asked, "side": side, "out": str(out)}))
        subprocess.run(
            [python.absolute(), HERE / "player.py", file],
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"},
            timeout=LONGEST_S,
            check=True,
        )
        return json.loads(out.read_text())


def compare(part: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """By `part case`, each case that differs or that one side alone has, in a line."""
    found = {}
    for case in sorted(old.keys() | new.keys()):
        name, ours, theirs = f"{part} {case}", new.get(case), old.get(case)
        if ours is None or theirs is None:
            found[name] = f"{'this' if theirs is None else 'the older'} side alone has it"
        elif unlike := [key for key in ours if ours[key] != theirs.get(key)]:
            found[name] = "; ".join(f"{k} {theirs[k]!s:.60} is now {ours[k]!s:.60}" for k in unlike)
    return found


def refused(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """What is wrong with how a run of the older side is refused."""
    said, names = new["said"].strip(), f"schema version {old['schema']} and this program reads"
    if old["schema"] >= new["schema"]:
        yield f"schema {old['schema']} was not raised: it is {new['schema']}"
    if new["exit"] != 2 or "\n" in said or names not in said or "golden" not in said:
        yield f"a run of the older schema ends with {new['exit']}: {said}"


def wrong_of(
    part: str, old: dict[str, Any], new: dict[str, Any], allowed: Mapping[str, Any], met: set[str]
) -> Iterator[str]:
    """Each difference that nothing allows; notes in `met` what was needed to allow the others."""
    met.update(old["met"], new["met"])
    for word in old["taken"]:
        yield f"{part}: the older side has {word} for something else"
    theirs, ours = old["answers"].pop(OLDER_RUN, None), new["answers"].pop(OLDER_RUN, None)
    if theirs and ours:
        yield from refused(theirs, ours)
        print(f"    of a run of the older side it says: {ours['said'].strip()}")
    added = {entry["case"] for entry in allowed["added"]}
    for name, line in compare(part, old["answers"], new["answers"]).items():
        if name in added and name.split()[1] not in old["answers"]:
            met.add(name)
        else:
            yield f"{name}: {line}"


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m benchmarks.same_as", description=__doc__)
    asked.add_argument("checkout", type=Path, help="the older checkout")
    asked.add_argument("python", type=Path, help="its interpreter")
    asked.add_argument("--cache", type=Path, default=ROOT / ".same_as", help="a folder")
    asked.add_argument("--parts", nargs="*", choices=CASES, default=list(CASES))
    asked.add_argument("--count", type=int, help="so many cases of each part, for a quick look")
    asked.add_argument("--cases", type=int, nargs="*", help="these cases")
    asked.add_argument("--jobs", type=int, default=1, help="so many slices of a part at a time")
    asked.add_argument("--show", type=Path, help="write the text of each case to this folder")
    given = asked.parse_args()
    allowed = differences_of(HERE / "differences.toml")
    fields = [entry["field"] for entry in allowed["dropped_fields"]]
    met: set[str] = set()
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    for part in given.parts:
        began = time.monotonic()
        cases = given.cases or list(range(CASES[part]))[: given.count]
        asking = {"part": part, "names": allowed["names"], "phrases": allowed["phrases"]}
        asking |= {"dropped_fields": fields}
        starts = range(0, len(cases), SLICE)
        slices = [{**asking, "cases": cases[first : first + SLICE]} for first in starts]
        with ThreadPoolExecutor(given.jobs) as pool:
            answers = list(pool.map(partial(both, given), slices))
        found = [line for pair in answers for line in wrong_of(part, *pair, allowed, met)]
        number, took_s = sum(len(old["answers"]) for old, _ in answers), time.monotonic() - began
        print(f"{part:12} {number:5} cases, {len(found)} unlike  ({took_s:.0f} s)", flush=True)
        print("".join(f"    {line}\n" for line in found[:SHOWN]), end="", flush=True)
        rows.append({"part": part, "cases": number, "unlike": len(found), "took_s": round(took_s)})
        wrong += found
    if given.parts == list(CASES) and given.count is None and not given.cases:
        needed = {*allowed["names"], *allowed["phrases"], *fields}
        needed |= {entry["case"] for entry in allowed["added"]}
        wrong += (unused := [f"differences.toml: nothing needs {word}" for word in needed - met])
        print("\n".join(unused) or "every entry of differences.toml was needed")
        body = {"older_commit": commit(given.checkout), "unlike": len(wrong), "rows": rows}
        write_result("same-as", "python -m benchmarks.same_as CHECKOUT PYTHON", body)
    print(f"{commit(ROOT)} beside {commit(given.checkout)}: {len(wrong)} unlike")
    return 1 if wrong else 0


def commit(checkout: Path) -> str:
    """The commit that is checked out there."""
    words = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
