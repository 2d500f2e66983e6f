"""The manifest reads what it wrote and nothing else."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.checkpoint.manifest import (
    Manifest,
    Shard,
    constant_name,
    shard_name,
    shards_from_json,
    step_of,
)


def manifest(step: int = 100, generation: int = 3, stages: int = 2) -> Manifest:
    return Manifest(
        run="r",
        semantic_hash="ab",
        step=step,
        generation=generation,
        created_at_s=5.5,
        shards=tuple(
            Shard(
                name=shard_name(step=step, generation=generation, stage=stage),
                bytes=10,
                sha256="cd",
                tensors=(f"param/{stage}.w",),
            )
            for stage in range(stages)
        ),
    )


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 5))
def test_what_is_written_is_read(step: int, generation: int, stages: int) -> None:
    made = manifest(step, generation, stages)
    assert Manifest.from_json(made.to_json()) == made
    assert step_of(made.name) == step
    assert all(step_of(shard.name) == step for shard in made.shards)


ODD: list[tuple[str, Any]] = [
    ("schema_version", 2),
    ("run", 5),
    ("step", -1),
    ("step", True),
    ("step", 99),
    ("generation", 4),
    ("created_at_s", "x"),
    ("created_at_s", float("nan")),
    ("created_at_s", 10**400),
    ("shards", []),
    ("shards", None),
    ("shards", [{"name": "a"}]),
]


@pytest.mark.parametrize(("key", "value"), ODD)
def test_an_odd_value_is_refused(key: str, value: Any) -> None:
    raw = json.loads(manifest().to_json()) | {key: value}
    with pytest.raises(ValueError, match=r"\S"):
        Manifest.from_json(json.dumps(raw))


def test_one_shard_named_many_times_is_refused() -> None:
    """It was read as often, 1024 times over."""
    one = replace(manifest().shards[0], tensors=())
    with pytest.raises(ValueError, match="it names one shard twice"):
        Manifest.from_json(replace(manifest(), shards=(one,) * 1000).to_json())


INSIDE = "step-00000100/gen-000003/"


@pytest.mark.parametrize(
    "name",
    [
        "../../../etc/passwd",
        "/etc/passwd",
        f"{INSIDE}../../../x",
        f"{INSIDE}/etc/passwd",
        f"{INSIDE}a/stage-00.safetensors",
        f"{INSIDE}./stage-00.safetensors",
        f"{INSIDE}stage-00.safetensors\0",
        f"{INSIDE}stage-00.safetensors\n",
        f"{INSIDE}stage-00.safetensors/",
        f"{INSIDE}",
        f"{INSIDE}manifest.json",
        f"{INSIDE}stage-{'0' * 300}.safetensors",
        f"{INSIDE}stage-٠٠.safetensors",
        "step-00000100/gen-000004/stage-00.safetensors",
        "",
    ],
)
def test_a_shard_outside_its_folder_is_refused(name: str) -> None:
    raw = json.loads(manifest().to_json())
    raw["shards"][0]["name"] = name
    with pytest.raises(ValueError, match="is not of its step and generation"):
        Manifest.from_json(json.dumps(raw))


def test_more_shards_than_stages_could_be_are_refused() -> None:
    with pytest.raises(ValueError, match="names 1025 shards"):
        Manifest.from_json(manifest(stages=1025).to_json())


@pytest.mark.parametrize("text", ["[" * 5000, "{}", "[]", '{"name": "x", "bytes": -1}'])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        shards_from_json(text)


@pytest.mark.parametrize("key", json.loads(manifest().to_json()))
def test_a_missing_field_is_refused(key: str) -> None:
    raw = json.loads(manifest().to_json())
    del raw[key]
    with pytest.raises(ValueError, match=r"\S"):
        Manifest.from_json(json.dumps(raw))


@pytest.mark.parametrize(
    ("name", "sha256"),
    [
        ("constant/" + "ab" * 32 + ".safetensors", "cd" * 32),
        ("constant/../x.safetensors", "../x"),
        ("", ""),
        ("step-00000100/gen-000003/" + "ab" * 32 + ".safetensors", "ab" * 32),
    ],
)
def test_what_is_constant_has_its_digest_for_a_name(name: str, sha256: str) -> None:
    whole = Shard(name="", bytes=1, sha256="ab" * 32, tensors=("param/0.frozen",))
    whole = replace(whole, name=constant_name(whole.sha256))
    made = replace(manifest(), shards=(*manifest().shards, whole))
    assert Manifest.from_json(made.to_json()) == made
    odd = replace(made, shards=(*manifest().shards, replace(whole, name=name, sha256=sha256)))
    with pytest.raises(ValueError, match="is not of its step and generation"):
        Manifest.from_json(odd.to_json())


def test_one_tensor_in_two_shards_is_refused() -> None:
    text = manifest().to_json().replace("param/1.w", "param/0.w")
    with pytest.raises(ValueError, match="two shards hold one tensor"):
        Manifest.from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "5", "{", "null", "[" * 5000, "9" * 5000])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Manifest.from_json(text)


@pytest.mark.parametrize("name", ["a", "step-", "step-/a", "step-1x/a", "other/a", "step-1"])
def test_other_names_belong_to_no_checkpoint(name: str) -> None:
    assert step_of(name) is None
