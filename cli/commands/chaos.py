"""`bamboo chaos`: let a seeded swarm of faults loose on a job, and check what became of it."""

import json
import random
import shlex
from pathlib import Path

import click

from bamboo.chaos.check import Verdict
from bamboo.chaos.draw import draw
from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.errors import BambooError, InputError, VerifyDiffers
from bamboo.runs import run_folder
from bamboo.study.intervals import given_every
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
    """Train a job under a swarm of faults that a seed decides.

    Processes of this machine train the job. They are killed, stopped, cut from their store, and
    given notices that are late, early or false. Afterwards separate checkers look for lost steps,
    steps with two losses, orphans, a run that stands still, and any bit that differs from a calm
    run. The seed, the minutes and the job decide which faults come when.
    """
    if seed is None:
        seed = random.SystemRandom().randrange(10**6)
    echo(f"seed {seed}; again: {_again(job, seed, minutes, overrides)}", err=as_json)
    config = load_job(job, overrides)
    _check_fit(config)
    faults = draw(seed, minutes=minutes, lease_s=config.cluster.gone_s)
    head = {
        "seed": seed,
        "minutes": minutes,
        "job": str(job),
        "overrides": list(overrides),
        "faults": [fault.to_json() for fault in faults],
    }
    if dry_run:
        echo_result(json.dumps(head) if as_json else "\n".join(map(fault_line, faults)))
        return 0
    from bamboo.chaos.whole import HEAD, let_loose

    run, verdicts = let_loose(
        job,
        config,
        faults,
        head=head,
        name=name,
        tell=lambda text: echo(text, err=as_json),
    )
    if as_json:
        body = {"run": run, **head, "verdicts": [verdict.to_json() for verdict in verdicts]}
        echo_result(json.dumps(body))
    else:
        echo_result("\n".join(verdict_lines(verdicts)))
    echo(verdict_line(verdicts, file=run_folder.home() / run / HEAD), err=as_json)
    _raise_first(run, seed, verdicts)
    return 0


def _check_fit(job: JobConfig) -> None:
    """Raise InputError for a job whose own settings make it fail in such a swarm."""
    if job.cloud.provider != "local":
        raise InputError.at(
            file=job.file,
            key="cloud.provider",
            value=job.cloud.provider,
            problem="a swarm is let loose on this machine alone",
            remedy='take "local"',
        )
    if not given_every(job):
        raise InputError.at(
            file=job.file,
            key="checkpoint.every_steps",
            value=job.checkpoint.every_steps,
            problem="all nodes are killed at once, and without a checkpoint the run ends with that",
            remedy="set it to 20, say",
        )


def _raise_first(run: str, seed: int, verdicts: tuple[Verdict, ...]) -> None:
    wrong = [verdict for verdict in verdicts if not verdict.ok]
    if not wrong:
        return
    said = f"run {run}, seed {seed}: {wrong[0].name}: {wrong[0].finding}"
    if all(verdict.name in ("calm", "losses", "samples", "decisions") for verdict in wrong):
        raise VerifyDiffers(said)
    raise BambooError(said)


def _again(job: Path, seed: int, minutes: float, overrides: tuple[str, ...]) -> str:
    """A line for a shell."""
    sets = "".join(f" --set {shlex.quote(override)}" for override in overrides)
    return f"bamboo chaos {shlex.quote(str(job))} --seed {seed} --minutes {minutes:g}{sets}"
