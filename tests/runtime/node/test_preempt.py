"""Listed preemptions: each takes one owner of its slot, at its place, once."""

import json
import os
import signal
from pathlib import Path

import pytest

from bamboo.config.tree import Kill
from bamboo.runtime.node.preempt import Preemptions
from bamboo.topology.slots import Slot

SLOT = Slot(pipeline=0, stage=2)


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What was to be killed: here nobody dies."""
    out: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: out.append((group, number)))
    return out


def listed(*kills: Kill, stamp_file: Path | None = None) -> Preemptions:
    return Preemptions(kills, node="n", stamp_file=stamp_file)


def test_it_falls_at_its_slot_phase_step_and_microbatch_only(deaths: list[object]) -> None:
    preemptions = listed(Kill(step=4, stage=2, phase="backward", microbatch=3))
    for phase, slot, step, microbatch in (
        ("forward", SLOT, 4, 3),
        ("backward", Slot(pipeline=1, stage=2), 4, 3),
        ("backward", Slot(pipeline=0, stage=1), 4, 3),
        ("backward", SLOT, 5, 3),
        ("backward", SLOT, 4, 2),
    ):
        preemptions.at(phase, slot, step, microbatch)
    assert not deaths
    preemptions.at("backward", SLOT, 4, 3)
    assert deaths == [(os.getpgrp(), signal.SIGKILL)]


@pytest.mark.parametrize("phase", ["exchange", "ship", "step"])
def test_phases_without_a_microbatch_take_any_listed_one(phase: str, deaths: list[object]) -> None:
    listed(Kill(step=4, stage=2, phase=phase, microbatch=7)).at(phase, SLOT, 4, 0)
    assert len(deaths) == 1


def test_one_with_notice_is_left_to_the_cloud(deaths: list[object]) -> None:
    listed(Kill(step=4, stage=2, notice_s=5.0)).at("forward", SLOT, 4, 0)
    assert not deaths


def test_the_new_owner_is_spared_what_may_have_taken_the_old_one(deaths: list[object]) -> None:
    preemptions = listed(
        Kill(step=4, stage=2), Kill(step=6, stage=2), Kill(step=7, stage=2), Kill(step=4, stage=1)
    )
    preemptions.spent(SLOT, 6)
    for step in range(7):
        preemptions.at("forward", SLOT, step, 0)
    assert not deaths
    preemptions.at("forward", Slot(pipeline=0, stage=1), 4, 0)
    preemptions.at("forward", SLOT, 7, 0)
    assert len(deaths) == 2


def test_the_stamp_is_written_before(tmp_path: Path, deaths: list[object]) -> None:
    file = tmp_path / "kills.jsonl"
    listed(Kill(step=1, stage=2), stamp_file=file).at("forward", SLOT, 1, 0)
    stamp = json.loads(file.read_text())
    assert (stamp["node"], stamp["slot"], stamp["step"]) == ("n", "0.2", 1)
    assert stamp["t_monotonic_ns"] > 0


def test_a_kill_that_happened_does_not_happen_when_its_step_is_done_again(
    deaths: list[tuple[int, int]], tmp_path: Path
) -> None:
    stamps = tmp_path / "kills.jsonl"
    stamp = {"slot": "0.1", "step": 3, "phase": "forward", "cause": "listed", "node": "other"}
    stamps.write_text(json.dumps(stamp) + "\n")
    listed(Kill(step=3, stage=1), stamp_file=stamps).at("forward", Slot(pipeline=0, stage=1), 3, 0)
    assert deaths == []
    listed(Kill(step=4, stage=1), stamp_file=stamps).at("forward", Slot(pipeline=0, stage=1), 4, 0)
    assert len(deaths) == 1
