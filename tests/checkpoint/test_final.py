"""Final files: written whole, hashed alike with and without torch, damage named."""

import hashlib
import json
import resource
from pathlib import Path

import pytest
import torch

from bamboo.checkpoint.final import (
    MANIFEST,
    read_final,
    stage_file,
    tensor_sha256,
    write_manifest,
    write_stage,
)
from bamboo.errors import InputError, StorageUnavailable


def _tensors(stage: int) -> dict[str, torch.Tensor]:
    return {
        f"param/{stage}.weight": torch.arange(6.0).view(2, 3).t() + stage,
        f"exp_avg/{stage}.weight": torch.zeros(3, 2),
        f"exp_avg_sq/{stage}.none": torch.empty(0),
    }


def _write(folder: Path, step: int = 7) -> None:
    for stage in range(2):
        write_stage(folder, stage, _tensors(stage), step)
    write_manifest(folder, stages=2, step=step)


def test_round_trip(tmp_path: Path) -> None:
    folder = tmp_path / "final"
    _write(folder)
    final = read_final(folder)
    assert final.step == 7
    assert final.damaged == ()
    for stage in range(2):
        for name, tensor in _tensors(stage).items():
            raw = tensor.contiguous().numpy().tobytes()
            assert final.tensors[name] == hashlib.sha256(raw).hexdigest() == tensor_sha256(tensor)
    assert len(final.tensors) == 6
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    assert manifest["tensors"] == final.tensors
    assert manifest["schema_version"] == 1
    names = {stage_file(0), stage_file(1), MANIFEST}
    assert {p.name for p in folder.iterdir()} == names
    for name, sha256 in manifest["files"].items():
        assert sha256 == hashlib.sha256((folder / name).read_bytes()).hexdigest()


def test_writing_twice_gives_the_same_file(tmp_path: Path) -> None:
    one = write_stage(tmp_path, 0, _tensors(0), 7)
    assert write_stage(tmp_path, 0, dict(reversed(_tensors(0).items())), 7) == one


def test_a_flipped_bit_is_seen(tmp_path: Path) -> None:
    _write(tmp_path)
    before = read_final(tmp_path).tensors
    path = tmp_path / stage_file(1)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    after = read_final(tmp_path)
    assert after.damaged == (stage_file(1),)
    assert [n for n in before if before[n] != after.tensors[n]] == ["param/1.weight"]


def test_stages_of_different_steps_make_no_manifest(tmp_path: Path) -> None:
    write_stage(tmp_path, 0, _tensors(0), 7)
    write_stage(tmp_path, 1, _tensors(1), 6)
    with pytest.raises(InputError, match=r"stage-01.safetensors: is of step 6, not 7"):
        write_manifest(tmp_path, stages=2, step=7)
    assert not (tmp_path / MANIFEST).exists()


def test_a_missing_stage_makes_no_manifest(tmp_path: Path) -> None:
    write_stage(tmp_path, 0, _tensors(0), 7)
    with pytest.raises(InputError, match=r"stage-01.safetensors: No such file"):
        write_manifest(tmp_path, stages=2, step=7)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}"])
def test_what_is_no_final_file_is_refused(tmp_path: Path, content: bytes) -> None:
    _write(tmp_path)
    (tmp_path / stage_file(0)).write_bytes(content)
    with pytest.raises(InputError, match=r"stage-00.safetensors: is no final state"):
        read_final(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("{", "is not JSON"), ('{"schema_version": 2}', "another schema")],
)
def test_a_manifest_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str | None, message: str
) -> None:
    if text is not None:
        (tmp_path / MANIFEST).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_final(tmp_path)


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    """The limit of a file's size stands for the disk's end; Python ignores its signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(StorageUnavailable, match=r"stage-01.*make room"):
            write_stage(tmp_path, 1, _tensors(1), 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
    assert write_stage(tmp_path, 1, _tensors(1), 4)["step"] == 4


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"files": None, "step": 7},
        {"files": [], "step": 7},
        {"files": {}, "step": None},
        {"files": {}, "step": -1},
        {"files": {}, "step": True},
    ],
)
def test_a_manifest_that_lacks_something_is_named(tmp_path: Path, body: dict[str, object]) -> None:
    (tmp_path / MANIFEST).write_text(json.dumps({"schema_version": 1, **body}))
    with pytest.raises(InputError, match=r"manifest\.json: lacks its files or its step"):
        read_final(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/passwd",
        "a/stage-00.safetensors",
        "stage-00.safetensors\0",
        "",
        ".",
    ],
)
def test_a_file_outside_the_folder_is_never_opened(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "final"
    _write(folder)
    (folder / stage_file(0)).rename(tmp_path / "x.safetensors")
    body = {"schema_version": 1, "step": 7, "files": {name: "ab"}}
    (folder / MANIFEST).write_text(json.dumps(body))
    with pytest.raises(InputError, match="is no file of a stage"):
        read_final(folder)


@pytest.mark.parametrize(
    "header",
    [
        "[" * 5000,
        "[]",
        '{"__metadata__": []}',
        '{"__metadata__": {"bamboo": "[]"}}',
        '{"__metadata__": {"bamboo": "{\\"step\\": 1e999}"}}',
        '{"__metadata__": {"bamboo": "{\\"step\\": 1}"}, "x": []}',
        '{"__metadata__": {"bamboo": "{\\"step\\": 1}"}, "x": {"data_offsets": ["a", 1]}}',
    ],
)
def test_a_damaged_header_is_named(tmp_path: Path, header: str) -> None:
    _write(tmp_path)
    data = len(header).to_bytes(8, "little") + header.encode()
    (tmp_path / stage_file(0)).write_bytes(data)
    with pytest.raises(InputError, match=r"stage-00\.safetensors: is no final state"):
        read_final(tmp_path)
