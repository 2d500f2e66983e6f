"""Keeps the state in which a run was stopped in order as a checkpoint to resume from.

    final/stage-00.safetensors ...  ->  step-00000042/gen-000003/stage-00.safetensors ..., manifest
                                        constant/<sha256>.safetensors ..., unless they are there

Rule: nothing is trained or computed for it. A stage's final file is equal to its shard, byte for
byte, or holds what is constant of its layers beside that; then each part is copied into a file that
is equal to what a node would store. As with every checkpoint, nothing counts before its manifest is
there.
"""

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bamboo.checkpoint.final import describe, metadata_of, stage_file
from bamboo.checkpoint.manifest import HashAt, Manifest, Shard, hash_at, layer_of, shard_name
from bamboo.checkpoint.shards import commit_or_replace, no_scratch, put_constant, shard_of
from bamboo.checkpoint.tensor_file import copy_some
from bamboo.errors import InputError, StorageUnavailable
from bamboo.ids import RunId
from bamboo.named_files import open_named
from bamboo.new_files import whole_file
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
    manifest = Manifest(
        run=run,
        semantic_hash=hash_at(semantic_hash, step),
        step=step,
        generation=generation,
        created_at_s=now_s,
        shards=tuple(
            shard_of(shard_name(step=step, generation=generation, stage=stage), path, described)
            for stage, (path, described) in enumerate(found)
        ),
    )
    if odd_layers := manifest.odd_layers(layers):
        raise StorageUnavailable(f"the final state after step {step} {odd_layers}")
    shards: list[Shard] = []
    for shard, (path, described) in zip(manifest.shards, found, strict=True):
        shards += _stored(store, shard, path, described)
    commit_or_replace(store, replace(manifest, shards=tuple(shards)), layers=layers)
    return step


def _stored(
    store: ObjectStore, whole: Shard, path: Path, described: Mapping[str, Any]
) -> Iterator[Shard]:
    """Store a stage's final file; yields the shards that hold it."""
    constant: dict[int, list[str]] = {}
    for name in described["constant"]:
        constant.setdefault(layer_of(name), []).append(name)
    if not constant:
        store.put_file(whole.name, path)
        yield whole
        return
    changing = described["tensors"].keys() - set(described["constant"])
    with _part(path, described, changing, step=described["step"]) as (part, own):
        store.put_file(whole.name, part)
        yield shard_of(whole.name, part, own)
    for layer in sorted(constant):
        with _part(path, described, constant[layer], step=0) as (part, own):
            yield put_constant(store, part, own)


@contextmanager
def _part(
    path: Path, described: Mapping[str, Any], names: Collection[str], *, step: int
) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """A file of these tensors of a final file, and its description; one at a time because a stage
    may be large. Raises InputError when the final file is no longer what was described,
    StorageFull."""
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bamboo-")))
            with open_named(path, follow=False) as whole, whole_file(folder / "part") as file:
                copy_some(whole, names, file, metadata=metadata_of(step))
        except OSError as error:
            raise no_scratch(Path(tempfile.gettempdir()), error) from error
        except ValueError as error:
            raise InputError(f"{path}: {error}; take the files of one run") from error
        own = describe(folder / "part")
        if own["tensors"] != {name: described["tensors"][name] for name in names}:
            raise InputError(f"{path} was changed while it was read; take the files of one run")
        yield folder / "part", own
