"""`bamboo schedule` through the command line: text, JSON, and one-line errors."""

import json

import pytest

from cli.main import run


def test_the_drawing_of_the_design(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", "--stages", "4", "--microbatches", "8", "--redundancy", "eager"]) == 0
    out = capsys.readouterr().out
    assert "\n3      FR0 FR1 FR2 F0  B0  -   F1" in out
    assert "step time      660.0 ms (+0.0% over the bound of 660.0 ms)" in out


def test_json_has_programs_figures_and_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", "--redundancy", "gap", "--backward-ms", "30", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["programs"][3].startswith(" | 3F0 3B0 3F1")
    assert found["figures"]["step_s"] == pytest.approx(0.55)
    assert found["gap_budgets"]["0.0"]["0"] == 2


def test_each_stage_in_a_mode_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedule", "--redundancy", "stash,gap,eager,full", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["redundancy"] == "stash,gap,eager,full"
    assert list(found["gap_budgets"]) == ["0.1"]
    ahead = [
        (s["ahead_forwards"] > 0, s["ahead_backwards"] > 0) for s in found["figures"]["stages"]
    ]
    assert ahead == [(False, False), (True, False), (True, False), (True, True)]


def test_one_stage_has_no_bubble(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--stages", "1", "--microbatches", "3", "--pipelines", "2", "--redundancy", "peer"]
    assert run(["schedule", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["programs"] == [" | 0F0 0B0 0F1 0B1 0F2 0B2 | "]
    assert found["figures"]["bubble"] == 0
    assert run(["schedule", *arguments]) == 0
    assert "\n1.0    F0 B0 -  F1 B1 -  F2 B2 -\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stages", "0"], "--stages 0 is too small; give at least 1"),
        (["--stages", "1", "--redundancy", "eager"], "every peer already holds the exact state"),
        (["--microbatches", "0"], "--microbatches 0 is too small"),
        (["--pipelines", "-1"], "--pipelines -1 is too small"),
        (["--forward-ms", "1,2"], "has 2 figures for 4 stages; give one for all, or 4"),
        (["--forward-ms", "fast"], "is no list of figures; write one like 20"),
        (["--backward-ms", "0"], "must lie above 0"),
        (["--backward-ms", "nan"], "must lie above 0"),
        (["--microbatches", "100000"], "too many to draw"),
        (["--redundancy", "always"], "always is no redundancy; take one of off, stash"),
        (["--redundancy", "stash,off,stash,stash"], "for each stage one of stash, gap, eager"),
        (["--redundancy", "stash,full"], "names 2 modes for 4 stages; give one for all, or 4"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["schedule", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
