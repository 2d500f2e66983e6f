"""`bamboo status`: where a run stands and who does what."""

import json

import click

from cli import runs
from cli.echo import echo_result
from cli.look import status_of
from cli.views.status import status_text


@click.command("status")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: str, as_json: bool) -> None:
    """Show where a run stands and who does what.

    Slots are pipeline.stage. F and B: forwards and backwards; FR and BR: the redundant ones for the
    stage that the node shadows.
    """
    body = status_of(runs.find(runs.home(), run))
    echo_result(json.dumps(body) if as_json else status_text(body))
