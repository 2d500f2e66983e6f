"""An address of checkpoints: what it opens, and what is refused before a run is started."""

import os
from pathlib import Path

import pytest

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.open import check_directory, checkpoint_store
from bamboo.errors import InputError
from bamboo.ids import run_id
from bamboo.ports import ObjectStore

pytestmark = pytest.mark.timeout(30)
RUN = run_id("r")


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_a_run_has_its_own_place_below_the_address(tmp_path: Path, slashes: str) -> None:
    store = checkpoint_store(f"{tmp_path}{slashes}", run=RUN, run_dir=None)
    assert store.put_new("a", b"x")
    assert (tmp_path / "r" / "a").read_bytes() == b"x"


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_a_bucket(slashes: str) -> None:
    asked: list[str] = []

    def bucket(url: str) -> ObjectStore:
        asked.append(url)
        return DirectoryStore(Path("unused"))

    checkpoint_store(f"s3://bucket/prefix{slashes}", run=RUN, run_dir=None, bucket=bucket)
    assert asked == ["s3://bucket/prefix/r"]


@pytest.mark.parametrize("url", ["s3://", "s3:///", "http://x", "file:///x"])
def test_an_address_that_nobody_can_open_makes_no_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="give a directory or s3://bucket/prefix"):
        checkpoint_store(url, run=RUN, run_dir=None, bucket=lambda _: DirectoryStore(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_directory_that_can_be_made_is_not_made_yet(tmp_path: Path) -> None:
    for url in ("", "s3://bucket", str(tmp_path), str(tmp_path / "deep" / "down")):
        check_directory(url)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for url in ("/dev/null", str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        with pytest.raises(InputError, match=r"checkpoint\.url = .*is no directory; name another"):
            check_directory(url)
    with pytest.raises(InputError, match="File name too long"):
        check_directory(str(tmp_path / ("x" * 5000)))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_directory_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o555)
    with pytest.raises(InputError, match="shut cannot be written; name another, or allow it"):
        check_directory(str(tmp_path / "shut" / "below"))
