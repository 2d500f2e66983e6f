"""Processes that the command line starts and listens to."""

import sys
from pathlib import Path

import pytest

from bamboo.errors import BambooError
from cli import wiring


def speaks(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program of our own in the place of the module that is started."""
    monkeypatch.setattr("cli.torch_process.command", lambda _: [sys.executable, "-c", program])


def test_progress_is_told_and_what_a_model_prints_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ['{"step": 1, "steps": 2}', "{", "[1]", '{"step": "x"}', '{"step": 2, "steps": 2}']
    speaks(
        f"import sys; sys.stderr.write({chr(10).join(said) + chr(10)!r});"
        "sys.stdout.write('{\"equal\": true}')",
        monkeypatch,
    )
    told: list[tuple[int, int]] = []
    body = wiring.run_verify(tmp_path, told=lambda step, steps: told.append((step, steps)))
    assert body == {"equal": True}
    assert told == [(1, 2), (2, 2)]


def test_a_process_that_breaks_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaks("import sys; sys.stderr.write('first\\nlast\\n'); sys.exit(7)", monkeypatch)
    with pytest.raises(BambooError, match=r"^verify ended with status 7: first \| last$"):
        wiring.run_verify(tmp_path, told=lambda step, steps: None)
