"""`bamboo prices`: what instances cost, how old each price is and where it comes from."""

import json
from contextlib import closing
from datetime import UTC, datetime

import click

from bamboo import wiring
from bamboo.config.catalogue import load_catalogue
from bamboo.study import prices
from cli.echo import echo, echo_result
from cli.views.prices import prices_body, prices_text


@click.command("prices")
@click.option(
    "--refresh", is_flag=True, help="Ask EC2 for today's prices first, with your AWS credentials."
)
@click.option("--region", metavar="R", help="By default the installed catalogue's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, refresh: bool, region: str | None, as_json: bool) -> None:
    """Show the prices of instances, their age, and the quotas that they need."""
    region, now = prices.checked_region(region), datetime.now(UTC)
    notes: tuple[str, ...] = ()
    if refresh:
        echo(f"asking EC2 for what it has in {region}", err=True)
        with closing(wiring.price_source(region)) as source:
            notes = prices.refresh(source, region, now=now)
    catalogue, today = load_catalogue(region), now.date()
    body = prices_body(catalogue, region=region, today=today, notes=notes)
    echo_result(json.dumps(body) if as_json else prices_text(body))
