"""`python -m testbed.swarm`: green is one line, red leaves a scenario that plays again."""

import json
from pathlib import Path

import pytest

from bamboo.errors import InputError
from testbed.swarm.__main__ import main, play_file, run_swarm
from testbed.swarm.many import play_many
from testbed.swarm.run import replay
from tests.full_disk import files_up_to
from tests.sim.swarm.planted import planted


def test_green_seeds_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_swarm(20, 100, None, False) == 0
    said = capsys.readouterr().out
    assert said.startswith("20 seeds green, ")
    assert "events/s" in said


def test_a_red_seed_leaves_its_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "red.txt"
    with planted("no_second_round"):
        assert run_swarm(40, 0, out, True) == 1
        answer = json.loads(capsys.readouterr().out)
        assert not replay(out.read_text()).green
        assert play_file(out) == 1
    assert answer["red"]["scenario"] == str(out)
    assert answer["seeds"] == answer["red"]["seed"] + 1
    assert play_file(out) == 0
    with pytest.raises(InputError, match="is there already"):
        run_swarm(1, 0, out, False)


@pytest.mark.parametrize(("seeds", "first"), [(0, 0), (3, -1), (10**30, 0)])
def test_a_swarm_needs_a_seed(seeds: int, first: int) -> None:
    with pytest.raises(InputError, match="need a seed or more"):
        run_swarm(seeds, first, None, False)


@pytest.mark.parametrize("arguments", [[], ["3", "--scenario", "x"], ["many"]])
def test_seeds_or_a_scenario_are_needed(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2


def test_figures_that_cannot_be_written_are_not_lost_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("w") as full, files_up_to(0), monkeypatch.context() as patch:
        patch.setattr("sys.stdout", full)
        assert main(["2"]) == 2
    assert "standard output cannot be written" in capsys.readouterr().err


def test_closed_standard_error_is_no_reason_to_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert main(["2"]) == 0
    assert "seeds green" in capsys.readouterr().out


def test_more_seeds_than_can_be_listed_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.swarm.many.PORTION", 5)
    found = play_many(range(100_000_000), processes=2)
    assert next(found).seeds == 5
    found.close()  # type: ignore[attr-defined]


def test_a_scenario_that_cannot_be_written_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with planted("no_second_round"), files_up_to(16):
        assert run_swarm(40, 0, None, True) == 1, "a seed is red all the same"
    captured = capsys.readouterr()
    assert "scenario v1" in captured.err
    assert "cannot be written" in captured.err
    assert json.loads(captured.out)["red"]["scenario"] is None
    assert list(tmp_path.iterdir()) == []


def test_a_swarm_says_all_of_it_on_standard_output() -> None:
    with pytest.raises(InputError, match="give the name of a file"):
        run_swarm(1, 0, Path("-"), False)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"scenario v2\n", "line 1 is not 'scenario v1'"),
        (b"", "this is no scenario"),
        (b"\xff\xfe", "is no text"),
        (b"scenario v1\nseed x\n", "line 2: 'seed x' is not understood"),
        (b"scenario v1\nfault 1 burn\n", "fault 'burn' is none of"),
        (b"scenario v1\nseed 1\nseed 2\n", "seed was said before"),
        (b"scenario v1\nfaults abc\n", "line 2: 'faults abc' is not understood"),
        (b"scenario v1\nstages 0\n", "stages 0 makes no world; give 1 to 64"),
        (b"scenario v1\nstages 1\n", "redundancy stash needs two stages: with one, every peer"),
        (b"scenario v1\nzones 0\n", "zones 0 makes no world"),
        (b"scenario v1\nstep_s 0\n", "step_s 0 makes no world; give 0.001"),
        (b"scenario v1\nsteps 1000000000\n", "steps 1e+09 makes no world"),
        (b"scenario v1\nheal_s nan\n", "heal_s nan makes no world"),
        (b"scenario v1\nfault nan lose\n", "at_s nan makes no world"),
        (b"scenario v1\nfault 1 lose who=-5\n", "who -5 makes no world"),
        (b"scenario v1\nredundancy foo\n", "redundancy foo is none"),
    ],
)
def test_a_scenario_that_is_none_is_one_line_with_its_file(
    tmp_path: Path, data: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.txt"
    path.write_bytes(data)
    assert main(["--scenario", str(path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert str(path) in error
    assert error.count("\n") == 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        play_file(tmp_path / "none.txt")
