"""Which checks there are for a job, for an account, for this machine; and what they found."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bamboo.config.account import account_job
from bamboo.config.load import load_job
from bamboo.doctor.checks import Check, Examination, examine
from bamboo.doctor.checks_account import AccountChecks
from bamboo.doctor.checks_here import here_checks
from bamboo.doctor.leftovers import leftovers_check, places
from bamboo.doctor.orphans import orphans_check
from bamboo.sites.account.ending import account_regions
from bamboo.wiring.store_reference import named_store, store_of_job


def examination(
    path: Path | None,
    *,
    overrides: Sequence[str] = (),
    regions: tuple[str, ...] = (),
    only_orphans: bool = False,
) -> Examination:
    """What each check found, by its name, in the order in which a launch would fail. Without the
    `path` of a job the account file's account is looked at, and without one this machine alone.
    `regions` are looked at in place of the job's; `only_orphans` looks for what bills, or has a
    login, without a live run. Raises InputError for a job that cannot be read."""
    if only_orphans:
        checks = [orphans_check(regions), *_left_overs()]
        return Examination(found=tuple(examine(checks)))
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
    return Examination(found=tuple(examine(checks)))


def _left_overs() -> list[Check]:
    """The check of the places where runs may have left something."""
    there = places()
    return [leftovers_check(there)] if there else []
