"""`bamboo plan`: what each node of a job would hold and do, what the plan is worth, and why."""

import json
from pathlib import Path

import click

from bamboo import api
from cli.bar import bar
from cli.echo import echo, echo_result, progress_is_hidden
from cli.options.gpu import gpu_option
from cli.options.overrides import overrides_option
from cli.views.paper import paper_body, paper_text


@click.command("plan")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, help="The best grid of exactly so many nodes.")
@click.option("--max-nodes", type=int, help="The best grid of at most so many nodes.")
@click.option(
    "--hazard", type=float, help="Losses per node-hour; by default those known of the type."
)
@gpu_option
@overrides_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, for --strategy of others."
)
def command(
    *,
    job: Path,
    nodes: int | None,
    max_nodes: int | None,
    hazard: float | None,
    gpu: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Lay a job out on paper: what each node holds and does, what it is worth, and why.

    JOB is laid out on its own grid, or with --nodes or --max-nodes on the best one. What --json
    prints is a file for `launch --strategy` and `simulate --strategy`.
    """
    if progress_is_hidden():
        echo("looking at model, data and other plans", err=True)
    shown = api.plan(
        job,
        overrides=overrides,
        nodes=nodes,
        max_nodes=max_nodes,
        hazard=hazard,
        gpu=gpu,
        bar=bar,
    )
    echo_result(json.dumps(paper_body(shown)) if as_json else paper_text(shown))
