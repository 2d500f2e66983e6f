"""Which results stay, and the table of all that there were."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import history
from benchmarks.measuring import report
from benchmarks.measuring.report import RESULTS, write_result


def put(folder: Path, name: str, *, commit: str = "abc1234", **body: Any) -> Path:
    facts = {"date": name[-15:-5], "commit": commit, "cpu": "a|b", "cores": 2}
    path = folder / name
    path.write_text(json.dumps({"facts": facts, **body}, indent=1))
    return path


def rows(folder: Path) -> list[str]:
    lines = (folder / history.TABLE).read_text().splitlines()
    return [line for line in lines if " | 20" in line]


def test_the_newest_of_each_name_and_parts_stays_and_each_has_a_row(tmp_path: Path) -> None:
    put(tmp_path, "failover-pause-2026-11-21.json", ms={"pause": [47.0, 48.0, 60.0]})
    new = put(tmp_path, "failover-pause-2026-11-24.json", ms={"pause": [56.25]})
    part = put(tmp_path, "failover-pause-off-2026-11-21.json", claims=[])
    history.tidy(tmp_path)
    assert set(tmp_path.glob("*.json")) == {new, part}
    assert rows(tmp_path) == [
        "| failover-pause | 2026-11-24 | abc1234 | a/b, 2 cores |  "
        "| ms from the kill to going on 56.25 |",
        "| failover-pause | 2026-11-21 | abc1234 | a/b, 2 cores |  "
        "| ms from the kill to going on 48 |",
        "| failover-pause-off | 2026-11-21 | abc1234 | a/b, 2 cores |  |  |",
    ]


def test_a_result_of_another_checkout_is_taken_in_and_no_row_is_lost(tmp_path: Path) -> None:
    put(tmp_path, "x-2026-11-26.json")
    history.tidy(tmp_path)
    once = (tmp_path / history.TABLE).read_text()
    brought = put(tmp_path, "x-2026-11-27.json", commit="fff0000 to fff0001")
    (tmp_path / history.TABLE).write_text(f"<<<<<<< ours\n{once}=======\n{once}>>>>>>>\n")
    history.tidy(tmp_path)
    assert list(tmp_path.glob("*.json")) == [brought]
    assert [line.split(" | ")[1:3] for line in rows(tmp_path)] == [
        ["2026-11-27", "fff0000 to fff0001"],
        ["2026-11-26", "abc1234"],
    ]
    twice = (tmp_path / history.TABLE).read_text()
    history.tidy(tmp_path)
    assert (tmp_path / history.TABLE).read_text() == twice


def test_raw_lists_are_shortened_past_the_limit_and_claims_are_not() -> None:
    claims = [{"about": f"claim {n}", "found": 1.0, "interval": None} for n in range(100)]
    body = {
        "claims": claims,
        "ms": [float(n) for n in range(9001)],
        "plays": {1: [{"step": n, "at_s": 0.5} for n in range(5000)]},
        "few": [1, 2, 3],
    }
    text = history.text_of(body)
    kept = json.loads(text)
    assert len(text) <= history.LIMIT_BYTES
    assert (kept["claims"], kept["few"]) == (claims, [1, 2, 3])
    assert (kept["ms"]["count"], kept["ms"]["median"], kept["ms"]["most"]) == (9001, 4500, 9000)
    assert kept["plays"]["1"]["last"] == {"step": 4999, "at_s": 0.5}
    assert len(body["ms"]) == 9001, "what is told to people is the whole"


def test_what_is_short_is_kept_as_it_is() -> None:
    body = {"facts": {"date": "x"}, "empty": {}, "rows": [{"a": [1.5], "b": {"c": []}}, {}]}
    assert json.loads(history.text_of(body)) == body
    assert "\n  {}\n" in history.text_of(body)


def test_a_result_replaces_the_older_one_and_adds_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    put(tmp_path, "x-2026-11-21.json")
    path = write_result("x", "command", {"claims": [{"about": "it took", "found": 12345.6}]})
    assert list(tmp_path.glob("*.json")) == [path]
    assert [line.endswith("| it took 12,346 |") for line in rows(tmp_path)] == [True, False]


def test_what_is_no_result_is_named_and_what_was_measured_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    (tmp_path / "y-2026-11-21.json").write_text("<<<<<<< ours")
    with pytest.raises(SystemExit, match=r"x-.* is written, .* y-2026-11-21.json is no result"):
        write_result("x", "command", {})
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_the_results_that_are_kept_are_tidy() -> None:
    """But for those that another checkout has brought since: they have no row, and wait for one."""
    known = dict(history.table_rows((RESULTS / history.TABLE).read_text()))
    files = [(history.FILE.fullmatch(p.name), p) for p in sorted(RESULTS.glob("*.json"))]
    named = [(m["name"], p) for m, p in files if m]
    facts = {p: json.loads(p.read_text())["facts"] for _, p in named}
    brought = {name for name, p in named if history.key(name, facts[p]) not in known}
    settled = [(name, p) for name, p in named if name not in brought]
    assert settled
    assert len(settled) == len({name for name, _ in settled})
    assert max(p.stat().st_size for _, p in settled) <= history.LIMIT_BYTES
