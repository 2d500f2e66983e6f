"""Losses commute: whoever is noticed first, the same nodes survive with the same slots, or the run
ends as unrecoverable by name."""

from itertools import combinations, permutations

import pytest

from bamboo.core.events import CaughtUp, HandedOver, NoticeReceived
from bamboo.core.invariants import check
from bamboo.core.state import Outcome, State
from bamboo.ids import NodeId
from tests.core.build import apply, lost, running

GRIDS = [(1, 2), (1, 3), (1, 4), (1, 6), (2, 2), (2, 3), (3, 2)]


def after_losses(state: State, order: tuple[str, ...], *, catch_up: bool) -> State:
    for victim in order:
        state = apply(state, lost(victim)).state
        assert check(state) == []
        while catch_up and state.failovers:
            first = state.failovers[0]
            done = CaughtUp(
                node=first.successor,
                slot=first.slot,
                step=1,
                recomputed=1,
                already_computed=0,
                pause_s=0.1,
            )
            state = apply(state, done).state
    return state


def fate(state: State) -> object:
    if state.outcome is Outcome.UNRECOVERABLE:
        assert "no live node holds stage" in state.sentence
        return Outcome.UNRECOVERABLE
    assert state.assignment is not None
    return (state.assignment, frozenset(node.id for node in state.live_nodes()), state.generation)


@pytest.mark.parametrize(("pipelines", "stages"), GRIDS)
@pytest.mark.parametrize("victims", [2, 3])
def test_any_order_gives_the_same_fate(pipelines: int, stages: int, victims: int) -> None:
    start = running(pipelines, stages)
    names = [str(node.id) for node in start.nodes]
    for chosen in combinations(names, min(victims, len(names))):
        fates = {
            fate(after_losses(start, order, catch_up=catch_up))
            for order in permutations(chosen)
            for catch_up in (False, True)
        }
        assert len(fates) == 1, chosen


def test_neighbours_are_fatal_and_others_are_not() -> None:
    start = running(1, 4)
    names = [str(node.id) for node in start.nodes]
    fatal = {
        pair
        for pair in combinations(names, 2)
        if fate(after_losses(start, pair, catch_up=False)) is Outcome.UNRECOVERABLE
    }
    assert fatal == {
        ("n00.1", "n01.1"),
        ("n01.1", "n02.1"),
        ("n02.1", "n03.1"),
        ("n00.1", "n03.1"),
    }


@pytest.mark.parametrize("victim", ["n00.1", "n01.1", "n02.1", "n03.1"])
def test_a_hand_over_leaves_the_same_assignment_as_a_loss(victim: str) -> None:
    start = running(1, 4)
    told = apply(start, NoticeReceived(node=NodeId(victim), deadline_s=120.0)).state
    handed = apply(told, HandedOver(node=NodeId(victim), step=3)).state
    gone = apply(start, lost(victim)).state
    assert handed.assignment == gone.assignment
    assert handed.failovers[0].planned
    assert not gone.failovers[0].planned
