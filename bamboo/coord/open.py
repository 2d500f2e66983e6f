"""Opens a store by its URL, and checks it before anything is started."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from bamboo.coord.acl import USER_PREFIX, user_name
from bamboo.coord.address import read_address
from bamboo.coord.redis_store import RedisStore, StoreSeen
from bamboo.errors import InputError, StoreRefused, StoreUnavailable
from bamboo.ids import RunId, run_id
from bamboo.ports import Store

T = TypeVar("T")

DEADLINE_S = 4.0
"""Limit of one call, unless the caller gives another."""
_RETRY_S = 0.1


def open_store(url: str, run: RunId, *, deadline_s: float = DEADLINE_S) -> Store:
    """Connect to the store of `run` at `unix:///path.sock?db=0`, `redis://…` or `rediss://…`.

    One round trip shows that it answers and accepts the login. `deadline_s` bounds each later call.
    Raises StoreRefused (one line: the URL without its password, the remedy) if it does not.
    """
    store = RedisStore(url, run, deadline_s=deadline_s)
    try:
        store.ping()
    except BaseException:
        store.close()
        raise
    return store


def opened_in_time(store: Callable[[], T], *, deadline_s: float) -> T:
    """The result of `store`, which is called again while it refuses or does not answer, up to
    `deadline_s`: a new member may come before the network is up, or while the store restarts.
    Raises the last StoreRefused or StoreUnavailable."""
    end_s = time.monotonic() + deadline_s
    while True:
        try:
            return store()
        except (StoreRefused, StoreUnavailable):
            if time.monotonic() >= end_s:
                raise
            time.sleep(_RETRY_S)


def check_store(url: str, *, run: RunId | None = None, deadline_s: float = DEADLINE_S) -> None:
    """Find out, before anything is started, whether the store can be used. Leaves nothing behind.

    With a run's id it also tests that the store takes all kinds of writes of a run, below that
    run's keys. Raises StoreRefused as `open_store` does.
    """
    store = RedisStore(url, run or RunId("check"), deadline_s=deadline_s)
    try:
        store.ping()
        if run is not None:
            store.try_out()
    finally:
        store.close()


def look_at_store(url: str, *, deadline_s: float = DEADLINE_S) -> StoreSeen:
    """The server that answers, its version and its time, after a test of all kinds of writes of a
    run. Leaves nothing behind. Raises StoreRefused as `open_store` does."""
    store = RedisStore(url, _run_of_login(url), deadline_s=deadline_s)
    try:
        store.ping()
        seen = store.look()
        store.try_out()
        return seen
    finally:
        store.close()


def _run_of_login(url: str) -> RunId:
    """The run whose own user the URL names, which may write only there; for other users any run."""
    user = str(read_address(url).options.get("username") or "")
    with suppress(InputError):
        run = run_id(user.removeprefix(USER_PREFIX))
        if user == user_name(run):
            return run
    return RunId("check")


def remove_run(url: str, run: RunId, *, deadline_s: float = DEADLINE_S) -> None:
    """Delete a finished run with all its keys. Raises StoreRefused, or StoreUnavailable if the
    store does not answer."""
    store = RedisStore(url, run, deadline_s=deadline_s)
    try:
        store.remove()
    finally:
        store.close()
