"""`bamboo explain`: how each parameter of a job or a run is synchronised, and why."""

import json
import os
from pathlib import Path

import click

from bamboo import api
from bamboo.errors import InputError
from cli.bar import bar
from cli.echo import WIDEST, echo_result, terminal_width
from cli.options.gpu import gpu_option
from cli.options.overrides import overrides_option
from cli.options.strategy import strategy_option
from cli.views.explain import explain_body, explain_text


@click.command("explain")
@click.argument("job_or_run")
@overrides_option
@strategy_option
@gpu_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    job_or_run: str,
    overrides: tuple[str, ...],
    strategy: Path | None,
    gpu: str | None,
    as_json: bool,
) -> None:
    """Explain how each parameter of a job or a run is synchronised, and why.

    A row for each group of like parameters has the rows of its input in a pipeline's step (K), the
    K at which factors take as long as the gradient, the share of rows with a bit set, and its kind;
    below it what each kind would send and take. All of it is modelled but the densities.
    """
    path = Path(job_or_run)
    if path.suffix != ".toml" and not os.path.isfile(job_or_run):
        if overrides or strategy is not None or gpu is not None:
            raise InputError(
                "--set, --strategy and --gpu go with a job file, not with a run; leave them out"
            )
        found = api.open_run(job_or_run).explain()
    else:
        found = api.explain(path, overrides=overrides, strategy=strategy, gpu=gpu, bar=bar)
    width = terminal_width() or WIDEST
    echo_result(json.dumps(explain_body(found)) if as_json else explain_text(found, width=width))
