"""A run's files in a bucket: what comes back is what was put there, or it is refused by name."""

from pathlib import Path

import pytest
import torch

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import read_final, write_manifest
from bamboo.checkpoint.run_files import (
    data_name,
    far_tokens,
    fetch_data,
    fetch_final,
    fetch_tokens,
    put_data,
    put_stage,
    put_tokens,
)
from bamboo.data.tokens import Documents, TokenFile, Windows
from bamboo.errors import DamagedData, InputError
from bamboo.token_files import CHUNK_BYTES, FILES, beside
from testbed.waiting import wait_until
from tests.token_folder import prepared, some_ids, write_tokens

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


def test_a_token_file_comes_back_whole(objects: DirectoryStore, tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "x.ids", some_ids(1000), documents=[0, 10, 1000])
    facts = prepared(path).facts
    assert fetch_tokens(objects, facts.digest, tmp_path / "none") is None
    put_tokens(objects, path, facts.digest)
    brought = fetch_tokens(objects, facts.digest, tmp_path / "here")
    assert brought is not None
    for ending in FILES:
        assert beside(brought, ending).read_bytes() == beside(path, ending).read_bytes()
    with pytest.raises(InputError, match="has changed since it was looked at"):
        put_tokens(objects, path, "0" * 64)


def test_tokens_are_read_where_they_lie_and_no_more_than_that(
    objects: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tokens(tmp_path / "x.ids", some_ids(3 << 19), documents=[0, 10, 1000, 3 << 19])
    facts = prepared(path).facts
    put_tokens(objects, path, facts.digest)
    assert far_tokens(objects, "0" * 64, tmp_path / "none") is None
    asked: list[tuple[str, int]] = []
    part = DirectoryStore.part

    def noted(store: DirectoryStore, name: str, begin: int, end: int) -> bytes | None:
        asked.append((name.rpartition("/")[2], begin // CHUNK_BYTES))
        return part(store, name, begin, end)

    monkeypatch.setattr(DirectoryStore, "part", noted)
    brought = far_tokens(objects, facts.digest, tmp_path / "here")
    assert brought is not None
    far, near = Windows(TokenFile(brought), context=16), Windows(TokenFile(path), context=16)
    assert far.digest == near.digest
    last = near.samples - 1
    for index in (last, 0, last):
        for ours, theirs in zip(far.batch([index], []), near.batch([index], []), strict=True):
            assert torch.equal(ours[0], theirs[0])
    assert asked == [("tokens", 2), ("tokens", 0)]
    far.ahead([last // 2])
    wait_until(lambda: ("tokens", 1) in asked, what="a chunk ahead", timeout_s=20.0)
    padded = Documents(TokenFile(brought), context=16)
    assert padded.batch([0, 1], [])[0][0].shape == (2, 16)
    assert ("tokens.documents", 0) in asked


def test_a_damaged_part_of_the_tokens_in_a_bucket_is_said(
    objects: DirectoryStore, tmp_path: Path
) -> None:
    path = write_tokens(tmp_path / "x.ids", some_ids(1000))
    digest = prepared(path).facts.digest
    put_tokens(objects, path, digest)
    (tmp_path / "short").write_bytes(path.read_bytes()[:-2] + b"\xff\xff")
    objects.put_file(f"{data_name(digest)}/tokens", tmp_path / "short")
    brought = far_tokens(objects, digest, tmp_path / "here")
    assert brought is not None
    with pytest.raises(DamagedData, match=rf"^data/{digest}/tokens is damaged: chunk 0 of 1"):
        TokenFile(brought).ids(0, 10)


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
