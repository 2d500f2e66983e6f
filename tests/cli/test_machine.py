"""What a machine lacks for a run is refused before anything is started."""

from pathlib import Path

import pytest

from bamboo.errors import InputError
from cli import checks_here, launching, machine, resuming
from cli.doctor import Result
from tests.cli.test_reading import folder_of
from tests.jobs import tiny_job

SAID = "127.0.0.1 cannot be reached"


@pytest.fixture
def no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (machine, checks_here):
        monkeypatch.setattr(module, "loopback_trouble", lambda: SAID)


def test_a_launch_without_a_loopback_interface_looks_at_nothing_else(
    no_loopback: None, tmp_path: Path
) -> None:
    tiny_job(tmp_path)
    with pytest.raises(InputError, match=SAID):
        launching.prepare(tmp_path / "job.toml", overrides=(), name="r", dry_run=False)


def test_nor_does_a_resume(no_loopback: None, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=SAID):
        resuming.prepare(folder_of(tmp_path), ())


def test_the_doctor_says_so(no_loopback: None) -> None:
    found = checks_here.loopback_finding()
    assert (found.result, found.sentence) == (Result.FAULT, SAID)


def test_the_doctor_finds_this_machine_good() -> None:
    assert checks_here.loopback_finding().result is Result.GOOD
