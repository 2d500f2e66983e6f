"""`bamboo cost`: on-demand against spot, for a job before it runs or for a run that did."""

import json
import os
from pathlib import Path

import click

from bamboo.errors import InputError
from cli import pricing, run_cost, runs
from cli.views.cost import job_cost_text, run_cost_text


@click.command("cost")
@click.argument("job_or_run")
@click.option(
    "--samples-per-s",
    type=float,
    default=0.0,
    help="Your own figure for a job; by default one microbatch is measured here.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a key."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    job_or_run: str, samples_per_s: float, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Price a job, or say what a run cost, on-demand against spot."""
    path = Path(job_or_run)
    if path.suffix == ".toml" or os.path.isfile(job_or_run):  # whatever the text, it only asks
        if samples_per_s < 0:
            raise InputError(
                f"--samples-per-s {samples_per_s:g} is negative; give a figure above 0"
            )
        body = pricing.cost_of_job(path, overrides=overrides, samples_per_s=samples_per_s)
        text = job_cost_text(body)
    else:
        if overrides or samples_per_s:
            raise InputError("--set and --samples-per-s belong to a job file; a run has its own")
        body = run_cost.cost_of_run(runs.find(runs.home(), job_or_run))
        text = run_cost_text(body)
    click.echo(json.dumps(body) if as_json else text)
