"""Standard streams that are closed, full, or read by nobody: a command works, or says one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import echo

pytestmark = pytest.mark.timeout(150)

FULL = "error: standard output cannot be written: No space left on device; make room there, or "
CLOSED = (">&-", "2>&-", "<&-", ">&- 2>&- <&-", "2>/dev/full", "2>&- >/dev/null")


def said(folder: Path, words: str, redirected: str) -> "subprocess.CompletedProcess[str]":
    """What a shell has of a command whose streams it redirected."""
    return subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m cli.main {words} {redirected}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.getcwd(), "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("redirected", CLOSED)
@pytest.mark.parametrize("words", ["schedule", ""])
def test_a_command_works_whatever_is_closed(tmp_path: Path, words: str, redirected: str) -> None:
    done = said(tmp_path, words, redirected)
    assert (done.returncode, done.stderr) == (0 if words else 2, "")
    assert (">&-" in redirected.split() or ">/dev/null" in redirected) == (not done.stdout)
    assert not list(tmp_path.iterdir()), "no traceback is left"


@pytest.mark.parametrize("words", ["--help", "list --json", "schedule"])
def test_what_was_asked_for_and_cannot_be_written_is_one_line(tmp_path: Path, words: str) -> None:
    done = said(tmp_path, words, ">/dev/full")
    assert (done.returncode, done.stderr) == (2, f"{FULL}send it elsewhere\n")
    assert not list(tmp_path.iterdir())


def test_an_error_that_nobody_can_be_told_has_its_exit_code_all_the_same(tmp_path: Path) -> None:
    for redirected in (">/dev/full 2>/dev/full", "2>&-", "2>&1 | true"):
        done = said(tmp_path, "launch none.toml", redirected)
        assert done.returncode == (0 if "|" in redirected else 2)
        assert not list(tmp_path.iterdir())


def test_a_full_disk_elsewhere_is_not_taken_for_that_of_the_output() -> None:
    assert echo.refused_by_output(OSError(28, "No space left on device")) is None


def test_what_is_opened_next_does_not_get_what_is_printed(tmp_path: Path) -> None:
    """A closed number is the first to be given away."""
    code = "from cli.echo import open_closed; open_closed(); import os; "
    code += "print(os.open(os.devnull, os.O_RDONLY), file=open('which', 'w')); print('lost')"
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "{sys.executable}" -c "$0" <&- >&- 2>&-', code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert int((tmp_path / "which").read_text()) > 2
