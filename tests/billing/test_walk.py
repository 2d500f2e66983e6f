"""Who follows `bamboo cost RUN` from the command line to its answer opens few files."""

import shutil
from pathlib import Path

import pytest

from cli import main
from tests.walked import walked

MOST_FILES = 15
RUN = Path(__file__).parent / "kept" / "spent"


def test_what_a_run_cost_is_said_by_functions_of_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    shutil.copytree(RUN, tmp_path / "spent")
    files = walked(lambda: main.run(["cost", "spent"]))
    assert "the bill" in capsys.readouterr().out
    assert {"bamboo/billing/run_cost.py", "bamboo/planner/attribution.py"} <= set(files)
    assert len(files) <= MOST_FILES, sorted(files)
