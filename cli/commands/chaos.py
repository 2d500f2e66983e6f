"""`bamboo chaos`: let a seeded swarm of faults loose on a job, and check what became of it."""

import json
import random
import shlex
from pathlib import Path

import click

from bamboo import api
from cli.echo import echo, echo_result
from cli.options.overrides import overrides_option
from cli.views.chaos import fault_line, verdict_line, verdict_lines


@click.command("chaos")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--seed", type=int, default=None, help="Seed of the faults; by default random.")
@click.option(
    "--minutes", type=float, default=10.0, show_default=True, help="How long faults go on."
)
@click.option("--run", "name", default="", help="Id of the run; by default made from the job.")
@overrides_option
@click.option("--dry-run", is_flag=True, help="Show the faults; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def command(
    *,
    job: Path,
    seed: int | None,
    minutes: float,
    name: str,
    overrides: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> int:
    """Train a job while a seeded swarm kills its nodes, and check what became of it.

    Processes of this machine train the job. They are killed, stopped, cut from their store, and
    given notices that are late, early or false. Afterwards separate checkers look for lost steps,
    steps with two losses, orphans, a run that stands still, and any bit that differs from a calm
    run. The seed, the minutes and the job decide which faults come when.
    """
    if seed is None:
        seed = random.SystemRandom().randrange(10**6)
    echo(f"seed {seed}; again: {_again(job, seed, minutes, overrides)}", err=as_json)
    drawn = api.draw_swarm(job, overrides=overrides, seed=seed, minutes=minutes)
    if dry_run:
        said = map(fault_line, drawn.faults)
        echo_result(json.dumps(drawn.head()) if as_json else "\n".join(said))
        return 0
    judged = api.let_loose(drawn, run=name, note=lambda text: echo(text, err=as_json))
    if as_json:
        verdicts = [verdict.to_json() for verdict in judged.verdicts]
        echo_result(json.dumps({"run": judged.run, **drawn.head(), "verdicts": verdicts}))
    else:
        echo_result("\n".join(verdict_lines(judged.verdicts)))
    echo(verdict_line(judged.verdicts, file=judged.file), err=as_json)
    if error := judged.error(seed):
        raise error
    return 0


def _again(job: Path, seed: int, minutes: float, overrides: tuple[str, ...]) -> str:
    """A line for a shell."""
    sets = "".join(f" --set {shlex.quote(override)}" for override in overrides)
    return f"bamboo chaos {shlex.quote(str(job))} --seed {seed} --minutes {minutes:g}{sets}"
