"""A job in a folder of its own whose layers nobody has to look at, and what commands say of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bamboo import wiring
from bamboo.runs import disk_space
from bamboo.wiring.begun import Begun
from cli.main import run
from tests.study.facts import seen

JOB = """
[model]
layers = 6
width = 64
heads = 2
context = 16
[train]
steps = 200
batch = 16
virtual_nodes = 2
[cluster]
stages = 4
[checkpoint]
every_steps = 50
"""


def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job, and a preflight that says what it is told to."""
    nothing_is_looked_at(monkeypatch)
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("BAMBOO_REDIS_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)


def nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process with torch is started, and the disk has room for any job."""
    monkeypatch.setattr(wiring, "run_preflight", seen)
    monkeypatch.setattr(Begun, "begin", lambda *_, **__: None)
    monkeypatch.setattr(disk_space, "free_bytes", lambda _: 2**50)


def body_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(list(arguments)) == 0
    body = json.loads(capsys.readouterr().out)
    assert isinstance(body, dict)
    return body


def sets(*overrides: str) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    capsys.readouterr()
    assert run(list(arguments)) == 2
    error = "error: " + capsys.readouterr().err.partition("error: ")[2]
    assert error.count("\n") == 1
    return error
