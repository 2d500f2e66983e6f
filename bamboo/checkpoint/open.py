"""Which object store an address names."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.ports import ObjectStore

OpenObjects: TypeAlias = Callable[[str], ObjectStore]


def checkpoint_store(
    url: str, *, run: RunId, run_dir: Path | None, bucket: OpenObjects | None = None
) -> ObjectStore:
    """Where the checkpoints of a run lie: `url` with the run's id behind it, or `checkpoints` in
    the run's folder when `url` is empty. Raises InputError when there is neither."""
    if url:
        return open_objects(f"{url.rstrip('/')}/{run}", bucket=bucket)
    if run_dir is None:
        raise InputError(
            "checkpoint.url is empty and this node has no folder of the run; give a url that "
            "every node reaches"
        )
    return open_objects(str(run_dir / "checkpoints"))


def open_objects(url: str, *, bucket: OpenObjects | None = None) -> ObjectStore:
    """The store at `url`: a directory, or what `bucket` opens for `s3://bucket/prefix`.

    Raises InputError for an address that nobody here can open.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        return DirectoryStore(Path(url))
    if scheme != "s3" or bucket is None:
        raise InputError(
            f"checkpoint.url = {url!r} cannot be opened; give a directory or s3://bucket/prefix"
        )
    return bucket(url)
