"""`bamboo simulate --swarm`: green is one line, red leaves a scenario that plays again."""

import json
from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.sim.swarm.run import replay
from cli.swarming import play_file, run_swarm
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


@pytest.mark.parametrize(("seeds", "first"), [(0, 0), (3, -1)])
def test_a_swarm_needs_a_seed(seeds: int, first: int) -> None:
    with pytest.raises(InputError, match="need a seed or more"):
        run_swarm(seeds, first, None, False)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        play_file(tmp_path / "none.txt")
