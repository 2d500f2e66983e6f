"""Which object store an address names."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.errors import InputError
from bamboo.ports import ObjectStore

OpenObjects: TypeAlias = Callable[[str], ObjectStore]


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
