"""`bamboo logs`: the events of a run's nodes in the order of time, then their processes' output."""

import json

import click

from bamboo import api
from cli.echo import echo_result
from cli.views.logs import log_body, log_line


@click.command("logs")
@click.argument("run")
@click.option(
    "--node",
    default="",
    help="Only this node (an id, or a prefix of one), launcher, cloud or store.",
)
@click.option("--follow", is_flag=True, help="Follow the run until it has ended.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def command(run: str, node: str, follow: bool, as_json: bool) -> None:
    """Show the events of a run's nodes.

    The output of the processes comes after the events. In an account it may be a minute late.
    """
    for source, line in api.open_run(run).logs(node=node, follow=follow):
        echo_result(json.dumps(log_body(source, line)) if as_json else log_line(source, line))
