"""`bamboo doctor`: check what a run needs and what is billed; change nothing."""

import json
from dataclasses import replace
from pathlib import Path

import click

from bamboo.config.load import load_job
from bamboo.doctor.checks import Check, body, examine, exit_code, text
from bamboo.doctor.checks_account import AccountChecks
from bamboo.doctor.checks_here import here_checks
from bamboo.doctor.leftovers import leftovers_check, places
from bamboo.doctor.orphans import account_regions, orphans_check
from bamboo.sites.account.ending import account_job
from bamboo.wiring.store_reference import named_store, store_of_job
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
    found = examine(_checks(job, overrides, regions, only_orphans=orphans))
    code = exit_code(found)
    echo_result(json.dumps({"exit_code": code, "checks": body(found)}) if as_json else text(found))
    return code


def _checks(
    path: Path | None, overrides: tuple[str, ...], regions: tuple[str, ...], *, only_orphans: bool
) -> list[Check]:
    if only_orphans:
        return [orphans_check(regions), *_left_overs()]
    job = account_job() if path is None else load_job(path, overrides)
    there = job is not None and job.cloud.provider == "ec2"
    store = named_store() if job is None else store_of_job(job)
    checks = here_checks(store, in_account=there, job=job)
    if job is not None and there:
        for region in regions or (job.cloud.region,):
            of_region = replace(job, cloud=replace(job.cloud, region=region))
            checks += AccountChecks(job=of_region, needed=path is not None).checks()
        regions = regions or tuple(dict.fromkeys((job.cloud.region, *account_regions())))
    if there or regions or account_regions():
        checks += [orphans_check(regions), *_left_overs()]
    return checks


def _left_overs() -> list[Check]:
    """The check of the places where runs may have left something."""
    there = places()
    return [leftovers_check(there)] if there else []
