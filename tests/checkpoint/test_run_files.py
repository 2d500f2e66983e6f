"""A run's files in a bucket: what comes back is what was put there, or it is refused by name."""

from pathlib import Path

import pytest
import torch

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import read_final, write_manifest
from bamboo.checkpoint.run_files import (
    data_name,
    fetch_data,
    fetch_final,
    put_data,
    put_stage,
)
from bamboo.errors import InputError

TEXT = bytearray(b"some text")
DIGEST = "b94f6f125c79e3a5ffaa826f584c10d52ada669e6762051b826b55776d05aed2"


@pytest.fixture
def objects(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "bucket")


def put(objects: DirectoryStore, step: int = 4) -> None:
    for stage in (0, 1):
        put_stage(objects, stage, {f"param/{stage}.w": torch.full((3,), float(stage))}, step)


def test_data_comes_back_by_its_digest(objects: DirectoryStore) -> None:
    put_data(objects, TEXT, DIGEST)
    assert fetch_data(objects, DIGEST) == TEXT
    assert set(objects.sizes(data_name(""))) == {f"data/{DIGEST}"}


def test_data_that_has_changed_is_not_put_there(objects: DirectoryStore) -> None:
    with pytest.raises(InputError, match="has changed since it was looked at"):
        put_data(objects, bytearray(b"other"), DIGEST)
    assert not objects.sizes("")


def test_data_that_nobody_put_there_is_none(objects: DirectoryStore) -> None:
    assert fetch_data(objects, DIGEST) is None


def test_a_final_state_comes_back_whole(objects: DirectoryStore, tmp_path: Path) -> None:
    put(objects)
    put(objects)  # a stage that changed hands is written twice
    folder = tmp_path / "final"
    fetch_final(objects, folder, stages=2)
    write_manifest(folder, stages=2, step=4)
    assert read_final(folder).step == 4
    assert {path.name for path in folder.iterdir()} == {
        *("manifest.json", "stage-00.safetensors", "stage-01.safetensors")
    }


def test_a_stage_that_is_missing_is_said(objects: DirectoryStore, tmp_path: Path) -> None:
    put(objects)
    with pytest.raises(InputError, match=r"stage-02.safetensors is not in the run's bucket"):
        fetch_final(objects, tmp_path / "final", stages=3)


def test_a_stage_that_differs_from_what_its_node_wrote_is_none(
    objects: DirectoryStore, tmp_path: Path
) -> None:
    put(objects)
    other = DirectoryStore(tmp_path / "other")
    put(other, step=5)
    assert other.fetch("final/stage-01.safetensors", tmp_path / "changed")
    objects.put_file("final/stage-01.safetensors", tmp_path / "changed")
    with pytest.raises(InputError, match=r"stage-01.safetensors was damaged on its way"):
        fetch_final(objects, tmp_path / "final", stages=2)
    assert not (tmp_path / "final" / "stage-01.safetensors").exists()


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"no json", b'{"sha256"'])
def test_what_is_no_word_on_a_stage_is_said(
    objects: DirectoryStore, tmp_path: Path, text: bytes
) -> None:
    put(objects)
    (tmp_path / "said").write_bytes(text)
    objects.put_file("final/stage-00.json", tmp_path / "said")
    with pytest.raises(InputError, match=r"final/stage-00.json .*is damaged"):
        fetch_final(objects, tmp_path / "final", stages=2)
