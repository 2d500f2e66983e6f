"""Tokens that runs share: uploaded once, never half, read where they lie, removed with no run."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.shared_data import (
    WHOLE,
    SharedTokens,
    far_tokens,
    fetch_tokens,
    is_there,
    kept_in,
    keys_of,
    place_name,
    put_place,
    remove,
    shared_tokens,
    upload,
)
from bamboo.data.tokens import Documents, TokenFile, Windows
from bamboo.errors import DamagedData, InputError, StorageUnavailable
from bamboo.far_tokens import TOKENS, Place
from bamboo.token_files import CHUNK_BYTES, DOCUMENTS, FILES, beside
from testbed.waiting import wait_until
from tests.token_folder import prepared, some_ids, write_tokens

BUCKET = "s3://bucket"


class Killed(BaseException):
    """As a SIGKILL: nothing of the process runs after it."""


class Objects(DirectoryStore):
    """A bucket that notes what is put there, and that a launcher dies at."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.put: list[str] = []
        self.dies_after = -1

    def put_file(self, name: str, path: Path) -> None:
        if len(self.put) == self.dies_after:
            raise Killed
        self.put.append(name)
        super().put_file(name, path)

    def put_new(self, name: str, data: bytes) -> bool:
        if len(self.put) == self.dies_after:
            raise Killed
        self.put.append(name)
        return super().put_new(name, data)

    def opened(self, url: str) -> DirectoryStore:
        return DirectoryStore(self._root / url.removeprefix(f"{BUCKET}/"))


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects(tmp_path / "bucket")


@pytest.fixture
def begins(objects: Objects) -> DirectoryStore:
    return objects.opened(f"{BUCKET}/starts/r1")


def tokens_at(path: Path, count: int = 1500) -> SharedTokens:
    prepared(write_tokens(path, some_ids(count), documents=[0, 10, 1000, count]))
    return shared_tokens(path)


def place_of(tokens: SharedTokens) -> Place:
    url = f"{BUCKET}/{tokens.folder}"
    return Place(url=url, name=TOKENS, sizes=tokens.sizes, digest=tokens.digest)


def test_what_a_killed_launcher_left_is_never_taken_for_whole(
    objects: Objects, tmp_path: Path
) -> None:
    tokens = tokens_at(tmp_path / "x.ids", 2000)
    for dies_after in range(5):
        objects.put, objects.dies_after = [], dies_after
        with pytest.raises(Killed):
            upload(objects, tokens)
        assert not is_there(objects, tokens)
    objects.put, objects.dies_after = [], -1
    upload(objects, tokens)
    assert [name.rpartition("/")[2] for name in objects.put] == [
        *(f"{TOKENS}{ending}" for ending in FILES),
        WHOLE,
    ]
    assert is_there(objects, tokens)
    for name in tuple(objects.put):
        kept = objects.get(name) or b""
        objects.delete(name)
        assert not is_there(objects, tokens), name
        objects.put_new(name, kept)
    assert is_there(objects, tokens)
    (tmp_path / "short").write_bytes(b"0" * 10)
    objects.put_file(f"{tokens.folder}/{TOKENS}", tmp_path / "short")
    assert not is_there(objects, tokens), "an object of another size"


