"""`bamboo stop`: end a run at its next step boundary, from another terminal, and make sure that
nothing of it is left in an account."""

import json

import click

from bamboo.controller.stop_wish import stop_at_a_boundary, stop_elsewhere
from bamboo.core.state import Outcome
from bamboo.doctor.orphans import account_regions
from bamboo.errors import BambooError, InputError
from bamboo.ids import run_id
from bamboo.runs import run_folder
from bamboo.runs.run_status import job_of
from bamboo.sites.account.ending import end_in_account, runs_in_account, runs_left
from cli.echo import echo_result, note


@click.command("stop")
@click.argument("run", default="")
@click.option(
    "--all", "everything", is_flag=True, help="Stop all runs, and end all with their tag."
)
@click.option(
    "--region",
    default="",
    help="End all with the run's tag in this region; RUN is its whole id, known here or not.",
)
@click.option("--no-wait", is_flag=True, help="Return at once, without waiting for the end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per run.")
def command(*, run: str, everything: bool, region: str, no_wait: bool, as_json: bool) -> int:
    """Stop a run at its next step boundary.

    In an account, everything with the run's tag is then ended: requests, instances, and the volumes
    that they leave. This needs neither the run's store nor its launcher nor its folder, and it is
    safe to repeat.
    """
    if everything == bool(run):
        raise InputError("give the run to stop, or --all")
    if not everything:
        _stop(run, region, no_wait=no_wait, as_json=as_json)
        return 0
    codes = [0]
    ours = run_folder.own_runs(run_folder.home())
    living = [folder for folder in ours if not folder.receipt.exists() and _holds(folder)]
    regions = (region,) if region else account_regions()
    wishes = [(folder.id, "") for folder in living]
    wishes += [(held, where) for where in regions for held in runs_in_account(where)]
    wishes += [(left, where) for where in regions for left in runs_left(where, note=note)]
    for name, where in dict.fromkeys(wishes):
        try:
            _stop(name, where, no_wait=no_wait, as_json=as_json)
        except BambooError as error:  # the others are stopped all the same
            codes.append(error.exit_code)
            note(f"{name}: {' '.join(str(error).split())}")
    if not wishes:
        unasked = "no account was asked: none is named here; --region R asks one"
        asked = f"nothing in {', '.join(regions)} carries the tag of one" if regions else unasked
        note(f"no run lives here, and {asked}")
    return max(codes)


def _stop(run: str, region: str, *, no_wait: bool, as_json: bool) -> None:
    """Stop it at a step boundary where that is possible; then by tag, if it is in an account."""
    exact = next((f for f in run_folder.own_runs(run_folder.home()) if f.id == run), None)
    if region and exact is None:
        asked = "" if no_wait else stop_elsewhere(run_id(run), region)
        asked += end_in_account(run_id(run), region, folder=None, note=note)
        _say(run, None, asked, as_json=as_json)
        return
    folder = exact or run_folder.find(run_folder.home(), run)
    region = _checked_region(folder, region)
    try:
        outcome, sentence = stop_at_a_boundary(folder, no_wait=no_wait)
    except InputError:
        if not region:
            raise
        ended = folder.receipt.exists()
        outcome, sentence = None, "it has ended" if ended else "it could not be asked to stop"
    if region and not no_wait:
        sentence = f"{sentence}; {end_in_account(folder.id, region, folder=folder.path, note=note)}"
    _say(folder.id, outcome, sentence, as_json=as_json)


def _checked_region(folder: run_folder.RunFolder, asked: str) -> str:
    """The region in which to end a run. Raises InputError for another region than its own."""
    try:
        its_own = _region_of(folder)
    except InputError:  # the folder of a damaged run names none
        if asked:
            return asked
        raise
    if asked and its_own and asked != its_own:
        raise InputError(f"--region {asked}: run {folder.id} is in {its_own}; leave it out")
    return asked or its_own


def _holds(folder: run_folder.RunFolder) -> bool:
    """Whether a run without a receipt may hold anything there. If its start into an account was cut
    off, it has left its login and boot files before it had an endpoint."""
    if folder.endpoint.exists():
        return True
    try:
        return bool(_region_of(folder))
    except InputError:  # the folder of a damaged run names none
        return False


def _region_of(folder: run_folder.RunFolder) -> str:
    """The region of the account that it was launched into; "" for a local run."""
    return cloud.region if (cloud := job_of(folder).cloud).provider == "ec2" else ""


def _say(run: str, outcome: Outcome | None, sentence: str, *, as_json: bool) -> None:
    """Print the result of the request; without an outcome the command did not wait for it."""
    body = {"run": run, "outcome": outcome, "sentence": sentence}
    echo_result(json.dumps(body) if as_json else f"{run}: {sentence}")
