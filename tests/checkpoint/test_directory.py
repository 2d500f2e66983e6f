"""A directory to which others may write as well: nothing that they lay there leads out of it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bamboo.checkpoint import directory
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.errors import StorageUnavailable

NAME = "step-00000010/gen-000001/stage-00.safetensors"
NOBODY = 65534


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "objects")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """What is not the store's: a folder that has in it what the store would look for."""
    folder = tmp_path / "outside"
    (folder / "gen-000001").mkdir(parents=True)
    (folder / "gen-000001" / "stage-00.safetensors").write_bytes(b"theirs")
    return folder


def test_a_link_is_no_object(store: DirectoryStore, outside: Path, tmp_path: Path) -> None:
    file = outside / "gen-000001" / "stage-00.safetensors"
    link = tmp_path / "objects" / NAME
    link.parent.mkdir(parents=True)
    link.symlink_to(file)
    assert store.get(NAME) is None
    assert not store.fetch(NAME, tmp_path / "copy")
    assert store.sizes("") == {}
    (tmp_path / "new").write_bytes(b"ours")
    store.put_file(NAME, tmp_path / "new")
    assert (store.get(NAME), file.read_bytes()) == (b"ours", b"theirs")
    link.unlink()
    link.symlink_to(file)
    store.delete(NAME)
    assert not (tmp_path / "objects" / "step-00000010").exists()
    assert file.read_bytes() == b"theirs"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_link_is_no_folder(
    store: DirectoryStore, outside: Path, tmp_path: Path, depth: int
) -> None:
    parts = NAME.split("/")
    link = (tmp_path / "objects").joinpath(*parts[:depth])
    link.parent.mkdir(parents=True)
    link.symlink_to(outside.joinpath(*parts[1:depth]))
    assert store.get(NAME) is None
    assert not store.fetch(NAME, tmp_path / "copy")
    assert store.sizes("") == store.sizes("step-00000010/") == {}
    (tmp_path / "new").write_bytes(b"ours")
    asks: list[Callable[[], object]] = [
        lambda: store.put_file(NAME, tmp_path / "new"),
        lambda: store.put_new(NAME, b"ours"),
        lambda: store.delete(NAME),
    ]
    for ask in asks:
        with pytest.raises(StorageUnavailable, match=f"{link.name} is a link, which is not follo"):
            ask()
    assert [p.name for p in outside.rglob("*")] == ["gen-000001", "stage-00.safetensors"]
    assert (outside / "gen-000001" / "stage-00.safetensors").read_bytes() == b"theirs"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("link", [False, True])
def test_a_root_that_another_user_laid_is_not_used(
    store: DirectoryStore, outside: Path, tmp_path: Path, link: bool
) -> None:
    """As anybody can in /tmp, before the first checkpoint of a run is written there."""
    root = tmp_path / "objects"
    if link:
        root.symlink_to(outside)
    else:
        root.mkdir(mode=0o777)
    os.chown(root, NOBODY, NOBODY, follow_symlinks=False)
    for ask in (lambda: store.put_new(NAME, b"ours"), lambda: store.get(NAME)):
        with pytest.raises(StorageUnavailable, match=r"it belongs to another user \(uid 65534\)"):
            ask()
    os.chown(tmp_path, NOBODY, NOBODY)
    assert store.put_new("a", b"ours"), "whoever has the folder that it lies in has it, too"


def test_a_link_of_ones_own_is_a_root(store: DirectoryStore, outside: Path, tmp_path: Path) -> None:
    (tmp_path / "objects").symlink_to(outside)
    assert store.put_new("a", b"ours")
    assert (outside / "a").read_bytes() == b"ours"


def test_only_what_a_prefix_names_is_looked_at(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of so many checkpoints was looked for among the objects of all."""
    for step in range(50):
        store.put_new(f"step-{step:08d}/gen-000001/stage-00.safetensors", b"x")
    looked, real = [], os.scandir
    monkeypatch.setattr(directory.os, "scandir", lambda at: (looked.append(at), real(at))[1])
    assert len(store.sizes("step-00000007/")) == 1
    assert len(looked) == 2
    looked.clear()
    assert len(store.sizes("step-0000000")) == 10
    assert len(looked) == 21


def test_what_lies_too_deep_is_no_object(store: DirectoryStore, tmp_path: Path) -> None:
    """Folders in folders without end took the whole stack of whoever listed them."""
    deep = tmp_path.joinpath("objects", *("d" * 30))
    deep.mkdir(parents=True)
    (deep / "x").write_bytes(b"x")
    store.put_new("a/b/c", b"x")
    assert list(store.sizes("")) == ["a/b/c"]
