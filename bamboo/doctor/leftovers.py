"""The check that a finished run has left nothing that opens store or bucket: its login, the secret
with the login's password, the role of its instances, the `agent.env` in its bucket; and no data,
which the bucket bills.

Rule: it asks and changes nothing. A start on another machine looks the same before its first
instance, so each finding is a warning, with the command that deletes what was found.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from bamboo import wiring
from bamboo.config.account import account_job
from bamboo.config.tree import JobConfig
from bamboo.coord.logins import runs_with_login
from bamboo.doctor.checks import Check, Finding, Result
from bamboo.errors import InputError
from bamboo.ids import RunId, run_id
from bamboo.ports import ObjectStore
from bamboo.quantities import count
from bamboo.runs import lock, run_folder
from bamboo.runs.run_folder import job_of
from bamboo.sites.account.boot_files import AGENT_ENV
from bamboo.sites.account.ending import runs_in_account
from bamboo.sites.account.run_roles import runs_with_role
from bamboo.wiring.store_reference import store_of_job, store_url_of


class Secrets(Protocol):
    """The secrets of a stack's runs, as `cloud.ec2.secrets.RunSecrets` keeps them."""

    def runs(self) -> tuple[RunId, ...]:
        """The runs that have a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where runs in an account have their login, its secret and their boot files."""

    region: str
    stack: str
    bucket: str
    store: str
    """A URL or a reference."""


def places() -> tuple[Place, ...]:
    """The place of the account file, and the places of the runs of this home."""
    jobs: list[JobConfig | None] = [account_job()]
    for folder in run_folder.all_runs(run_folder.home()):
        with suppress(InputError):  # the folder of a damaged run names none
            jobs.append(job_of(folder))
    found = [
        Place(
            region=job.cloud.region,
            stack=job.cloud.stack,
            bucket=job.cloud.bucket,
            store=store_of_job(job),
        )
        for job in jobs
        if job is not None and job.cloud.provider == "ec2" and job.cloud.bucket
    ]
    return tuple(dict.fromkeys(found))


def runs_in_any_stack(region: str) -> tuple[RunId, ...]:
    """The runs that hold anything in the region, including live runs of another stack than the
    account file's."""
    return runs_in_account(region, account=partial(wiring.account, stack=""))


def leftovers_check(
    asked: tuple[Place, ...],
    *,
    bucket: Callable[..., ObjectStore] = wiring.bucket,
    secrets: Callable[[str, str], Secrets] = wiring.run_secrets,
    roles: Callable[[str, str], tuple[RunId, ...]] = runs_with_role,
    in_account: Callable[[str], tuple[RunId, ...]] = runs_in_any_stack,
) -> Check:
    """The check of these places."""

    def ask() -> Finding:
        runs = run_folder.all_runs(run_folder.home())
        there = [one for run in runs for one in (run, *run_folder.checks_of(run))]
        led = {one.id for one in there if not lock.is_free(one)}
        found = []
        for place in asked:
            objects = bucket(f"s3://{place.bucket}", region=place.region)
            left = {run: [what] for run, what in _with_files(objects).items()}
            for run in roles(place.region, place.stack):
                left.setdefault(run, []).insert(0, "role")
            for run in secrets(place.region, place.stack).runs():
                left.setdefault(run, []).insert(0, "secret")
            for run in runs_with_login(store_url_of(place.store)) if place.store else ():
                left.setdefault(run, []).insert(0, "login")
            living = led.union(in_account(place.region)) if left else led
            found += [
                {
                    "run": run,
                    "region": place.region,
                    "what": left[run],
                    "command": f"bamboo stop {run} --region {place.region}",
                }
                for run in sorted(left)
                if run not in living
            ]
        if not found:
            return Finding(
                result=Result.GOOD, sentence="no run that is over has a login or a role left"
            )
        return Finding(
            result=Result.WARNING,
            sentence=f"{count(len(found), 'run')} without launcher here and without instances "
            "may use store or bucket still",
            remedy="run the commands above, unless another machine starts such a run just now",
            lines=tuple(
                f"{one['run']}: {' and '.join(one['what'])}: {one['command']}" for one in found
            ),
            rows=tuple(found),
        )

    return Check(name="left-overs", ask=ask, after="credentials")


def _with_files(objects: ObjectStore) -> dict[RunId, str]:
    """The runs with files that instances start from; a launcher that was killed before it wrote the
    settings has left data alone."""
    found: dict[RunId, str] = {}
    for name in objects.sizes(wiring.STARTS):
        run, _, file = name.removeprefix(wiring.STARTS).partition("/")
        with suppress(InputError):  # not one of our names
            found[run_id(run)] = AGENT_ENV if file == AGENT_ENV else found.get(run_id(run), "data")
    return found
