"""`python -m benchmarks.gpu_check --part PART`: checks a machine with one card; see the README.

Rule: each line of the table is measured or named as not run, and each figure is kept at once.
"""

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.gpu_check import bits, card, facts, kills, profile, speed
from benchmarks.gpu_check.board import Board
from benchmarks.gpu_check.children import ROOT, ChildFailed, Deadline
from benchmarks.gpu_check.figures import table
from benchmarks.gpu_check.part import Check, Group
from benchmarks.gpu_check.runs import Place

RESULTS = ROOT / "benchmarks" / "results" / "gpu"
LIMIT_S = 480.0
TO_END_S = 30.0
"""Kept of the limit, in which what still runs at its end is ended."""
PARTS: dict[str, tuple[Callable[[Check], None], dict[str, Group]]] = {
    "facts": (facts.run, facts.GROUPS),
    "bits": (bits.run, bits.GROUPS),
    "speed": (speed.run, speed.GROUPS),
    "kills": (kills.run, kills.GROUPS),
    "profile": (profile.run, profile.GROUPS),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    names = list(PARTS)
    parser.add_argument("--part", choices=[*names, "all"], default="facts")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="models that a CPU trains in seconds")
    parser.add_argument("--large", action="store_true", help="part bits: 12 layers of width 768")
    parser.add_argument("--precision", choices=["fp32", "bf16", "both"], default="both")
    parser.add_argument("--only", default="", help="groups of the part, with commas between them")
    parser.add_argument(
        "--turns", default="1,2,3,4", help="part kills: which of a mode's four runs"
    )
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="seconds of each part")
    parser.add_argument("--out", type=Path, help="the file of results; by default one of the card")
    parser.add_argument("--show", type=Path, help="print a file of results, and measure nothing")
    parser.add_argument("--keep", type=Path, help="a folder in which jobs and runs stay")
    parser.add_argument("--commit", default="", help="what is checked, where there is no git")
    return parser


def _show(file: Path) -> int:
    try:
        lines = table(file.read_text())
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {file}: {error}; name a file of results", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


@contextlib.contextmanager
def _folder(kept: Path | None) -> Iterator[Path]:
    """Where jobs and runs of a part lie."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        yield Path(folder)


def main(given: list[str]) -> int:
    """The command. 0: no figure is outside of its limit; 1: one is; 2: nothing could begin."""
    parser = _parser()
    asked = parser.parse_args(given)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    parts = list(PARTS) if asked.part == "all" else [asked.part]
    only = tuple(filter(None, asked.only.split(",")))
    known = {name for part in parts for name in PARTS[part][1]}
    if unknown := sorted(set(only) - known):
        parser.error(f"--only {unknown[0]!r}: there are {', '.join(sorted(known))}")
    turns = tuple(filter(None, asked.turns.split(",")))
    if not turns or not set(turns) <= {"1", "2", "3", "4"}:
        parser.error(f"--turns {asked.turns!r}: give some of 1,2,3,4")
    if asked.show is not None:
        return _show(asked.show)
    if asked.limit_s <= TO_END_S:
        parser.error(f"--limit-s {asked.limit_s:g}: give more than {TO_END_S:g}")
    deadline = Deadline.after(asked.limit_s - TO_END_S)
    try:
        seen = card.facts(asked.device, commit=asked.commit)
    except ChildFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    file = asked.out or RESULTS / card.file_name(seen)
    print("  ".join(f"{name} {value}" for name, value in seen.items() if value), flush=True)
    missed = left_out = 0
    for part in parts:
        print(f"\n== {part}", flush=True)
        # Figures of small models never stand in the place of others.
        named = f"small {part}" if asked.small else part
        board = Board(named, file, seen, deadline)
        with _folder(asked.keep) as folder:
            precisions = ("fp32", "bf16") if asked.precision == "both" else (asked.precision,)
            check = Check(
                board=board,
                place=Place(folder=folder, deadline=deadline),
                device=asked.device,
                small=asked.small,
                large=asked.large,
                precisions=precisions,
                only=only,
                turns=tuple(map(int, turns)),
            )
            PARTS[part][0](check)
        missed += board.missed
        left_out += board.left_out
        deadline = Deadline.after(asked.limit_s - TO_END_S)
    print(
        f"\nwritten: {file}; {missed} figures are outside of their limit, "
        f"{left_out} lines were not run"
    )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
