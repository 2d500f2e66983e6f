"""Finds which checkpoints exist, which of them is the newest good one, and what is in it.

Rule: nothing is believed without reading it: sizes and digests are compared before a checkpoint is
called good, and every checkpoint that is passed over is named with the reason.
"""

import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo.checkpoint.manifest import (
    CONSTANT,
    MANIFEST,
    HashAt,
    Manifest,
    Shard,
    folder_of,
    hash_at,
    step_of,
)
from bamboo.errors import NotAsWritten
from bamboo.named_files import sha256_of
from bamboo.ports import ObjectStore

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The outcome of a search. `manifest` is None when no checkpoint is good."""

    manifest: Manifest | None
    rejected: tuple[str, ...]
    """A sentence for each newer checkpoint that is not good."""
    older: tuple[int, ...] = ()
    """Steps of the complete checkpoints before it, oldest first. Their shards were not read: only a
    restore checks them."""


def steps(store: ObjectStore) -> list[int]:
    """Steps of which the store has any object, complete or not, newest first."""
    found = {step_of(name) for name in store.sizes("")}
    return sorted((step for step in found if step is not None), reverse=True)


def newest_good(
    store: ObjectStore, *, run: str, semantic_hash: HashAt, layers: Collection[int] = ()
) -> Found:
    """The newest complete and undamaged checkpoint of this run and of these semantics that holds
    `layers`, where they are known.

    Reads every shard of the candidates. Raises StorageUnavailable.
    """
    rejected: list[str] = []
    found = steps(store)
    for step in found:
        manifest, why = examine(store, step, run=run, semantic_hash=semantic_hash, layers=layers)
        if not why:
            before = (s for s in reversed(found) if s < step)
            older = tuple(
                s
                for s in before
                if not described(store, s, run=run, semantic_hash=semantic_hash, layers=layers)[1]
            )
            return Found(manifest=manifest, rejected=tuple(rejected), older=older)
        rejected.append(f"the checkpoint of step {step} {why}")
    return Found(manifest=None, rejected=tuple(rejected))


def examine(
    store: ObjectStore, step: int, *, run: str, semantic_hash: HashAt, layers: Collection[int] = ()
) -> tuple[Manifest | None, str]:
    """The manifest of a checkpoint and what is wrong with it, "" when nothing is. `layers`, where
    they are known, are the layers that have parameters: the checkpoint must hold exactly these."""
    manifest, why = described(store, step, run=run, semantic_hash=semantic_hash, layers=layers)
    if why or manifest is None:
        return manifest, why
    sizes = dict(store.sizes(f"{folder_of(step)}/"))
    if any(shard.name.startswith(CONSTANT) for shard in manifest.shards):
        sizes |= store.sizes(CONSTANT)
    for shard in manifest.shards:
        size = sizes.get(shard.name)
        if size is None:
            return manifest, f"lacks {shard.name}"
        if size != shard.bytes:
            return manifest, f"is truncated: {shard.name} has {size} of {shard.bytes} bytes"
    with tempfile.TemporaryDirectory(prefix="bamboo-") as scratch:
        for shard in manifest.shards:
            path = Path(scratch) / "shard"
            if not store.fetch(shard.name, path) or sha256_of(path) != shard.sha256:
                return manifest, f"is corrupted: {shard.name} is not what was written"
    return manifest, ""


def described(
    store: ObjectStore, step: int, *, run: str, semantic_hash: HashAt, layers: Collection[int] = ()
) -> tuple[Manifest | None, str]:
    """The same as `examine`, by the manifest alone."""
    text = store.get(f"{folder_of(step)}/{MANIFEST}")
    if text is None:
        return None, "is torn: it has no manifest"
    try:
        manifest = Manifest.from_json(text)
    except ValueError as error:
        return None, f"has a damaged manifest: {error}"
    if manifest.step != step:
        return manifest, f"has the manifest of step {manifest.step}"
    if manifest.semantic_hash != (ours := hash_at(semantic_hash, step)):
        return manifest, (
            f"is of other semantics ({manifest.semantic_hash}, of run {manifest.run}), not {ours}"
        )
    if manifest.run != run:
        return manifest, f"is of run {manifest.run}, not {run}"
    try:
        odd = manifest.odd_layers(layers)
    except ValueError as error:
        return manifest, f"has a damaged manifest: {error}"
    return manifest, odd


def load_tensors(
    store: ObjectStore, manifest: Manifest, names: Collection[str], *, scratch: Path
) -> dict[str, "Tensor"]:
    """The named tensors, from whichever shards hold them, so that any cut can be restored from any
    other.

    Raises NotAsWritten when a shard is missing or is not what the manifest says, StorageUnavailable
    when it cannot be read, and ValueError for a name that the checkpoint does not have.
    """
    missing = set(names).difference(*(shard.tensors for shard in manifest.shards))
    if missing:
        raise ValueError(f"the checkpoint of step {manifest.step} has no {sorted(missing)[0]!r}")
    out: dict[str, Tensor] = {}
    for shard in manifest.shards:
        wanted = [name for name in shard.tensors if name in names]
        if wanted:
            out |= _load_shard(store, shard, wanted, scratch)
    return out


def _load_shard(
    store: ObjectStore, shard: Shard, wanted: Collection[str], scratch: Path
) -> dict[str, "Tensor"]:
    from safetensors import SafetensorError, safe_open

    path = scratch / "shard.safetensors"
    try:
        if not store.fetch(shard.name, path) or sha256_of(path) != shard.sha256:
            raise NotAsWritten(
                f"{shard.name} is gone or not what was written; take an older checkpoint"
            )
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in wanted}
    except SafetensorError as error:
        raise NotAsWritten(
            f"{shard.name} does not hold what it is to: {error}; take an older checkpoint"
        ) from error
    finally:
        path.unlink(missing_ok=True)
