"""The pure parts of the executor's benchmarks: the bound, seconds a step, and taking turns."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import executor_vs_torch, virtual_bound
from benchmarks.measuring.turns import (
    Contender,
    Cost,
    Stamp,
    Stamps,
    beside_us,
    mean_of,
    read_stamps,
    take_turns,
)

STAMPING = """
import sys, time
with open(sys.argv[1], "w", buffering=1) as file:
    while True:
        time.sleep(0.005)
        file.write("x\\n")
"""


def test_the_bound_is_the_slowest_stage_busy_and_the_others_filling() -> None:
    case = virtual_bound.Case(pipelines=1, stages=8, microbatches=16)
    assert case.bound_s == pytest.approx((16 + 7) * 0.060)
    heavier = virtual_bound.Case(pipelines=2, stages=4, microbatches=8, forward_ms=5, backward_ms=9)
    assert heavier.bound_s == pytest.approx((8 + 3) * 0.014)


def test_seconds_a_step_leave_out_the_first_ones_and_average_over_processes() -> None:
    early = [Stamp(at_s=s) for s in (9.0, 10.0, 12.0, 14.0)]
    late = [Stamp(at_s=s) for s in (9.0, 11.0, 13.0, 17.0)]
    assert virtual_bound.per_step_s([early, late], 2) == pytest.approx((2 + 3) / 2)
    with pytest.raises(ValueError, match=r"\[3, 4\] steps"):
        virtual_bound.per_step_s([early, late[1:]], 1)
    with pytest.raises(ValueError, match="of which 4 do not count"):
        virtual_bound.per_step_s([early], 4)


def test_an_operation_costs_what_the_threads_took_beside_its_work(tmp_path: Path) -> None:
    for name, rate in (("a", 100e-6), ("b", 300e-6)):
        stamps = Stamps(tmp_path, name)
        stamps.step(5.0, 18)
        for step in (1, 2):
            stamps.step(5.0 + 18 * step * rate, 18 + 18 * step)
    assert beside_us(read_stamps(tmp_path), 1) == pytest.approx(200)
    assert beside_us([[Stamp(at_s=1.0), Stamp(at_s=2.0)]], 1) == 0.0


def test_the_mean_of_turns_is_of_wall_and_processor_time_each() -> None:
    assert mean_of([Cost(wall_s=1.0, cpu_s=2.0), Cost(wall_s=2.0, cpu_s=6.0)]) == Cost(
        wall_s=1.5, cpu_s=4.0
    )


def test_each_round_has_contenders_of_its_own_which_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = executor_vs_torch.chosen("8x256", "2x2", "off")
    alive: list[str] = []
    lives: list[str] = []

    class Fake:
        def __init__(self, name: str, life: int) -> None:
            self.name, self.folder, self.life = name, tmp_path / f"{name}{life}", life
            self.folder.mkdir()
            self.stamps = Stamps(self.folder, "0")

        def run(self, steps: int) -> Cost:
            assert alive, "it has ended"
            for _ in range(steps):
                self.stamps.step()
            return Cost(wall_s=self.life + (0.5 if self.name == "off" else 0.0), cpu_s=1.0)

    @contextlib.contextmanager
    def fake(_: object, name: str) -> Iterator[Fake]:
        lives.append(name)
        alive.append(name)
        yield Fake(name, (len(lives) + 1) // 2)
        alive.remove(name)

    monkeypatch.setattr(executor_vs_torch, "contender", fake)
    found, beside = executor_vs_torch.played(case, case.contenders, 3)
    assert lives == ["1f1b", "off", "off", "1f1b", "1f1b", "off"]
    assert not alive
    assert [cost.wall_s for cost in found["1f1b"]] == [1.0, 2.0, 3.0]
    assert [cost.wall_s for cost in found["off"]] == [1.5, 2.5, 3.5]
    assert beside == {"1f1b": 0.0, "off": 0.0}


def test_chosen_cases_always_have_the_reference_first() -> None:
    chosen = executor_vs_torch.chosen("8x256", "1x4,2x2", "stash,off")
    assert [case.grid for case in chosen] == ["1x4", "2x2"]
    assert {case.contenders for case in chosen} == {("1f1b", "off", "stash")}
    assert executor_vs_torch.chosen("", "", "") == list(executor_vs_torch.CASES)
    (one,) = executor_vs_torch.chosen("16x512", "2x4", "")
    assert (one.grid, one.contenders) == ("2x4", ("1f1b", "off", "stash", "gpipe"))
    assert one.groups == [("1f1b", "off"), ("1f1b", "stash"), ("1f1b", "gpipe")]
    assert all(case.groups == [case.contenders] for case in chosen)


@pytest.fixture
def stamping(tmp_path: Path) -> Iterator[list[Contender]]:
    started = []
    contenders = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        words = [sys.executable, "-c", STAMPING, str(folder / "stamps-0")]
        process = subprocess.Popen(words)
        started.append(process)
        contenders.append(
            Contender(name=name, folder=folder, pids=(process.pid,), send=process.send_signal)
        )
    yield contenders
    for process in started:
        process.kill()
        process.wait()


def test_who_has_no_turn_stands_still(stamping: list[Contender]) -> None:
    one, other = stamping
    one.run(1)
    other.run(1)
    rested = one.steps()
    other.run(40)
    assert one.steps() == rested
    found = take_turns(stamping, rounds=3, steps=5)
    assert {name: len(costs) for name, costs in found.items()} == {"a": 3, "b": 3}
    for cost in (*found["a"], *found["b"]):
        assert cost.wall_s >= 0.004
        assert 0 < cost.cpu_s < 10 * cost.wall_s
