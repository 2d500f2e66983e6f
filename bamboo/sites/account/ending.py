"""Ends what a run holds in an account, by its tag alone. Then it deletes the login and the files
that its instances booted from, where job or account file name store and bucket.

Rule: this needs neither store nor launcher nor run folder, and doing it again does no harm. A live
launcher would start again what is ended here, so it has to be ended first.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from bamboo import wiring
from bamboo.config.account import account_defaults, account_job
from bamboo.config.tree import JobConfig
from bamboo.errors import BambooError, BooksUnwritable, InputError
from bamboo.ids import RunId
from bamboo.quantities import count
from bamboo.runs import lock, run_folder
from bamboo.runs.run_folder import RunFolder, job_of
from bamboo.sites.account.rented_check import remove_stored
from bamboo.sites.account.run_roles import each, remove_role, runs_with_role
from bamboo.wiring.store_reference import store_of_job
from cloud.fleet import Fleet
from cloud.provider import Held, HeldKind, Provider
from cloud.recorder import Recorded

DEADLINE_S = 300.0
"""A GPU instance takes minutes to shut down, and its volumes are deleted with it."""
GOING_S = 15.0
LOOK_S = 0.1


def end_in_account(
    run: RunId,
    region: str,
    *,
    folder: Path | None,
    note: Callable[[str], None],
    deadline_s: float = DEADLINE_S,
) -> str:
    """End everything of a run in a region and make sure that it is gone. Returns what to tell the
    user. `folder` is the run's folder, where it is known. Raises BambooError where a launcher of
    the run lives, StillLive, CloudRefused, CloudUnavailable."""
    found = None if folder is None else RunFolder(id=run, path=folder)
    if found is not None and not _led_no_more(found):
        raise BambooError(
            f"run {run} has a launcher that lives and would start again what is ended here; "
            f"interrupt it, then `bamboo stop {run}` again"
        )
    job = _job_of(found)
    its_stack = job.cloud.stack if job is not None and job.cloud.region == region else None
    provider: Provider = wiring.account(region, stack=its_stack)
    if found is not None and not found.receipt.exists():
        provider = Recorded(provider, found.cloud, note=note)
    before = provider.held(run)
    if before:
        note(f"{run}: ending {_names(before)} in {region}")
    with TemporaryDirectory() as elsewhere:
        intents = (folder or Path(elsewhere)) / "intents.jsonl"
        fleet = Fleet(provider, run=run, intents=intents)
        fleet.terminate_all(deadline_s=deadline_s, waiting=note, to_the_last=True)
    if isinstance(provider, Recorded):
        with suppress(BooksUnwritable):  # noted; settling the run checks again
            provider.close()
    _take_back(run, region, job)
    if not before and found is None:
        return (
            f"nothing in {region} carries the tag bamboo:run={run}: nothing of it is left there, "
            "if that is its id; `bamboo doctor --orphans` lists what bills"
        )
    if not before:
        return f"nothing of it is left in {region}"
    return f"{_names(before)} ended in {region}; nothing of it is left"


def runs_in_account(
    region: str, *, account: Callable[[str], Provider] = wiring.account
) -> tuple[RunId, ...]:
    """The runs that hold anything in the region, by tag."""
    return tuple(sorted({one.run for one in account(region).held(None) if one.run}))


def runs_left(region: str, *, note: Callable[[str], None]) -> tuple[RunId, ...]:
    """The runs with a role or a secret in the stack of the account file, if the stack is in this
    region. Nothing else finds what a launcher has left that was killed before its first instance. A
    user who may not list them can still end instances; `note` is called then."""
    stack = wiring.stack_in(region)
    found: set[RunId] = set()
    for look in (runs_with_role, lambda *there: wiring.run_secrets(*there).runs()):
        try:
            found.update(look(region, stack) if stack else ())
        except BambooError as error:
            note(f"{region}: {' '.join(str(error).split())}")
    return tuple(sorted(found))


def remove_left(region: str, stack: str) -> tuple[RunId, ...]:
    """Delete the secrets and roles of all runs of a stack of which nothing lives. Returns those
    runs. Raises BambooError."""
    secrets = wiring.run_secrets(region, stack)
    kept = secrets.runs()
    for run in kept:
        secrets.delete(run)
    with wiring.run_roles(region, stack) as roles:
        with_role = roles.runs()
        for run in with_role:
            roles.remove(run)
    return tuple(sorted({*kept, *with_role}))


def _led_no_more(folder: RunFolder) -> bool:
    """Whether the launcher has left its receipt: it has nothing more to do, and soon exits."""
    end_s = time.monotonic() + GOING_S
    while not lock.is_free(folder):
        if not folder.receipt.exists() or time.monotonic() > end_s:
            return False
        time.sleep(LOOK_S)
    return True


def _job_of(folder: RunFolder | None) -> JobConfig | None:
    """The run's job, or otherwise one from the account file."""
    try:
        return account_job() if folder is None else job_of(folder)
    except InputError:  # the folder of a damaged run gives no job
        return account_job()


def _take_back(run: RunId, region: str, job: JobConfig | None) -> None:
    """Delete login, boot files and role that a killed launcher has left. Raises BambooError."""
    if job is None or job.cloud.provider == "local":
        return
    if job.cloud.region == region and job.cloud.bucket:
        reference = store_of_job(job)
        each(lambda: remove_stored(job, run, reference=reference), lambda: remove_role(job, run))


def region_of(folder: RunFolder) -> str:
    """The region of the account that a run was launched into; "" for a run on this machine. Raises
    InputError for a damaged run."""
    return cloud.region if (cloud := job_of(folder).cloud).provider == "ec2" else ""


def account_regions() -> tuple[str, ...]:
    """The regions of the account file and of the runs of this home in an account."""
    named = account_defaults()
    found = [str(named["region"])] if "region" in named else []
    for folder in run_folder.all_runs(run_folder.home()):
        with suppress(InputError):  # the folder of a damaged run names none
            found.append(region_of(folder))
    return tuple(dict.fromkeys(filter(None, found)))


def _names(held: Sequence[Held]) -> str:
    """`2 instances, 1 volume`."""
    counted = Counter(one.kind for one in held)
    return ", ".join(count(counted[kind], kind.value) for kind in HeldKind if counted[kind])
