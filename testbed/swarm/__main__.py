"""`python -m testbed.swarm SEEDS`: plays seeds against the decision core, and shortens the first
red one; `python -m testbed.swarm --scenario FILE` plays the scenario of a red seed again.

Rule: it decides nothing. A red seed leaves a scenario that a person can read and that replays what
was found. The exit code is 0 if all are green, 1 if one is red, 2 for bad input.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bamboo.errors import InputError
from bamboo.named_files import read_bounded
from cli.echo import echo, echo_result, progress_is_hidden
from cli.new_file import STDOUT, refuse_to_overwrite, write_new
from testbed.swarm.draw import draw
from testbed.swarm.many import Tally, play_many
from testbed.swarm.run import replay
from testbed.swarm.shrink import shrunk

FOUND_RED = 1
MOST_SEEDS = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmResult:
    """Seeds from `first` on, in `took_s`; `scenario` is the file of the first red one, None where
    none was written."""

    tally: Tally
    first: int
    took_s: float
    scenario: Path | None

    @property
    def events_per_s(self) -> float:
        return self.tally.events / max(self.took_s, 1e-9)

    def text(self) -> str:
        """One line where all is green; otherwise also what was found, and where it is."""
        tally = self.tally
        figures = f"{tally.events:,} events, {self.events_per_s:,.0f} events/s"
        if tally.red is None:
            ends = ", ".join(f"{count:,} {name}" for name, count in sorted(tally.outcomes.items()))
            return f"{tally.seeds:,} seeds green, {figures}; the runs ended {ends}"
        red = tally.red
        where = f" ({red.where})" if red.where else ""
        return "\n".join(
            [
                f"seed {red.seed} is red after {tally.seeds - 1:,} green ones, {figures}",
                f"  {red.checker}{where}, {red.at_s:g} s: {red.sentence}",
                f"  shrunk to {self.scenario or 'what standard error says: no file would take it'}",
            ]
        )

    def body(self) -> dict[str, Any]:
        """For `--json`."""
        tally, red = self.tally, self.tally.red
        return {
            "schema_version": 1,
            "first_seed": self.first,
            "seeds": tally.seeds,
            "events": tally.events,
            "seconds": round(self.took_s, 3),
            "events_per_s": round(self.events_per_s, 1),
            "outcomes": dict(sorted(tally.outcomes.items())),
            "red": None
            if red is None
            else {
                "seed": red.seed,
                "checker": red.checker,
                "at_s": red.at_s,
                "sentence": red.sentence,
                "scenario": None if self.scenario is None else str(self.scenario),
            },
        }


def run_swarm(seeds: int, first: int, out: Path | None, as_json: bool) -> int:
    """Play `seeds` seeds from `first` on. Returns the exit code.

    The shortened scenario of the red one is written to `out`, by default `swarm-<seed>.txt` in the
    current directory. Where that fails, it goes to standard error, and the exit code is the same.
    Raises InputError.
    """
    if not 1 <= seeds <= MOST_SEEDS or first < 0:
        raise InputError(
            f"SEEDS {seeds} --first-seed {first}: need a seed or more, at most {MOST_SEEDS:,}, "
            "from 0 on"
        )
    if out is not None:
        if str(out) == STDOUT:
            raise InputError("--out -: what the swarm says goes there; give the name of a file")
        refuse_to_overwrite(out, force=False)
    began_s = time.monotonic()
    tally = _play(range(first, first + seeds))
    took_s = time.monotonic() - began_s
    path = None
    if tally.red is not None:
        scenario = draw(tally.red.seed)
        _, text = shrunk(scenario, tally.red)
        path = out or Path(f"swarm-{tally.red.seed}.txt")
        try:
            write_new(path, text.encode(), force=out is None)
        except InputError as error:
            echo(text, err=True)  # finding it may have taken all night
            echo(f"error: {error}", err=True)
            path = None
    result = SwarmResult(tally=tally, first=first, took_s=took_s, scenario=path)
    echo_result(json.dumps(result.body()) if as_json else result.text())
    return 0 if tally.red is None else FOUND_RED


def play_file(path: Path) -> int:
    """Play the scenario of a file and print the result. Returns the exit code, as for a swarm."""
    try:
        verdict = replay(read_bounded(path, encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give another") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text, and no scenario; give another") from error
    except ValueError as error:
        raise InputError(f"{path} is no scenario: {error}; give another") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    said = f"{verdict.checker}, {verdict.at_s:g} s: {verdict.sentence}"
    echo_result(f"{path}: green, {verdict.outcome}" if verdict.green else f"{path}: {said}")
    return 0 if verdict.green else FOUND_RED


def _play(seeds: range) -> Tally:
    whole = Tally()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=progress_is_hidden()) as progress:
        bar = progress.add_task("playing seeds", total=len(seeds))
        for part in play_many(seeds):
            whole.seeds += part.seeds
            whole.events += part.events
            whole.outcomes.update(part.outcomes)
            whole.red = part.red
            progress.update(bar, completed=whole.seeds)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m testbed.swarm", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", metavar="SEEDS", help="how many to play")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--out", type=Path, help="where a red seed goes (swarm-SEED.txt)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="play this one instead")
    given = parser.parse_args(arguments)
    if (given.seeds is None) == (given.scenario is None):
        parser.error("give a number of SEEDS, or --scenario FILE")
    try:
        if given.scenario is not None:
            return play_file(given.scenario)
        return run_swarm(given.seeds, given.first_seed, given.out, given.json)
    except InputError as error:
        echo(f"error: {error}", err=True)
        return error.exit_code
    except KeyboardInterrupt:
        echo("error: interrupted", err=True)
        return 130


if __name__ == "__main__":
    sys.exit(main())
