"""What describes a checkpoint or a final state: read as it was written, or called damaged."""

import json
from pathlib import Path

import torch
from hypothesis import given

from bamboo.checkpoint.catalogue import examine
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import describe, read_final, write_manifest, write_stage
from bamboo.checkpoint.manifest import (
    Manifest,
    Shard,
    constant_name,
    shard_name,
    shards_from_json,
    shards_to_json,
)
from bamboo.errors import InputError
from tests.fuzz.cases import Cases, fuzzed
from tests.fuzz.odd import bent_bytes, bent_json

STEP = 100


CONSTANT = Shard(
    name=constant_name("cd" * 32), bytes=7, sha256="cd" * 32, tensors=("param/1.frozen",)
)


def manifest() -> Manifest:
    shards = tuple(
        Shard(
            name=shard_name(step=STEP, generation=3, stage=stage),
            bytes=10,
            sha256="ab" * 32,
            tensors=(f"param/{stage}.w", f"exp_avg/{stage}.w"),
        )
        for stage in range(2)
    )
    return Manifest(
        run="r",
        semantic_hash="ab",
        step=STEP,
        generation=3,
        created_at_s=5.5,
        shards=(*shards, CONSTANT),
    )


@fuzzed
@given(bent_json([manifest().to_json()]))
def test_manifests(cases: Cases, text: str) -> None:
    made = cases.judge(lambda: Manifest.from_json(text), ValueError)
    if made is not None:
        assert Manifest.from_json(made.to_json()) == made
        cases.judge(lambda: made.odd_layers([0, 1]), ValueError)


@fuzzed
@given(bent_json([shards_to_json(manifest().shards)]))
def test_shards(cases: Cases, text: str) -> None:
    cases.judge(lambda: shards_from_json(text), ValueError)


@fuzzed
@given(bent_bytes([manifest().to_json().encode()]))
def test_a_stored_manifest_is_examined(tmp_path: Path, cases: Cases, data: bytes) -> None:
    """Whatever lies there: it is read or called damaged, and nothing outside is looked at."""
    place = tmp_path / "store"
    store = DirectoryStore(place)
    store.delete(manifest().name)
    store.put_new(manifest().name, data)
    found = cases.judge(lambda: examine(store, STEP, run="r", semantic_hash="ab", layers=[0, 1]))
    assert found is not None
    assert found[1], "there are no shards, so it is never whole"


def _final(folder: Path) -> Path:
    if not folder.exists():
        for stage in range(2):
            tensors = {f"param/{stage}.w": torch.arange(4.0), f"exp_avg/{stage}.w": torch.ones(2)}
            write_stage(folder, stage, tensors, STEP)
        write_manifest(folder, stages=2, step=STEP)
    return folder


@fuzzed
@given(
    bent_bytes([json.dumps({"schema_version": 1, "step": 1, "files": {}, "tensors": {}}).encode()])
)
def test_final_manifests(tmp_path: Path, cases: Cases, data: bytes) -> None:
    folder = _final(tmp_path / "final")
    (folder / "manifest.json").write_bytes(data)
    cases.judge(lambda: read_final(folder), InputError)


@fuzzed
@given(
    bent_json(
        [json.dumps({"schema_version": 1, "step": 100, "files": {"stage-00.safetensors": "ab"}})]
    )
)
def test_final_manifests_of_any_kind(tmp_path: Path, cases: Cases, text: str) -> None:
    folder = _final(tmp_path / "final")
    (folder / "manifest.json").write_text(text, encoding="utf-8", errors="replace")
    cases.judge(lambda: read_final(folder), InputError)


@fuzzed
@given(bent_bytes([b""]))
def test_tensor_files(tmp_path: Path, cases: Cases, data: bytes) -> None:
    """The header that was bent stands in front of good bytes."""
    whole = (_final(tmp_path / "final") / "stage-00.safetensors").read_bytes()
    at = int.from_bytes(data[:2], "little") % 200
    path = tmp_path / "one.safetensors"
    path.write_bytes(whole[:at] + data[2:] + whole[at + len(data[2:10]) :])
    cases.judge(lambda: describe(path), InputError)
