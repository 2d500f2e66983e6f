"""A short swarm over the real core; `make swarm` plays many more, and finds the planted bugs."""

import os

import pytest

from testbed.swarm.many import play_many, play_portion
from tests.sim.swarm.planted import BUGS, WITHIN, find

SEEDS = int(os.environ.get("BAMBOO_SWARM_SEEDS", "250"))
PORTION = 250


@pytest.mark.parametrize("first", range(0, SEEDS, PORTION))
def test_every_seed_is_green(first: int) -> None:
    tally = play_portion(range(first, min(SEEDS, first + PORTION)))
    red = tally.red
    assert red is None, f"seed {red.seed}: {red.checker} {red.where}, {red.at_s} s: {red.sentence}"
    assert tally.outcomes["done"] > tally.seeds // 3


def test_processes_find_what_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.swarm.many.PORTION", 5)
    alone, together = (
        [(t.seeds, t.events, t.outcomes) for t in play_many(range(15), processes=number)]
        for number in (1, 2)
    )
    assert alone == together


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    verdict = find(name)
    assert verdict is not None, f"{name} is not found within {WITHIN} seeds"
