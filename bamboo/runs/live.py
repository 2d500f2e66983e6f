"""Reaching a run that another process leads: its store and its cloud, by its endpoint file."""

from collections.abc import Iterator
from contextlib import contextmanager

from bamboo import wiring
from bamboo.errors import InputError, StoreUnavailable
from bamboo.ports import Store
from bamboo.runs import lock
from bamboo.runs.run_folder import RunFolder
from bamboo.runs.run_status import store_may_answer


class StoreSilent(InputError):
    """The store of a run that has not ended does not answer."""


@contextmanager
def live_store(folder: RunFolder) -> Iterator[Store]:
    """The store of a run that has not ended. Raises InputError when it has, StoreSilent."""
    if folder.starting():
        raise InputError(f"run {folder.id} is still starting; ask again in a moment")
    endpoint = folder.live_endpoint()
    if folder.receipt.exists():
        raise InputError(f"run {folder.id} has ended; `bamboo status {folder.id}` says how")
    if endpoint is None:
        raise InputError(
            f"run {folder.id} is not there: its launcher ended before it came up; "
            f"`bamboo resume {folder.id}` starts it"
        )
    url = str(endpoint["store_url"])
    if not store_may_answer(url) and not lock.is_free(folder):
        raise StoreSilent(f"run {folder.id} is ending: its store is gone; ask again in a moment")
    if not store_may_answer(url):
        raise InputError(f"run {folder.id} does not live any more: its store is gone")
    try:
        with wiring.store_of(folder.id, url) as store:
            yield store
    except StoreUnavailable as error:
        raise StoreSilent(f"run {folder.id} does not answer: {error}") from error


def has_site(folder: RunFolder) -> bool:
    """Whether the run may still have a site: its endpoint says where."""
    endpoint = folder.live_endpoint()
    return endpoint is not None and ("cloud" in endpoint or "account" in endpoint)


def local_cloud_of(folder: RunFolder) -> "wiring.LocalCloud":
    """The local cloud of a live run. Raises InputError when the run has no endpoint."""
    endpoint = folder.live_endpoint()
    if endpoint is None or "cloud" not in endpoint:
        raise InputError(
            f"run {folder.id} has no local cloud: its launcher ended before there was one, and "
            f"nothing of it runs; `bamboo resume {folder.id}` starts it, its logs are in "
            f"{folder.path}"
        )
    return wiring.local_cloud(endpoint["cloud"])
