"""`bamboo simulate --swarm`: plays seeds against the decision core, and shortens the first red one.

Rule: it decides nothing. A red seed leaves a scenario that a person can read and that replays what
was found.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from bamboo.errors import InputError
from bamboo.named_files import read_bounded
from bamboo.sim.swarm.draw import draw
from bamboo.sim.swarm.many import Tally, play_many
from bamboo.sim.swarm.run import replay
from bamboo.sim.swarm.shrink import shrunk
from cli.echo import echo, echo_result, progress_is_hidden
from cli.new_file import STDOUT, refuse_to_overwrite, write_new
from cli.views.swarm import SwarmResult, swarm_body, swarm_text

FOUND_RED = 1
MOST_SEEDS = 100_000_000


def run_swarm(seeds: int, first: int, out: Path | None, as_json: bool) -> int:
    """Play `seeds` seeds from `first` on. Returns the exit code: 0 if all are green, 1 if one is
    red.

    The shortened scenario of the red one is written to `out`, by default `swarm-<seed>.txt` in the
    current directory. Where that fails, it goes to standard error, and the exit code is the same.
    Raises InputError.
    """
    if not 1 <= seeds <= MOST_SEEDS or first < 0:
        raise InputError(
            f"--swarm {seeds} --first-seed {first}: need a seed or more, at most {MOST_SEEDS:,}, "
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
    echo_result(json.dumps(swarm_body(result)) if as_json else swarm_text(result))
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
    whole = Tally(outcomes=Counter())
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


def main(arguments: list[str]) -> int:
    """`python -m cli.swarming SCENARIO`: play the scenario of a red seed; the exit code."""
    try:
        if len(arguments) != 1:
            raise InputError("give one file with a scenario")
        return play_file(Path(arguments[0]))
    except InputError as error:
        echo(f"error: {error}", err=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
