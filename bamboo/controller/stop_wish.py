"""The request to stop a run at its next step boundary, and waiting for that: by its folder here, or
from elsewhere by its store alone.

Rule: the request decides nothing. The members agree on the step, and the run's launcher ends its
instances.
"""

import time

from bamboo import wiring
from bamboo.config.account import account_job
from bamboo.controller import background
from bamboo.coord.follow import Follower
from bamboo.core.events import StopRequested
from bamboo.core.state import Outcome, Phase, State
from bamboo.errors import BambooError, InputError
from bamboo.ids import RunId
from bamboo.ports import Store
from bamboo.runs.live import live_store
from bamboo.runs.run_folder import RunFolder
from bamboo.sites import opened
from bamboo.wiring.store_reference import store_of_job

WAIT_S = 150.0
"""How long the members may take to agree on a step and to finish it."""
RECEIPT_S = 180.0
"""How long its launcher may then take until every instance is gone."""
LOOK_S = 0.1
LED_EVERY_S = 1.0
"""Seconds between two checks whether it has a launcher."""


def ask_to_stop(store: Store) -> None:
    """Send the request to the members. Raises StoreUnavailable, InputError."""
    wiring.driver(store, "stop").append(
        StopRequested(reason="stopped by `bamboo stop`", outcome=Outcome.STOPPED), deadline_s=10.0
    )


def await_stop(store: Store, run: RunId, *, wait_s: float = WAIT_S) -> State:
    """Wait for the run to end; its last state. Raises BambooError when it does not end in time."""
    follower = Follower()
    end_s = time.monotonic() + wait_s
    while time.monotonic() < end_s:
        follower.poll(store, timeout_s=1.0)
        state = follower.state
        if state is None:
            raise InputError(f"run {run} has an empty log")
        if state.phase is Phase.FINISHED:
            return state
    raise BambooError(f"run {run} did not stop within {wait_s:g} s; interrupt its launcher")


def stop_elsewhere(run: RunId, region: str, *, wait_s: float = WAIT_S) -> str:
    """Request a stop of a run that another machine leads, by the store and the account that the
    account file names. Its launcher has to know, or it would start again what is ended here.
    Returns the result for people; "" where there is nothing to stop or no answer."""
    job = account_job()
    if job is None or job.cloud.region != region:
        return ""
    try:
        if not any(one.state.live for one in wiring.account(region).describe(run)):
            return ""
        with wiring.store_of(run, store_of_job(job)) as store:
            if not store.documents():
                return ""
            ask_to_stop(store)
            return f"{await_stop(store, run, wait_s=wait_s).sentence}; "
    except BambooError as error:
        return f"it could not be asked to stop ({' '.join(str(error).split())}); "


def await_receipt(folder: RunFolder) -> None:
    """Wait until its launcher in the background has ended everything and written the receipt. Where
    that one dies meanwhile, another one does it."""
    end_s = time.monotonic() + RECEIPT_S
    look_at_s = 0.0
    while not folder.receipt.exists():
        if time.monotonic() >= look_at_s:
            _keep_led(folder)
            look_at_s = time.monotonic() + LED_EVERY_S
        if time.monotonic() > end_s:
            raise BambooError(
                f"run {folder.id} has stopped, but its launcher has left no receipt within "
                f"{RECEIPT_S:g} s; see logs/launcher.log in {folder.path}"
            )
        time.sleep(LOOK_S)


def _keep_led(folder: RunFolder) -> None:
    try:
        background.keep(folder)
    except BambooError:
        if not folder.receipt.exists():  # a launcher that only had to settle it has written one
            raise


def stop_at_a_boundary(folder: RunFolder, *, no_wait: bool) -> tuple[Outcome | None, str]:
    """Request a live run to stop, and wait until it has. Raises InputError for a run that does not
    live, BambooError for one that does not stop."""
    with live_store(folder) as store:
        ask_to_stop(store)
        detached = opened.outlives_its_launcher(folder)
        if detached:
            background.keep(folder)  # it needs a launcher to end its instances
        if no_wait:
            return None, "asked to stop"
        state = await_stop(store, folder.id)
        if detached:
            await_receipt(folder)
        return state.outcome, state.sentence
