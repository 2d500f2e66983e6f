"""`bamboo status`: the state of a run, and what each node does."""

import json

import click

from bamboo import api
from cli.echo import echo_result
from cli.views.status import parts_text, status_text, whole


@click.command("status")
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: str, as_json: bool) -> None:
    """Show the progress of a run and what each node does.

    A slot is written pipeline.stage. F and B are forwards and backwards; FR and BR are the
    redundant ones, for the stage that the node shadows.
    """
    opened = api.open_run(run)
    body = opened.status()
    parts = opened.disk_use()
    if as_json:
        echo_result(json.dumps(body | {"disk_bytes": parts}))
    else:
        disk = whole(f"on the disk {parts_text(parts)}")
        echo_result("\n".join([status_text(body), *disk]))
