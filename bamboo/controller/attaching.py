"""Attach to a run that another process leads: watch it, and keep it led.

A detached run whose launcher is gone gets a new one in the background. The run's lock makes sure
that there is only one, however many processes are attached. Detaching ends nothing.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from bamboo import wiring
from bamboo.controller import background
from bamboo.controller.outage import THEIR_STORE_AWAY_S
from bamboo.controller.watching import Watcher
from bamboo.errors import InputError, StoreNotReached, StoreUnavailable
from bamboo.ports import Store
from bamboo.runs import lock
from bamboo.runs.ports import Screen
from bamboo.runs.run_folder import RunFolder
from bamboo.runs.run_status import store_may_answer
from bamboo.sites import opened

TURN_S = 0.2
LOOK_EVERY_S = 1.0
"""Seconds between two checks whether the run has a launcher."""


def attend(folder: RunFolder, screen: Screen) -> dict[str, Any]:
    """Watch the run to its end, and return the content of its receipt.

    Raises InputError when the run is gone and has left no receipt, StoreUnavailable when its store
    does not come back.
    """
    detached = opened.outlives_its_launcher(folder)
    watcher = Watcher(folder, screen)
    look_at_s = 0.0
    noted, answered_at_s = "", time.monotonic()
    with ExitStack() as stack:
        store: Store | None = None
        while not folder.receipt.exists():
            try:
                if time.monotonic() >= look_at_s:
                    look_at_s = time.monotonic() + LOOK_EVERY_S
                    keep_led(folder, screen.note, detached=detached)
                store = store or _store(folder, stack)
                if store is not None:
                    watcher.turn(store, timeout_s=TURN_S)
                    noted, answered_at_s = "", time.monotonic()
                    continue
                trouble = "it is still starting"
            except (StoreUnavailable, StoreNotReached) as error:
                trouble = "its store does not answer at present"
                if time.monotonic() - answered_at_s > THEIR_STORE_AWAY_S:
                    raise StoreUnavailable(
                        f"run {folder.id}: nobody answers for {THEIR_STORE_AWAY_S:g} s: {error}"
                    ) from error
            if watcher.progress.finished:
                trouble = "the run is over; its instances are being ended"
            if trouble != noted:
                screen.note(f"{folder.id}: {trouble}")
                noted = trouble
            time.sleep(TURN_S)
    return folder.read_json(folder.receipt)


def keep_led(folder: RunFolder, note: Callable[[str], None], *, detached: bool) -> None:
    """Give a detached run a launcher where it has none. Raises InputError for another run that has
    lost its own."""
    if not lock.is_free(folder) or folder.receipt.exists():
        return
    if not detached:
        raise InputError(
            f"run {folder.id} has lost its launcher, and as it was not launched with --detach its "
            "local cloud ends with it, within 15 s"
        )
    note(f"{folder.id}: it has no launcher; starting one")
    background.keep(folder)


def _store(folder: RunFolder, stack: ExitStack) -> Store | None:
    """A connection to the store while we are attached; None while there is none to make."""
    endpoint = folder.live_endpoint()
    if endpoint is None or not store_may_answer(str(endpoint["store_url"])):
        return None
    return stack.enter_context(wiring.store_of(folder.id, str(endpoint["store_url"])))
