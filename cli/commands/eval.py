"""`bamboo eval`: loss and metrics of what a run has trained."""

import json

import click

from bamboo import api
from cli.bar import bar
from cli.echo import echo_result
from cli.options.step import step_option
from cli.views.afterwards import evaluated_text


@click.command("eval")
@click.argument("run")
@click.option(
    "--source",
    metavar="X",
    help="python-stdlib, the path of text or of a token file, or file.py:function, which returns "
    "data; by default that of [eval].",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="The first N samples; by default those of [eval], or all of --source.",
)
@step_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *, run: str, source: str | None, samples: int | None, step: int | None, as_json: bool
) -> None:
    """Evaluate what a run has trained, forward only.

    The numbers are those that [eval] gives in a run for the same data. Files are read as the data
    of the run are: bytes, or what its tokenizer makes of text.
    """
    opened = api.open_run(run)
    with bar("evaluating") as told:
        body = opened.evaluate(source, samples=samples or 0, step=step, told=told)
    echo_result(json.dumps(body) if as_json else evaluated_text(body))
