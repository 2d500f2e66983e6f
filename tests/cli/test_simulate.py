"""`bamboo simulate` through the command line: figures, seeds, rivals, a picture, bad input."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli import wiring
from cli.main import run
from tests.cli.facts import seen

pytestmark = pytest.mark.timeout(120)
EXAMPLES = Path(__file__).parents[2] / "examples"
JOB, MARKET = str(EXAMPLES / "trace-local.toml"), str(EXAMPLES / "spot-market.csv")


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preflight measures layers in a process of its own; here it says what it is told to."""
    monkeypatch.setattr(wiring, "run_preflight", seen)


def body_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["simulate", JOB, "--json", *arguments]) == 0
    body = json.loads(capsys.readouterr().out)
    assert isinstance(body, dict)
    return body


def figure(body: dict[str, Any], name: str, system: str = "bamboo") -> float:
    return float(body["systems"][system]["figures"][name]["mean"])


def test_a_trace_is_played_to_the_last_step_of_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = body_of(["--trace", MARKET], capsys)
    assert body["simulated"] is True
    assert "virtual device" in body["step_times"]
    assert figure(body, "steps") == 1500
    assert body["systems"]["bamboo"]["ended"] == ["all 1,500 steps are done"]


def test_a_trace_that_is_too_short_is_played_again_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["simulate", JOB, "--trace", MARKET, "--hours", "1", "--endless"]) == 0
    text = capsys.readouterr().out
    assert "played 3 times over: it has 0.3333 h" in text
    assert "simulated" in text.splitlines()[0]
    assert "modelled" in text


def test_seeds_are_counted_and_the_same_seeds_give_the_same_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--hazard", ".5", "--bulk", "2", "--hours", "2", "--seeds", "4", "--endless"]
    body = body_of(arguments, capsys)
    assert body["runs"] == 4
    assert figure(body, "preemptions") > 0
    assert body["systems"]["bamboo"]["figures"]["steps"]["confidence"] > 0
    assert body_of(arguments, capsys) == body


def test_rivals_stand_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", MARKET, "--endless", "--rivals"]
    body = body_of(arguments, capsys)
    assert len(body["systems"]) >= 5
    assert figure(body, "usd", "on-demand") > figure(body, "usd")
    assert figure(body, "steps") <= figure(body, "steps", "no pauses at all")
    assert run(["simulate", JOB, *arguments]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in body["systems"])


def test_bytes_between_zones_are_said_to_be_ours_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--hazard", "0", "--hours", "1", "--endless", "--rivals"]
    for zones, said in (("a,b", True), ("a", False)):
        assert run(["simulate", JOB, *arguments, "--zones", zones]) == 0
        assert ("paid by bamboo alone" in capsys.readouterr().out) is said


def test_a_time_scale_plays_the_market_faster_and_not_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = body_of(["--trace", MARKET, "--endless"], capsys)
    fast = body_of(["--trace", MARKET, "--endless", "--time-scale", "10"], capsys)
    assert figure(fast, "preemptions") == figure(slow, "preemptions")
    assert figure(fast, "seconds") == pytest.approx(figure(slow, "seconds") / 10)
    assert figure(fast, "steps") < figure(slow, "steps") / 10


def test_the_picture_is_the_same_bytes_and_nothing_is_replaced_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        assert run(["simulate", JOB, "--trace", MARKET, "--plot", str(path)]) == 0
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"<?xml")
    capsys.readouterr()
    assert run(["simulate", JOB, "--trace", MARKET, "--plot", str(first)]) == 2
    assert "--force" in capsys.readouterr().err


def test_the_published_simulator_has_models_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["simulate", "--preset", "nsdi23", "--hazard", ".1", "--seeds", "2"]
    assert run([*arguments, "--model", "bert", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["simulated"], body["runs"]) == (True, 2)
    assert body["figures"]["steps"]["mean"] == 22_194
    assert run(arguments) == 0
    assert "published rules" in capsys.readouterr().out
    for more, words in (
        (["--model", "x"], "none of the paper's; take one of bert"),
        (["--trace", MARKET], "give one of them"),
        ([JOB], "has models of its own"),
        (["--seeds", "0"], "--seeds 0 is no number"),
    ):
        assert run([*arguments, *more]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "nsdi23", "--trace", MARKET, "--plot", "x.svg"], "--plot does not go with"),
        (["--preset", "nsdi23", "--trace", MARKET, "--hours", "2"], "--hours does not go with"),
        (["--swarm", "1", "--trace", MARKET], "--trace does not go with --swarm"),
        ([JOB, "--swarm", "1"], "does not go with --swarm"),
    ],
)
def test_what_another_way_would_ignore_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_counts_are_whole_and_a_run_that_never_began_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--hazard", "0", "--nodes", "2", "--hours", "1", "--rivals"]
    assert run(["simulate", JOB, *arguments]) == 0
    text = capsys.readouterr().out
    assert "(hazard 0) of 2 nodes" in text.splitlines()[0]
    assert "it never began: 4 nodes" in text
    assert " 0.0\n" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no market is named"),
        (["--trace", MARKET, "--hazard", ".1"], "--hazard 0.1 does not go with --trace"),
        (["--trace", MARKET, "--seeds", "3"], "a trace has no chance in it"),
        (["--hazard", ".1", "--times", "2"], "--times 2 belongs to --trace"),
        (["--hazard", "-1"], "--hazard -1 is none"),
        (["--hazard", ".1", "--seeds", "0"], "--seeds 0 is no number of runs"),
        (["--trace", MARKET, "--time-scale", "0"], "--time-scale 0 plays nothing"),
        (["--trace", MARKET, "--boot-seconds", "-1"], "--boot-seconds -1 is no time"),
        (["--trace", MARKET, "--times", "0"], "0 copies"),
        (["--trace", "missing.csv"], "missing.csv"),
        (["--trace", MARKET, "--plot", "x.png"], "ends in .svg"),
        (["--market", "wild"], "--market 'wild' is none"),
        (["--market", "calm", "--hazard", ".1"], "--market and --hazard"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", JOB, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error