def test_a_file_that_is_not_what_was_prepared_is_not_shared(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokens_at(tmp_path / "x.ids")
    for ending, chunk in ((DOCUMENTS, r"x\.ids\.documents .*chunk 0"), ("", r"x\.ids .*chunk 0")):
        path = beside(tokens.path, ending)
        path.write_bytes(b"\0" * path.stat().st_size)
        with pytest.raises(InputError, match=rf"{chunk} has another hash; put it back"):
            upload(objects, tokens)
    assert not objects.put
    again = tokens_at(tmp_path / "x.ids")
    put_file = Objects.put_file

    def touched(store: Objects, name: str, path: Path) -> None:
        put_file(store, name, path)
        os.utime(again.path, (0, 0))

    monkeypatch.setattr(Objects, "put_file", touched)
    with pytest.raises(InputError, match="has changed while it was uploaded"):
        upload(objects, again)
    assert not is_there(objects, again)


def test_a_token_file_comes_back_whole(
    objects: Objects, begins: DirectoryStore, tmp_path: Path
) -> None:
    tokens = tokens_at(tmp_path / "x.ids", 2000)
    assert fetch_tokens(begins, tokens.digest, tmp_path / "none", bucket=objects.opened) is None
    upload(objects, tokens)
    put_place(begins, "d" * 64, place_of(tokens))
    brought = fetch_tokens(begins, "d" * 64, tmp_path / "here", bucket=objects.opened)
    assert brought is not None
    for ending in FILES:
        assert beside(brought, ending).read_bytes() == beside(tokens.path, ending).read_bytes()


def test_tokens_are_read_where_they_lie_and_no_more_than_that(
    objects: Objects, begins: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokens_at(tmp_path / "x.ids", 3 << 19)
    upload(objects, tokens)
    digest = tokens.digest
    assert far_tokens(begins, digest, tmp_path / "none", bucket=objects.opened) is None
    put_place(begins, digest, place_of(tokens))
    asked: list[tuple[str, int]] = []
    part = DirectoryStore.part

    def noted(store: DirectoryStore, name: str, begin: int, end: int) -> bytes | None:
        asked.append((name, begin // CHUNK_BYTES))
        return part(store, name, begin, end)

    monkeypatch.setattr(DirectoryStore, "part", noted)
    brought = far_tokens(begins, digest, tmp_path / "here", bucket=objects.opened)
    assert brought is not None
    far, near = Windows(TokenFile(brought), context=16), Windows(TokenFile(tokens.path), context=16)
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


def test_what_is_damaged_or_gone_is_said_with_what_to_do(
    objects: Objects, begins: DirectoryStore, tmp_path: Path
) -> None:
    tokens = tokens_at(tmp_path / "x.ids")
    upload(objects, tokens)
    put_place(begins, tokens.digest, place_of(tokens))
    name = f"{tokens.folder}/{TOKENS}"
    (tmp_path / "other").write_bytes(tokens.path.read_bytes()[:-2] + b"\xff\xff")
    objects.put_file(name, tmp_path / "other")
    brought = far_tokens(begins, tokens.digest, tmp_path / "here", bucket=objects.opened)
    assert brought is not None
    remedy = rf"; `bamboo rm --data {tokens.digest[:12]}`, then launch again"
    with pytest.raises(DamagedData, match=rf"^{BUCKET}/{name} is damaged: chunk 0 of 1.*{remedy}"):
        TokenFile(brought).ids(0, 10)
    objects.delete(name)
    with pytest.raises(DamagedData, match=rf"/{name} is not in the bucket any more{remedy}"):
        TokenFile(brought).ids(0, 10)
    (tmp_path / "place").write_text("{")
    begins.put_file(place_name(tokens.digest), tmp_path / "place")
    with pytest.raises(DamagedData, match=r"place.json of the run is damaged.*launch the job"):
        far_tokens(begins, tokens.digest, tmp_path / "here", bucket=objects.opened)


def test_shared_tokens_stay_while_a_run_reads_them(
    objects: Objects, begins: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, other = tokens_at(tmp_path / "x.ids"), tokens_at(tmp_path / "y.ids", 2000)
    for tokens in (read, other):
        upload(objects, tokens)
    put_place(begins, "d" * 64, place_of(read))
    named = objects.opened(f"{BUCKET}/starts/r2")  # whose job names them by their address
    put_place(named, "d" * 64, replace(place_of(read), digest=""))
    objects.put_file("data/README", tmp_path / "x.ids")  # somebody else's
    kept = {one.digest: one for one in kept_in(objects, starts="starts/")}
    assert {digest: one.runs for digest, one in kept.items()} == {
        read.digest: ("r1", "r2"),
        other.digest: (),
    }
    assert all(one.whole and one.size_bytes > 2000 for one in kept.values())
    with pytest.raises(InputError, match=r"stay: r1, r2 read them; `bamboo stop r1` ends that run"):
        remove(objects, kept[read.digest], starts="starts/")
    assert is_there(objects, read)

    def no_answer(store: Objects, name: str) -> None:
        if name in keys_of(other.digest):
            raise StorageUnavailable("no answer")
        DirectoryStore.delete(store, name)

    with monkeypatch.context() as patched:
        patched.setattr(Objects, "delete", no_answer)
        with pytest.raises(StorageUnavailable):
            remove(objects, kept[other.digest], starts="starts/")
    (left,) = (one for one in kept_in(objects, starts="starts/") if one.digest == other.digest)
    assert not left.whole
    assert not is_there(objects, other)
    remove(objects, left, starts="starts/")
    assert set(objects.sizes("data/")) == {
        "data/README", f"{read.folder}/{WHOLE}", *keys_of(read.digest)
    }  # fmt: skip
