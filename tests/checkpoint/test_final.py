"""Final files: written whole, hashed alike with and without torch, damage named."""

import hashlib
import json
import os
import re
import resource
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bamboo.checkpoint import tensor_file
from bamboo.checkpoint.final import (
    MANIFEST,
    describe,
    read_final,
    stage_file,
    tensor_sha256,
    write_manifest,
    write_stage,
)
from bamboo.checkpoint.tensor_file import LONGEST_HEADER, arrays
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


def test_a_folder_behind_a_link_is_not_read(tmp_path: Path) -> None:
    _write(tmp_path / "elsewhere")
    (tmp_path / "final").symlink_to("elsewhere")
    with pytest.raises(InputError, match="final: is a link; name the folder that it leads to"):
        read_final(tmp_path / "final")


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


def _of_tensors(folder: Path, table: dict[str, Any] | str, data: bytes) -> Path:
    """A file of a stage whose header says this of its data."""
    folder.mkdir(exist_ok=True)
    about = {"__metadata__": {"bamboo": json.dumps({"schema_version": 1, "step": 7})}}
    header = table if isinstance(table, str) else json.dumps(about | table)
    path = folder / stage_file(0)
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + data)
    return path


def _at(begin: int, end: int, *, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"a": _at(0, 8), "b": _at(4, 12)}, "'b' overlaps the tensor before it"),
        ({"a": _at(0, 8), "b": _at(0, 8)}, "'b' overlaps the tensor before it"),
        ({"a": _at(0, 8), "b": _at(12, 20)}, "'b' leaves a hole before it"),
        ({"a": _at(8, 16)}, "'a' leaves a hole before it"),
        ({"a": _at(0, 8)}, "its tensors have 8 bytes and its data 16"),
        ({"a": _at(0, 2**64, shape=[2**62])}, f"its tensors have {2**64} bytes and its data 16"),
        ({"a": _at(-8, 0)}, "'a' has no place in a file"),
        ({"a": _at(8, 0)}, "'a' has no place in a file"),
        ({"a": _at(0, 16, shape=[3])}, "'a' has another size than its shape"),
        ({"a": _at(0, 16, shape=[-2, -2])}, "'a' has another size than its shape"),
        ({"a": _at(0, 16, shape=[2**70] * 1000)}, "'a' has another size than its shape"),
        ({"a": _at(0, 16, shape=[4.0])}, "'a' has another size than its shape"),
        ({"a": _at(0, 16, dtype="F33", shape=[4])}, "'a' lacks its kind, shape or place"),
        ({"a": _at(0, 16, dtype=[], shape=[4])}, "'a' lacks its kind, shape or place"),
        ({"x" * 5000: _at(0, 16, shape=[4])}, "a name has 5000 characters, more than 4096"),
        ('{"a": {}, "a": {}}', "its header names one thing twice"),
        (" " * (LONGEST_HEADER + 1), f"has {LONGEST_HEADER + 1} bytes, more than {LONGEST_HEADER}"),
    ],
)
def test_an_absurd_table_of_tensors_is_refused(
    tmp_path: Path, table: dict[str, Any] | str, says: str
) -> None:
    path = _of_tensors(tmp_path, table, bytes(16))
    with pytest.raises(InputError, match=re.escape(says)):
        describe(path)


def test_a_file_is_read_once_whatever_its_table_says(tmp_path: Path) -> None:
    """Each of 20,000 tensors claims the whole data: together they are 160 GB to hash."""
    size = 1 << 23
    table = {f"t{n}": _at(0, size, shape=[size // 4]) for n in range(20_000)}
    path = _of_tensors(tmp_path, table, bytes(size))
    before_s = time.process_time()
    with pytest.raises(InputError, match="overlaps the tensor before it"):
        describe(path)
    assert time.process_time() - before_s < 10


def test_a_file_that_another_writes_to_meanwhile_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is mapped into memory and then cut off ends its process by a signal."""
    path = _of_tensors(tmp_path, {"a": _at(0, 1 << 23, shape=[1 << 21])}, bytes(1 << 23))
    real = tensor_file._ends

    def cut(header: Any, data_bytes: int) -> dict[str, int]:
        os.truncate(path, 1 << 20)
        return real(header, data_bytes)

    monkeypatch.setattr(tensor_file, "_ends", cut)
    with pytest.raises(InputError, match="it became shorter while it was read"):
        describe(path)


@pytest.mark.parametrize("name", [stage_file(1), MANIFEST])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_of_its_own_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    """A link leads to what somebody else wrote; a pipe waits for who writes to it."""
    folder = tmp_path / "final"
    _write(folder)
    (folder / name).rename(tmp_path / name)
    if kind == "link":
        (folder / name).symlink_to(tmp_path / name)
    else:
        os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name}: it is a {kind}"):
        read_final(folder)


def test_a_tensor_that_two_files_hold_is_refused(tmp_path: Path) -> None:
    _write(tmp_path)
    write_stage(tmp_path, 1, _tensors(0), 7)
    with pytest.raises(InputError, match=r"two of its files hold 'exp_avg/0\.weight'"):
        read_final(tmp_path)


def test_arrays_have_bfloat16_as_float32(tmp_path: Path) -> None:
    tensors = {
        "param/0.frozen": torch.tensor([[1.5, -2.0], [float("inf"), 3e-39]]).bfloat16(),
        "param/0.weight": torch.rand(3, 2),
        "buffer/0.steps": torch.tensor(7),
        "buffer/0.kept": torch.tensor([True, False]),
    }
    write_stage(tmp_path, 0, tensors, 5)
    found = arrays(tmp_path / "stage-00.safetensors")
    assert found.keys() == tensors.keys()
    assert found["buffer/0.steps"].dtype == "int64"
    for name, tensor in tensors.items():
        wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        assert torch.equal(torch.from_numpy(found[name]), wide), name
