"""A job whose stages each have their own redundancy: what `bamboo plan` shows of it."""

from pathlib import Path

import pytest

from cli.main import run
from tests.study.on_paper import body_of, in_folder, sets

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path, monkeypatch)


def test_where_each_stage_has_its_own_redundancy_the_plan_says_which(
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = sets("cluster.redundancy=full,stash,gap,eager")
    assert run(["plan", "job.toml", *own]) == 0
    text = capsys.readouterr().out
    assert "4 stages, redundancy full,stash,gap,eager\n" in text
    rows = [line.split() for line in text.splitlines()]
    table = rows[rows.index(next(r for r in rows if r[:2] == ["stage", "layers"])) :]
    assert table[0][4] == "redundancy"
    assert [row[7] for row in table[1:5]] == ["full", "stash", "gap", "eager"]
    assert "each stage has its redundancy: in memory stage" in " ".join(text.split())
    assert "\n    1 x 4 full,stash,gap,eager " in text
    body = body_of(capsys, "plan", "job.toml", "--json", *own)
    assert body["redundancy_of_stages"] == ["full", "stash", "gap", "eager"]
    assert body["redundancy"] == body["strategy"]["placement"]["redundancy"]
    # The node of stage 0 shadows stage 1, which computes nothing ahead.
    assert [node["bytes"]["ahead"] > 0 for node in body["nodes"]] == [False, True, True, True]
    other = body_of(capsys, "plan", "job.toml", "--nodes", "3", "--json", *own)
    assert other["redundancy"] == "stash"
