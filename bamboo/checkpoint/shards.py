"""Writing a checkpoint: each stage its shard, then somebody the manifest.

Rule: nothing counts before the manifest is there, and the manifest of a step is written once: of
two writers the first one's is kept, and the other is told.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo.checkpoint.final import write_stage
from bamboo.checkpoint.manifest import Manifest, Shard, shard_name
from bamboo.errors import StorageFull
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

    Writing twice is safe: equal state is equal bytes. Raises StorageUnavailable, StorageFull (also
    when `scratch` is full), and OSError when `scratch` cannot be written otherwise.
    """
    from safetensors import SafetensorError

    try:
        described = write_stage(scratch, stage, tensors, step)
    except SafetensorError as error:  # no OSError, even when the disk is full
        raise StorageFull(
            f"{scratch}: {error}; make room where TMPDIR points to, or point it elsewhere"
        ) from error
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


def commit(store: ObjectStore, manifest: Manifest) -> bool:
    """Complete a checkpoint; False when that step has a manifest already, which then stands."""
    return store.put_new(manifest.name, manifest.to_json().encode())
