"""Stops a run wherever it is, or all runs: at a step boundary where it can still be asked, then by
its tag in an account, which needs neither its store nor its launcher nor its folder."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bamboo.controller.stop_wish import stop_at_a_boundary, stop_elsewhere
from bamboo.core.state import Outcome
from bamboo.errors import BambooError, InputError
from bamboo.ids import run_id
from bamboo.runs import run_folder
from bamboo.runs.run_folder import RunFolder
from bamboo.sites.account.ending import (
    account_regions,
    end_in_account,
    region_of,
    runs_in_account,
    runs_left,
)

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """What became of the request to stop a run."""

    run: str
    outcome: Outcome | None = None
    """How it ended; None: it was not waited for, or only ended by its tag."""
    sentence: str = ""
    error: BambooError | None = None
    """Why it could not be stopped, while the others of `stop_all` are."""


def stop_run(run: str, *, region: str = "", wait: bool = True, note: Note) -> Stopped:
    """Stop the run of this id, prefix or `last`. With a `region` it may be unknown here, and `run`
    is its whole id. `note` is told what takes a while. Raises InputError for a run that does not
    live, or is in another region; BambooError for one that does not stop."""
    exact = next((f for f in run_folder.own_runs(run_folder.home()) if f.id == run), None)
    if region and exact is None:
        asked = stop_elsewhere(run_id(run), region) if wait else ""
        asked += end_in_account(run_id(run), region, folder=None, note=note)
        return Stopped(run=run, sentence=asked)
    folder = exact or run_folder.find(run_folder.home(), run)
    region = _checked_region(folder, region)
    outcome = None
    try:
        outcome, sentence = stop_at_a_boundary(folder, no_wait=not wait)
    except InputError:
        if not region:
            raise
        ended = folder.receipt.exists()
        sentence = "it has ended" if ended else "it could not be asked to stop"
    if region and wait:
        sentence = f"{sentence}; {end_in_account(folder.id, region, folder=folder.path, note=note)}"
    return Stopped(run=folder.id, outcome=outcome, sentence=sentence)


def stop_all(*, region: str = "", wait: bool = True, note: Note) -> Iterator[Stopped]:
    """Stop every run of this home that lives, and all that carries the tag of a run in `region`, by
    default in the regions known here. A run that cannot be stopped does not keep the others."""
    ours = run_folder.own_runs(run_folder.home())
    living = [folder for folder in ours if not folder.receipt.exists() and _holds(folder)]
    regions = (region,) if region else account_regions()
    wishes = [(folder.id, "") for folder in living]
    wishes += [(held, where) for where in regions for held in runs_in_account(where)]
    wishes += [(left, where) for where in regions for left in runs_left(where, note=note)]
    for name, where in dict.fromkeys(wishes):
        try:
            yield stop_run(name, region=where, wait=wait, note=note)
        except BambooError as error:
            yield Stopped(run=name, error=error)
    if not wishes:
        unasked = "no account was asked: none is named here; --region R asks one"
        asked = f"nothing in {', '.join(regions)} carries the tag of one" if regions else unasked
        note(f"no run lives here, and {asked}")


def _checked_region(folder: RunFolder, asked: str) -> str:
    """The region in which to end a run. Raises InputError for another region than its own."""
    try:
        its_own = region_of(folder)
    except InputError:  # the folder of a damaged run names none
        if asked:
            return asked
        raise
    if asked and its_own and asked != its_own:
        raise InputError(f"--region {asked}: run {folder.id} is in {its_own}; leave it out")
    return asked or its_own


def _holds(folder: RunFolder) -> bool:
    """Whether a run without a receipt may hold anything there. If its start into an account was cut
    off, it has left its login and boot files before it had an endpoint."""
    if folder.endpoint.exists():
        return True
    try:
        return bool(region_of(folder))
    except InputError:  # the folder of a damaged run names none
        return False
