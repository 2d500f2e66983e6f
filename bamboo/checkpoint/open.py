"""Opens the object store that an address names."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.ports import ObjectStore

OpenObjects: TypeAlias = Callable[[str], ObjectStore]


def checkpoint_store(
    url: str,
    *,
    run: RunId,
    run_dir: Path | None,
    run_url: str = "",
    bucket: OpenObjects | None = None,
) -> ObjectStore:
    """The store at `checkpoint_url`. Raises the same InputError as that, and one when nothing here
    can open the address."""
    return open_objects(
        checkpoint_url(url, run=run, run_dir=run_dir, run_url=run_url), bucket=bucket
    )


def checkpoint_url(url: str, *, run: RunId, run_dir: Path | None, run_url: str = "") -> str:
    """The address of a run's checkpoints: `url` followed by the run's id, or, when `url` is empty,
    `checkpoints` in the run's folder. `run_url` is that folder where it is in a bucket. Raises
    InputError when there is neither."""
    if url:
        scheme, separator, place = url.partition("://")
        return f"{scheme}://{place.strip('/')}/{run}" if separator else str(Path(url) / run)
    if run_url:
        return f"{run_url}/checkpoints"
    if run_dir is None:
        raise InputError(
            "checkpoint.url is empty and this node has no folder of the run; give a url that "
            "every node reaches"
        )
    return str(run_dir / "checkpoints")


def open_objects(url: str, *, bucket: OpenObjects | None = None) -> ObjectStore:
    """The store at `url`: a directory, or what `bucket` opens for `s3://bucket/prefix`.

    Raises InputError for an address that nothing here can open.
    """
    scheme, separator, place = url.partition("://")
    if not separator:
        return DirectoryStore(Path(url))
    if scheme != "s3" or bucket is None or place.startswith("/"):
        raise InputError(
            f"checkpoint.url = {url!r} cannot be opened; give a directory or s3://bucket/prefix"
        )
    return bucket(url)


def check_directory(url: str) -> None:
    """Raise InputError when `url` is a directory that cannot be made or written here. This makes
    nothing and does not ask a bucket."""
    if not url or "://" in url:
        return
    path = Path(url).absolute()
    try:
        there = next(p for p in (path, *path.parents) if p.exists())
        if not there.is_dir():
            problem, remedy = f"{there} is no directory", "name another"
        elif not os.access(there, os.W_OK | os.X_OK):
            problem, remedy = f"{there} cannot be written", "name another, or allow it"
        else:
            return
    except OSError as error:
        problem, remedy = f"it cannot be looked at ({error.strerror})", "name another"
    raise InputError(f"checkpoint.url = {url!r}: {problem}; {remedy}")
