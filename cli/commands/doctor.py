"""`bamboo doctor`: check what a run needs and what is billed; change nothing."""

import json
from pathlib import Path

import click

from bamboo import api
from cli.echo import echo_result
from cli.options.overrides import overrides_option


@click.command("doctor")
@click.argument("job", required=False, type=click.Path(path_type=Path))
@overrides_option
@click.option(
    "--orphans", is_flag=True, help="Only look for what bills or has a login without a live run."
)
@click.option(
    "--region",
    "regions",
    multiple=True,
    help="Region to look in; by default those of the job, the account file and the runs here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    job: Path | None,
    overrides: tuple[str, ...],
    orphans: bool,
    regions: tuple[str, ...],
    as_json: bool,
) -> int:
    """Check this machine and the account, with a remedy for each fault.

    With a JOB on EC2, the account is checked for what that job needs; without a JOB, for what the
    account file of `bamboo init` names. Without either, only this machine is checked. The exit code
    is 1 if something is wrong or could not be checked, for example if an instance bills and belongs
    to no live run; it is 0 if all is well.
    """
    found = api.examine(job, overrides=overrides, regions=regions, only_orphans=orphans)
    body = {"exit_code": found.exit_code, "checks": found.body()}
    echo_result(json.dumps(body) if as_json else found.text())
    return found.exit_code
