"""Whatever a person's name for a file leads to: it is said for what it is, and nothing hangs."""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bamboo import named_files
from bamboo.config.account import account_defaults
from bamboo.config.catalogue import read_catalogue
from bamboo.config.load import load_job
from bamboo.errors import InputError
from bamboo.named_files import open_named, read_bounded, what_is_wrong
from bamboo.runs.run_folder import read_document, read_text
from bamboo.runtime.check import verify, verify_samples
from bamboo.sim.market.prices import read_prices
from bamboo.sim.market.trace import read_trace
from bamboo.sites.account.stack import read_outputs
from bamboo.study import profiling
from bamboo.study.strategies import read_strategy
from bamboo.telemetry.records import Tail
from cli.new_file import refuse_to_overwrite
from testbed.swarm.__main__ import play_file
from tests.jobs import tiny_job

pytestmark = pytest.mark.timeout(30)

SAID = {
    "pipe": "is a pipe (FIFO), no file",
    "socket": "is a socket, no file",
    "device": "is a device, no file",
    "loop": "is a link that leads to itself",
    "broken": "is a link to nowhere, which is not there",
}


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of what is no file; nobody writes to the pipe."""
    monkeypatch.setattr(named_files, "PIPE_S", 0.05)
    monkeypatch.chdir(tmp_path)  # a socket's name is short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    for link, leads_to in (("device", "/dev/zero"), ("loop", "loop"), ("broken", "nowhere")):
        Path(link).symlink_to(leads_to)
    return tmp_path


@pytest.mark.parametrize(("name", "said"), SAID.items())
def test_it_is_named_for_what_it_is(things: Path, name: str, said: str) -> None:
    path = things / name
    assert what_is_wrong(path) == f"{path} {said}"
    assert what_is_wrong(path, folder=True).startswith(f"{path} {said}")


def test_a_file_is_good_and_a_folder_only_where_one_may_be(things: Path) -> None:
    (things / "file").write_text("text")
    assert what_is_wrong(things / "file") == what_is_wrong(things, folder=True) == ""
    assert what_is_wrong(things) == f"{things} is a folder, no file"
    for name in ("none", "x" * 400, "\0", "file/below"):
        assert what_is_wrong(name) == f"there is no file {name}"


def test_what_may_not_be_read_is_said(things: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (things / "file").write_text("text")
    # Nothing is forbidden to root, so the system's refusal is played.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert what_is_wrong(things / "file").endswith("file is a file we may not read")
    assert what_is_wrong(things, folder=True).endswith("is a folder we may not read")


READERS: list[Callable[[Path], object]] = [
    load_job,
    read_catalogue,
    read_trace,
    read_prices,
    read_strategy,
    play_file,
    lambda path: read_outputs(str(path)),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", ["pipe", "socket", "device", "loop"])
def test_every_reader_refuses_it_in_one_line_at_once(
    things: Path, read: Callable[[Path], object], name: str
) -> None:
    with pytest.raises(InputError, match=name) as caught:
        read(things / name)
    words = {"pipe": "is a pipe (FIFO) that nobody wrote", "loop": "symbolic links"}
    assert words.get(name, SAID[name]) in str(caught.value)
    assert "\n" not in str(caught.value)


OF_A_RUN: list[Callable[[Path], object]] = [
    read_document,
    read_text,
    verify.read_text,
    verify_samples._read,
    lambda path: Tail(path).lines(),
]


@pytest.mark.parametrize("read", OF_A_RUN)
@pytest.mark.parametrize("name", ["pipe", "socket", "device", "loop"])
def test_so_does_every_reader_of_a_runs_files_which_others_may_have_laid(
    things: Path, read: Callable[[Path], object], name: str
) -> None:
    with pytest.raises(InputError, match=name) as caught:
        read(things / name)
    words = {"device": "a device", "pipe": "a pipe (FIFO)", "loop": "symbolic links"}
    assert words.get(name, "a socket") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_document_has_a_length_that_none_has(things: Path) -> None:
    with (things / "long.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match=r"long\.json.*longer than any"):
        read_document(things / "long.json")


def test_what_lies_where_a_profile_is_kept_is_not_waited_for(things: Path) -> None:
    notes: list[str] = []
    assert profiling._kept(things / "pipe", limit_s=1.0, notes=notes) is None
    assert "is a pipe (FIFO)" in notes[0]


def test_so_does_that_of_the_account_file(things: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAMBOO_CONFIG", str(things / "pipe"))
    with pytest.raises(InputError, match=r"pipe: it is a pipe \(FIFO\) that nobody wrote"):
        account_defaults()


@pytest.mark.parametrize("name", ["pipe", "socket", "device"])
def test_nothing_of_the_kind_is_written_over(things: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"is no file that could be written|is a link to /dev"):
        refuse_to_overwrite(things / name, force=True)


@pytest.mark.parametrize("name", SAID)
def test_a_job_names_neither_text_nor_model_of_the_kind(things: Path, name: str) -> None:
    job = tiny_job(things)
    with pytest.raises(InputError, match=r"data\.path = ") as caught:
        load_job(job.file, [f"data.path={name}"])
    assert SAID[name] in str(caught.value)
    (things / name).rename(things / f"{name}.py")
    with pytest.raises(InputError, match=r"model\.model = ") as caught:
        load_job(job.file, [f"model.model={name}.py:build"])
    assert "loop.py" in str(caught.value) or SAID[name] in str(caught.value)


def test_a_file_below_the_bound_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("äöü")
    assert read_bounded(path, most=4) == "äöü"
    with pytest.raises(ValueError, match="longer than any, 3 characters"):
        read_bounded(path, most=3)


def test_a_pipe_that_somebody_writes_to_is_read_to_its_end(
    things: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the shell makes one of `<(command)`."""
    monkeypatch.setattr(named_files, "PIPE_S", 10.0)
    writer = subprocess.Popen(["/bin/sh", "-c", "printf 'grün\\r\\n' >pipe"])
    assert read_bounded(things / "pipe") == "grün\n"
    assert writer.wait(timeout=10) == 0


def test_one_without_an_end_is_given_up(things: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_files, "PIPE_S", 10.0)
    writer = subprocess.Popen(["/bin/sh", "-c", "yes >pipe 2>/dev/null"])
    with pytest.raises(ValueError, match="longer than any, 1,000 characters"):
        read_bounded(things / "pipe", most=1000)
    writer.wait(timeout=10)  # nobody reads any more


def test_what_was_exchanged_for_a_pipe_in_between_is_not_waited_for(
    things: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (things / "file").write_text("text")
    before = os.stat("file")
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda path, **_: before)
        with pytest.raises(OSError, match="is a pipe"):
            open_named(Path("pipe"))
