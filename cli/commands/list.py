"""`bamboo list`: all runs of this home."""

import json

import click

from bamboo import api
from cli.echo import echo_result
from cli.views.status import list_text


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def command(as_json: bool) -> None:
    """List the runs."""
    rows = api.list_runs()
    if as_json:
        echo_result(json.dumps(rows))
    else:
        echo_result(list_text(rows) if rows else f"no runs in {api.home()}")
