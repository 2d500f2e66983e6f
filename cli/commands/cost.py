"""`bamboo cost`: what a job could be rented as and would cost, or what a run cost."""

import json
import os
from pathlib import Path

import click
from click.core import ParameterSource

from bamboo import api
from bamboo.errors import InputError
from cli.bar import bar
from cli.echo import echo_result, terminal_width
from cli.new_file import refuse_to_overwrite, write_new
from cli.options.overrides import overrides_option
from cli.pictures.canvas import check_name
from cli.pictures.options import options_svg
from cli.views.cost import run_cost_text
from cli.views.options import options_text
from cli.views.options_body import options_body, options_csv

_PATH = click.Path(path_type=Path)
OF_A_RUN = frozenset({"job_or_run", "as_json"})


@click.command("cost")
@click.argument("job_or_run")
@click.option("--deadline", type=float, metavar="H", help="Hours that the job may take.")
@click.option(
    "--budget", type=float, metavar="USD", help="Dollars to spend; by default budget.max_usd."
)
@click.option("--max-nodes", type=int, help="Nodes to rent at most; by default the job's.")
@click.option("--type", "types", multiple=True, help="Compare this instance type only; repeatable.")
@click.option("--hazard", type=float, metavar="P", help="Preemptions per node-hour.")
@click.option("--trace", type=_PATH, help="Assume a market like this recorded one.")
@click.option("--seeds", type=int, default=10, show_default=True, help="Simulated runs per row.")
@click.option("--rows", type=int, default=8, show_default=True, help="Options worked out in full.")
@click.option(
    "--samples-per-s", type=float, default=0.0, help="The job's throughput, as you know it."
)
@click.option("--here", is_flag=True, help="Take this CPU's times for every type.")
@click.option("--csv", "csv_file", type=_PATH, help="Write the table as CSV.")
@click.option("--plot", type=_PATH, help="Draw the table as SVG.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@overrides_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    job_or_run: str,
    deadline: float | None,
    budget: float | None,
    max_nodes: int | None,
    types: tuple[str, ...],
    hazard: float | None,
    trace: Path | None,
    seeds: int,
    rows: int,
    samples_per_s: float,
    here: bool,
    csv_file: Path | None,
    plot: Path | None,
    force: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Rank what a job could be rented as by samples per dollar, or say what a run cost."""
    path = Path(job_or_run)
    if path.suffix != ".toml" and not os.path.isfile(job_or_run):
        _refuse_for_a_run()
        body = api.open_run(job_or_run).cost()
        echo_result(json.dumps(body) if as_json else run_cost_text(body))
        return
    if plot is not None:
        check_name(plot)
    for file in (csv_file, plot):
        if file is not None:
            refuse_to_overwrite(file, force=force)
    found = api.cost(
        path,
        overrides=overrides,
        deadline_h=deadline,
        budget_usd=budget,
        max_nodes=max_nodes,
        types=types,
        hazard=hazard,
        trace=trace,
        seeds=seeds,
        rows=rows,
        samples_per_s=samples_per_s,
        here=here,
        bar=bar,
    )
    if csv_file is not None:
        write_new(csv_file, options_csv(found).encode(), force=force)
    if plot is not None:
        write_new(plot, options_svg(found), force=force)
    text = options_text(found, width=terminal_width())
    echo_result(json.dumps(options_body(found)) if as_json else text)
    if found.chosen.outcome is None:
        raise InputError(found.chosen.why)


def _refuse_for_a_run() -> None:
    """Raises InputError for options that mean nothing for a run."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in OF_A_RUN:
            raise InputError(
                f"{parameter.opts[0]} goes with a job file, not with a run; leave it out"
            )
