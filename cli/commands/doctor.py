"""`bamboo doctor`: look at what a run needs and at what bills; change nothing."""

import json

import click

from cli.doctor import Check, body, examine, exit_code, text
from cli.orphans import orphans_check


@click.command("doctor")
@click.option("--orphans", is_flag=True, help="Only look for what bills without a live run.")
@click.option(
    "--region",
    "regions",
    multiple=True,
    help="Look here; by default where the runs of this home were launched.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, orphans: bool, regions: tuple[str, ...], as_json: bool) -> int:
    """Check the account and this machine, with a remedy for each fault.

    The exit code is 1 when anything is at fault or could not be found out, such as an instance that
    bills without being a member of a live run, and 0 when all is well.
    """
    checks: list[Check] = [orphans_check(regions)]
    if orphans:
        checks = [check for check in checks if check.name == "orphans"]
    found = examine(checks)
    code = exit_code(found)
    click.echo(json.dumps({"exit_code": code, "checks": body(found)}) if as_json else text(found))
    return code
