"""`bamboo plan`: what each node of a job would hold and do, what the plan is worth, and why."""

import json
from pathlib import Path

import click

from bamboo import api
from cli.bar import bar
from cli.echo import echo_result, note, progress_is_hidden
from cli.options.gpu import gpu_option
from cli.options.overrides import overrides_option
from cli.options.strategy import strategy_option
from cli.views.paper import paper_body, paper_text


@click.command("plan")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--nodes", type=int, help="Use the best grid of exactly this many nodes.")
@click.option("--max-nodes", type=int, help="Use the best grid of at most this many.")
@click.option("--hazard", type=float, help="Losses per node-hour; by default the instance type's.")
@click.option("--search", type=int, metavar="N", help="Take the best of N strategies, priced.")
@gpu_option
@overrides_option
@strategy_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; --strategy takes it.")
def command(
    *,
    job: Path,
    nodes: int | None,
    max_nodes: int | None,
    hazard: float | None,
    search: int | None,
    gpu: str | None,
    overrides: tuple[str, ...],
    strategy: Path | None,
    as_json: bool,
) -> None:
    """Show the plan of a job: what each node holds and does, what it is worth, and why.

    The plan uses the job's own grid; with --nodes or --max-nodes it uses the best one. `launch
    --strategy` and `simulate --strategy` take a file with the output of --json.
    """
    plain = progress_is_hidden()
    if plain:
        note("looking at model, data and other plans")
    shown = api.plan(
        job,
        overrides=overrides,
        nodes=nodes,
        max_nodes=max_nodes,
        hazard=hazard,
        gpu=gpu,
        strategy=strategy,
        search=search,
        bar=bar,
        note=note if plain else lambda text: None,  # the bar is on the same lines
    )
    echo_result(json.dumps(paper_body(shown)) if as_json else paper_text(shown))
