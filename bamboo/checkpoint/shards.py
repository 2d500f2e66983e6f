"""Writes a checkpoint: each stage writes its shard, then one node writes the manifest.

Rule: nothing counts before the manifest is there, and the manifest of a step is written once: of
two writers the first one's is kept, and the other learns of it.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bamboo.checkpoint.catalogue import examine
from bamboo.checkpoint.final import write_stage
from bamboo.checkpoint.manifest import Manifest, Shard, constant_name, shard_name
from bamboo.errors import InputError, StorageFull, StorageUnavailable
from bamboo.named_files import sha256_of
from bamboo.ports import ObjectStore

if TYPE_CHECKING:
    from torch import Tensor


def save_shard(
    store: ObjectStore,
    tensors: Mapping[str, "Tensor"],
    *,
    step: int,
    generation: int,
    stage: int,
    scratch: Path,
) -> Shard:
    """Store one stage's tensors after `step` steps, by way of a file in `scratch`.

    Writing twice is safe: equal state gives equal bytes. Raises StorageUnavailable, and StorageFull
    (also when `scratch` is full or cannot be used).
    """
    with _written(scratch, stage, tensors, step) as (path, described):
        name = shard_name(step=step, generation=generation, stage=stage)
        store.put_file(name, path)
        return shard_of(name, path, described)


def save_constant(
    store: ObjectStore, layer: int, tensors: Mapping[str, "Tensor"], *, scratch: Path
) -> Shard:
    """Store what is constant of a layer, unless it is there already, as it was written. Raises the
    same errors as `save_shard`."""
    with _written(scratch, layer, tensors, 0) as (path, described):
        return put_constant(store, path, described)


def put_constant(store: ObjectStore, path: Path, described: Mapping[str, Any]) -> Shard:
    """The same for a file of what is constant of a layer, and what `describe` says of it."""
    name, there = constant_name(described["sha256"]), path.with_name("there")
    try:
        held = store.fetch(name, there) and sha256_of(there) == described["sha256"]
    except StorageFull as error:  # what is read is written there
        raise no_scratch(path.parent, error.__cause__ or error) from error
    finally:
        there.unlink(missing_ok=True)
    if not held:
        store.put_file(name, path)
    return shard_of(name, path, described)


@contextmanager
def _written(
    scratch: Path, number: int, tensors: Mapping[str, "Tensor"], step: int
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A file of these tensors in `scratch`, and its description."""
    try:
        described = write_stage(scratch, number, tensors, step)
    except (StorageUnavailable, InputError, OSError) as error:  # the second: it is gone again
        raise no_scratch(scratch, error.__cause__ or error) from error
    path = scratch / described["file"]
    try:
        yield path, described
    finally:
        path.unlink(missing_ok=True)


def shard_of(name: str, path: Path, described: Mapping[str, Any]) -> Shard:
    """The shard that a file is under this name; `described`: what `describe` says of the file."""
    return Shard(
        name=name,
        bytes=path.stat().st_size,
        sha256=described["sha256"],
        tensors=tuple(sorted(described["tensors"])),
    )


def no_scratch(scratch: Path, error: BaseException) -> StorageFull:
    """The error when files on their way to or from the store cannot be written."""
    remedy = "make room where TMPDIR points to, or point it elsewhere"
    return StorageFull(f"{scratch}: {error}; {remedy}")


def commit(store: ObjectStore, manifest: Manifest) -> bool:
    """Complete a checkpoint; False when that step has a manifest already, which is then kept."""
    return store.put_new(manifest.name, manifest.to_json().encode())


def commit_or_replace(
    store: ObjectStore, manifest: Manifest, *, layers: Collection[int] = ()
) -> None:
    """Complete a checkpoint. The step may have a manifest already, when a run that was restored
    from an earlier step comes to it again: then a good one is kept, and a damaged one is replaced.
    Raises StorageUnavailable."""
    if commit(store, manifest):
        return
    whose = {"run": manifest.run, "semantic_hash": manifest.semantic_hash}
    found, why = examine(store, manifest.step, **whose, layers=layers)
    if not why:
        return
    if found is not None and whose != {"run": found.run, "semantic_hash": found.semantic_hash}:
        raise StorageUnavailable(
            f"the checkpoint of step {manifest.step} that is there {why}; "
            "give each run a checkpoint.url of its own"
        )
    store.delete(manifest.name)
    if not commit(store, manifest):
        raise StorageUnavailable(f"{manifest.name} is written by somebody else too")
