"""A store that the user named, in which an earlier part of a run has left its keys.

Rule: the keys are deleted only where they belong to this run and none of its nodes beats any more.
What only they have of the run, its decisions, is saved first.
"""

import time

from bamboo import wiring
from bamboo.errors import InputError
from bamboo.ports import Store
from bamboo.runs.decisions import save_decisions
from bamboo.runs.run_folder import RunFolder
from bamboo.topology.strategy import Strategy
from bamboo.wiring.store_reference import REDIS_VARIABLE

POLL_S = 0.1


def check_may_go(folder: RunFolder, url: str, *, semantic_hash: str, gone_s: float) -> None:
    """Raise InputError when the store has another run of this id, or a live one: one of its nodes
    has beaten within `gone_s`."""
    with wiring.store_of(folder.id, url) as store:
        written = store.documents().get("strategy")
        if written is None:
            return
        found = Strategy.from_json(written).semantics.hash()
        if found != semantic_hash:
            raise InputError(
                f"the store has another run {folder.id}, of semantics {found}; "
                f"name another one in {REDIS_VARIABLE}"
            )
        if _beats(store, gone_s):
            raise InputError(
                f"nodes of run {folder.id} live, says the store; end them, wherever they were "
                f"started, or name another store in {REDIS_VARIABLE}"
            )


def give_up(folder: RunFolder, url: str) -> None:
    """Delete the run from the store, so that the next part can begin there."""
    with wiring.store_of(folder.id, url) as store:
        if not folder.decisions.exists() and store.documents():
            save_decisions(folder, store)
    wiring.remove_run(url, folder.id)


def _beats(store: Store, gone_s: float) -> bool:
    """Whether any node beats. Waits while the newest beat is too recent to tell."""
    end_s = time.monotonic() + gone_s
    now_s, first_s = _newest_beat(store)
    newest_s = first_s
    while now_s - newest_s < gone_s and time.monotonic() < end_s:
        time.sleep(POLL_S)
        now_s, newest_s = _newest_beat(store)
        if newest_s > first_s:
            return True
    return False


def _newest_beat(store: Store) -> tuple[float, float]:
    """The store's time, and that of the newest beat by the same clock; 0 where there is none."""
    now_s, leases = store.leases()
    return now_s, max((lease.beaten_at_s for lease in leases.values()), default=0.0)
