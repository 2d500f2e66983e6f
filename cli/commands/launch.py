"""`bamboo launch`: train a job on spot instances, and stay attached until it ends."""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import click

from cli import launching
from cli.screen import open_screen
from cli.views.plan import plan_body, plan_text, requests_text
from cli.views.quantities import fold
from cli.views.receipt import receipt_text, summary_text


@click.command("launch")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--run", "name", default="", help="Id of the run; by default made from the job.")
@click.option("--dry-run", is_flag=True, help="Show plan, requests and price; start nothing.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a key of the job.",
)
@click.option("--check-replicas", is_flag=True, help="Compare owner and shadow after every step.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object at the end; progress goes to stderr.",
)
def command(
    *,
    job: Path,
    name: str,
    dry_run: bool,
    overrides: tuple[str, ...],
    check_replicas: bool,
    as_json: bool,
) -> int:
    """Train a job on spot instances.

    JOB is a TOML file; examples/reference.toml has every key. Ctrl-C stops at the next step
    boundary, a second one at once.
    """
    if check_replicas:
        overrides = (*overrides, "cluster.check_replicas=true")
    click.echo("looking at model and data", err=True)
    prepared = launching.prepare(job, overrides=overrides, name=name, dry_run=dry_run)
    cores = len(os.sched_getaffinity(0)) if prepared.job.cloud.provider == "local" else None
    if dry_run and as_json:
        click.echo(json.dumps(plan_body(prepared.run, prepared.planned)))
        return 0
    click.echo(plan_text(prepared.run, prepared.planned, cores=cores), err=as_json)
    if dry_run:
        click.echo(requests_text(prepared.planned.request))
        click.echo("dry run: nothing was started")
        return 0
    folder = launching.claim(prepared, source=job, started_s=time.time())
    with open_screen(terminal=sys.stdout.isatty() and not as_json, to_stderr=as_json) as screen:
        body = launching.run_attached(prepared, folder, screen)
    if as_json:
        click.echo(json.dumps(body))
    else:
        text = summary_text(body) + "\n" + receipt_text(body)
        if sys.stdout.isatty():
            text = fold(text, width=shutil.get_terminal_size().columns)
        click.echo(text)
    return int(body["exit_code"])
