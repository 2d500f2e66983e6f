"""What a machine lacks for a run is refused before anything is started."""

import os
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from bamboo.config.tree import CheckpointConfig, JobConfig
from bamboo.controller import launching, machine, resuming
from bamboo.doctor import checks_here
from bamboo.doctor.checks import Result
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.runs import disk_space
from bamboo.sites import here
from bamboo.study.planning import Planned, plan_job
from bamboo.study.played_trace import TraceAsked
from cloud.local import limits
from tests.jobs import tiny_job
from tests.runs.test_reading import folder_of
from tests.study.facts import seen

SAID = "127.0.0.1 cannot be reached"


@pytest.fixture
def no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "unreachable", lambda: SAID)


def test_a_launch_without_a_loopback_interface_looks_at_nothing_else(
    no_loopback: None, tmp_path: Path
) -> None:
    tiny_job(tmp_path)
    with pytest.raises(InputError, match=SAID):
        launching.prepare(tmp_path / "job.toml", overrides=(), name="r", dry_run=False)


@pytest.mark.parametrize("piped", ["job", "trace"])
def test_what_a_run_keeps_a_copy_of_is_a_file(tmp_path: Path, piped: str) -> None:
    """A pipe can be read once: for a plan that does, for a run it does not."""
    os.mkfifo(tmp_path / "pipe")
    tiny_job(tmp_path)
    files = {"job": tmp_path / "job.toml", "trace": tmp_path / "trace.csv"}
    files["trace"].write_text("0,add,a\n")
    text = files[piped].read_text()
    files[piped] = tmp_path / "pipe"
    asked = TraceAsked(
        path=files["trace"], time_scale=1.0, restart_s=None, max_nodes=None, hours=None
    )
    if piped == "job":  # which is read before; nobody reads the trace
        Thread(target=files[piped].write_text, args=(text,), daemon=True).start()
    with pytest.raises(InputError, match=r"pipe is a pipe \(FIFO\), no file; a run keeps a copy"):
        launching.prepare(files["job"], overrides=(), name="r", dry_run=False, trace=asked)


def test_nor_does_a_resume(no_loopback: None, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=SAID):
        resuming.prepare(folder_of(tmp_path), ())


def plan_of(job: JobConfig) -> Planned:
    return plan_job(job, seen(job), run=RunId("r"), now_s=1000.0)


def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "raised", lambda which, need: 46)


def test_limits_are_compared_before_the_job_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limited(monkeypatch)
    tiny_job(tmp_path)
    for dry_run in (False, True):
        with pytest.raises(InputError, match="open files are limited to 46 a process"):
            launching.prepare(tmp_path / "job.toml", overrides=(), name="r", dry_run=dry_run)
    with pytest.raises(InputError, match="a run of 4 nodes needs"):
        resuming.prepare(folder_of(tmp_path), ())
    found = checks_here.limits_finding(None)
    assert (found.result, "open files are limited" in found.sentence) == (Result.FAULT, True)


def test_the_nodes_of_an_account_are_not_limited_from_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limited(monkeypatch)
    job = tiny_job(tmp_path)
    machine.refuse_unfit(replace(job, cloud=replace(job.cloud, provider="ec2")), tmp_path)
    names = [check.name for check in checks_here.here_checks("", in_account=True)]
    assert "limits" not in names


def test_what_a_stage_writes_is_held_against_the_size_of_a_file_and_the_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned = plan_of(tiny_job(tmp_path, ["checkpoint.every_steps=2"]))
    machine.refuse_too_small(planned, tmp_path)
    state = planned.workload.state_bytes(range(4))
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: disk_space.ROOM_BYTES + 4 * state - 1)
    with pytest.raises(InputError, match=r"the disk of .* left, and what the run keeps there"):
        machine.refuse_too_small(planned, tmp_path)
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: disk_space.ROOM_BYTES + 4 * state)
    machine.refuse_too_small(planned, tmp_path)
    # A run that writes none by itself has one of its stop, or of an emergency.
    without = plan_of(tiny_job(tmp_path, ["checkpoint.every_steps=0"]))
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: disk_space.ROOM_BYTES + 2 * state - 1)
    with pytest.raises(InputError, match="what the run keeps there"):
        machine.refuse_too_small(without, tmp_path)
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: disk_space.ROOM_BYTES + 2 * state)
    machine.refuse_too_small(without, tmp_path)
    # A third of the state are the weights of another run that it keeps.
    begun = replace(without, job=replace(without.job, weights="0" * 64))
    with pytest.raises(InputError, match="what the run keeps there"):
        machine.refuse_too_small(begun, tmp_path)
    elsewhere = replace(without.job, checkpoint=CheckpointConfig(url="/elsewhere", every_steps=2))
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: disk_space.ROOM_BYTES + state)
    machine.refuse_too_small(replace(without, job=elsewhere), tmp_path)


def test_a_full_disk_for_temporary_files_is_said_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    monkeypatch.setattr(
        "bamboo.disk.free_bytes", lambda folder: 4096 if folder.name == "tmp" else 1 << 40
    )
    with pytest.raises(InputError, match=r"tmp is full.* or set TMPDIR to a folder"):
        machine.refuse_unfit(tiny_job(tmp_path), tmp_path)


def test_a_folder_that_cannot_be_written_is_refused_before_the_job_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Nothing is forbidden to root, so the system's refusal is played.
    monkeypatch.setattr(disk_space.os, "access", lambda path, mode: path != tmp_path)
    tiny_job(tmp_path)
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    said = f"nothing can be written into {tmp_path}: "
    with pytest.raises(InputError, match=f"{said}.*; set BAMBOO_HOME to a folder"):
        launching.prepare(tmp_path / "job.toml", overrides=(), name="r", dry_run=False)
    found = checks_here.disk_finding(tmp_path / "runs")
    assert found.result is Result.FAULT
    assert found.sentence.startswith(said)


def test_the_doctor_says_so(no_loopback: None) -> None:
    found = checks_here.loopback_finding()
    assert (found.result, found.sentence) == (Result.FAULT, SAID)


def test_the_doctor_finds_this_machine_good() -> None:
    assert checks_here.loopback_finding().result is Result.GOOD
