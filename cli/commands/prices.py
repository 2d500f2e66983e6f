"""`bamboo prices`: what instances cost, how old each price is and where it comes from."""

import json

import click

from bamboo import api
from cli.echo import echo_result, note
from cli.views.prices import prices_body, prices_text


@click.command("prices")
@click.option(
    "--refresh", is_flag=True, help="Ask EC2 for today's prices first, with your AWS credentials."
)
@click.option("--region", metavar="R", help="Show this region; by default the catalogue's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, refresh: bool, region: str | None, as_json: bool) -> None:
    """Show the prices of instances, their age, and the quotas that they need."""
    found = api.prices(region, refresh=refresh, note=note)
    body = prices_body(found.catalogue, region=found.region, today=found.today, notes=found.notes)
    echo_result(json.dumps(body) if as_json else prices_text(body))
