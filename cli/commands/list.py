"""`bamboo list`: all runs of this home, or the tokens that runs share."""

import json
from dataclasses import asdict

import click

from bamboo import api
from cli.echo import echo_result
from cli.views.status import data_text, list_text


@click.command("list")
@click.option("--data", is_flag=True, help="List the tokens that runs share in your bucket.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def command(*, data: bool, as_json: bool) -> None:
    """List the runs.

    With --data it lists the tokens in the bucket of your stack that runs in the account share; they
    are billed until `bamboo rm --data DIGEST`.
    """
    if data:
        rows = [asdict(one) for one in api.shared_data()]
        said = data_text(rows) if rows else "no tokens in the bucket"
    else:
        rows = api.list_runs()
        said = list_text(rows) if rows else f"no runs in {api.home()}"
    echo_result(json.dumps(rows) if as_json else said)
