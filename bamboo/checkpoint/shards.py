"""Writes a checkpoint: each stage writes its shard, then one node writes the manifest.

Rule: nothing counts before the manifest is there, and the manifest of a step is written once: of
two writers the first one's is kept, and the other learns of it.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo.checkpoint.catalogue import examine
from bamboo.checkpoint.final import write_stage
from bamboo.checkpoint.manifest import Manifest, Shard, shard_name
from bamboo.errors import InputError, StorageFull, StorageUnavailable
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
    try:
        described = write_stage(scratch, stage, tensors, step)
    except (StorageUnavailable, InputError, OSError) as error:  # the second: it is gone again
        raise no_scratch(scratch, error.__cause__ or error) from error
    path = scratch / described["file"]
    name = shard_name(step=step, generation=generation, stage=stage)
    try:
        store.put_file(name, path)
        return Shard(
            name=name,
            bytes=path.stat().st_size,
            sha256=described["sha256"],
            tensors=tuple(sorted(described["tensors"])),
        )
    finally:
        path.unlink(missing_ok=True)


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
