"""Keeps the state in which a run was stopped in order as a checkpoint to resume from.

    final/stage-00.safetensors ...  ->  step-00000042/gen-000003/stage-00.safetensors ..., manifest

Rule: a stage's final file is equal to its shard, byte for byte, so nothing is trained or computed
for it. As with every checkpoint, nothing counts before its manifest is there.
"""

from collections.abc import Collection
from pathlib import Path

from bamboo.checkpoint.final import describe, stage_file
from bamboo.checkpoint.manifest import HashAt, Manifest, Shard, hash_at, shard_name
from bamboo.checkpoint.shards import commit_or_replace
from bamboo.errors import InputError, StorageUnavailable
from bamboo.ids import RunId
from bamboo.ports import ObjectStore


def keep_final(
    store: ObjectStore,
    folder: Path,
    *,
    run: RunId,
    semantic_hash: HashAt,
    stages: int,
    generation: int,
    layers: Collection[int],
    now_s: float,
) -> int:
    """Store the final files of all stages as a checkpoint; returns how many steps are done in it.

    `generation`: the era in which they were written. `layers`: the layers that have parameters,
    where they are known. Raises InputError when a file is missing, damaged or of another step,
    StorageUnavailable when the checkpoint cannot be stored or lacks a layer.
    """
    found = [(folder / stage_file(stage), describe(folder / stage_file(stage)))
             for stage in range(stages)]  # fmt: skip
    step = int(found[0][1]["step"])
    if odd := next((path for path, described in found if described["step"] != step), None):
        raise InputError(f"{odd} is not of step {step}; take the files of one run")
    shards = tuple(
        Shard(
            name=shard_name(step=step, generation=generation, stage=stage),
            bytes=path.stat().st_size,
            sha256=described["sha256"],
            tensors=tuple(sorted(described["tensors"])),
        )
        for stage, (path, described) in enumerate(found)
    )
    manifest = Manifest(
        run=run,
        semantic_hash=hash_at(semantic_hash, step),
        step=step,
        generation=generation,
        created_at_s=now_s,
        shards=shards,
    )
    if odd_layers := manifest.odd_layers(layers):
        raise StorageUnavailable(f"the final state after step {step} {odd_layers}")
    for shard, (path, _) in zip(shards, found, strict=True):
        store.put_file(shard.name, path)
    commit_or_replace(store, manifest, layers=layers)
    return step
