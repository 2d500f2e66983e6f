"""`bamboo simulate --swarm`: seeds played against the decision core, the first red one made short.

Rule: it decides nothing; a red seed leaves a scenario behind that a person reads, and that plays
again what was found.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from bamboo.errors import InputError
from bamboo.sim.swarm.draw import draw
from bamboo.sim.swarm.many import Tally, play_many
from bamboo.sim.swarm.run import replay
from bamboo.sim.swarm.shrink import shrunk
from cli.echo import echo
from cli.new_file import refuse_to_overwrite, write_new
from cli.views.swarm import SwarmResult, swarm_body, swarm_text

FOUND_RED = 1


def run_swarm(seeds: int, first: int, out: Path | None, as_json: bool) -> int:
    """Play `seeds` seeds from `first` on; the exit code: 0 all are green, 1 one is not.

    Its shrunk scenario is written to `out`, by default `swarm-<seed>.txt` here. Raises InputError.
    """
    if seeds < 1 or first < 0:
        raise InputError(f"--swarm {seeds} --first-seed {first}: need a seed or more, from 0 on")
    if out is not None:
        refuse_to_overwrite(out, force=False)
    began_s = time.monotonic()
    tally = _play(range(first, first + seeds))
    took_s = time.monotonic() - began_s
    text, path = "", None
    if tally.red is not None:
        scenario = draw(tally.red.seed)
        _, text = shrunk(scenario, tally.red)
        path = out or Path(f"swarm-{tally.red.seed}.txt")
        write_new(path, text.encode(), force=out is None)
    result = SwarmResult(tally=tally, first=first, took_s=took_s, scenario=path)
    echo(json.dumps(swarm_body(result)) if as_json else swarm_text(result))
    return 0 if tally.red is None else FOUND_RED


def play_file(path: Path) -> int:
    """Play the scenario of a file and say how it came out; the exit code as of a swarm."""
    try:
        verdict = replay(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give another") from error
    said = f"{verdict.checker}, {verdict.at_s:g} s: {verdict.sentence}"
    echo(f"{path}: green, {verdict.outcome}" if verdict.green else f"{path}: {said}")
    return 0 if verdict.green else FOUND_RED


def _play(seeds: range) -> Tally:
    whole = Tally(outcomes=Counter())
    console = Console(stderr=True)
    hidden = not sys.stderr.isatty()
    with Progress(console=console, transient=True, disable=hidden) as progress:
        bar = progress.add_task("playing seeds", total=len(seeds))
        for part in play_many(seeds):
            whole.seeds += part.seeds
            whole.events += part.events
            whole.outcomes.update(part.outcomes)
            whole.red = part.red
            progress.update(bar, completed=whole.seeds)
    return whole


if __name__ == "__main__":
    sys.exit(play_file(Path(sys.argv[1])))
