"""Who reaches fewer peers speaks later."""

from bamboo.core.liveness.partition import CUT_OFF_S, patience_s
from bamboo.ids import NodeId
from tests.core.build import apply, joined, lost, running

ME, *OTHERS = (NodeId(f"n0{index}.1") for index in range(4))


def test_one_loss_or_half_of_the_peers_is_said_at_once() -> None:
    assert patience_s(running(), ME, OTHERS[:1]) == 0.0
    five = running(stages=5)
    assert patience_s(five, ME, OTHERS[:2]) == 0.0


def test_who_lost_more_than_half_waits() -> None:
    assert patience_s(running(), ME, OTHERS[:2]) == CUT_OFF_S
    assert patience_s(running(), ME, OTHERS) == CUT_OFF_S


def test_standbys_and_those_who_are_away_already_do_not_count() -> None:
    state = apply(running(), joined("n90.1")).state
    assert patience_s(state, ME, [*OTHERS[:1], NodeId("n90.1")]) == 0.0
    five = running(stages=5)
    for name in ("n90.1", "n91.1"):
        five = apply(five, joined(name)).state
    assert patience_s(five, ME, OTHERS) == CUT_OFF_S, "three of four, whoever stands by"
    after = apply(running(stages=5), lost(OTHERS[0])).state
    assert patience_s(after, ME, OTHERS[:2]) == 0.0


def test_of_two_peers_none_can_be_right_against_the_other() -> None:
    assert patience_s(running(stages=3), ME, OTHERS[:2]) == 0.0
