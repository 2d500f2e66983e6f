"""Who counts as slow, who is replaced, and that it does not flap."""

from bamboo.core.effects import Effect, End, TerminateInstance
from bamboo.core.events import (
    CaughtUp,
    Event,
    RebalanceAdvised,
    ReplicaJoined,
    Speed,
    SpeedsMeasured,
    Yielded,
)
from bamboo.core.state import NodeStatus, State
from bamboo.core.straggler import FINE, ROUNDS, SLOW, kept_beyond
from bamboo.ids import NodeId
from bamboo.topology.slots import Slot
from tests.core.build import apply, joined, lost, running

OWNERS = [NodeId(f"n0{index}.1") for index in range(4)]
STANDBY = NodeId("n90.1")
PLACE = Slot(pipeline=0, stage=2)


def measured(state: State, *speeds: float, era: int | None = None) -> State:
    """The state after a measurement of the owners, in slot order."""
    assert state.assignment is not None
    given = tuple(
        Speed(node=node, speed=speed)
        for node, speed in zip(state.assignment.owners, speeds, strict=False)
    )
    era = state.era if era is None else era
    return apply(state, SpeedsMeasured(reporter="launcher", era=era, speeds=given)).state


def with_standby(name: NodeId = STANDBY, stages: int = 4) -> State:
    return apply(running(stages=stages), joined(name)).state


def rounds_of(state: State) -> dict[str, int]:
    return {slow.node: slow.rounds for slow in state.slow}


def next_report(state: State) -> Event | None:
    """What the nodes say next of what is under way."""
    if state.transfers:
        t = state.transfers[0]
        return ReplicaJoined(
            node=t.source, slot=t.slot, receiver=t.receiver, since=t.since, step=4, bytes=1
        )
    if state.moves:
        m = state.moves[0]
        return Yielded(node=m.source, slot=m.slot, since=m.since, step=4)
    if state.failovers:
        node, slot = state.failovers[0].successor, state.failovers[0].slot
        return CaughtUp(node=node, slot=slot, step=4, recomputed=0, already_computed=0, pause_s=0.0)
    return None


def settled(state: State) -> State:
    """Let every transfer and move that is under way come to its end."""
    for _ in range(20):
        event = next_report(state)
        if event is None:
            return state
        state = apply(state, event).state
    raise AssertionError("it does not settle")


def replaced(state: State) -> State:
    for _ in range(ROUNDS):
        state = measured(state, 1, 1, 0.5, 1)
    return settled(state)


def test_at_the_limit_nobody_is_slow() -> None:
    state = with_standby()
    assert measured(state, 1, 1, SLOW, 1) is state
    assert rounds_of(measured(state, 1, 1, SLOW - 0.01, 1)) == {OWNERS[2]: 1}
    # The median of the others, not their mean and not the fastest.
    assert measured(state, 1, 9, 0.9, 1) is state


def test_between_the_limits_nothing_is_forgotten_and_nothing_added() -> None:
    state = measured(with_standby(), 1, 1, 0.5, 1)
    middle = (SLOW + FINE) / 2
    assert measured(state, 1, 1, middle, 1) is state
    assert rounds_of(measured(state, 1, 1, FINE, 1)) == {}


def test_the_standby_takes_the_place_and_the_slow_node_leaves() -> None:
    state = with_standby()
    for _ in range(ROUNDS - 1):
        state = measured(state, 1, 1, 0.5, 1)
        assert state.retiring is None
    state = measured(state, 1, 1, 0.5, 1)
    assert state.retiring == OWNERS[2]
    assert state.assignment is not None
    assert state.assignment.owner(PLACE) == OWNERS[2], "it stays until its successor is there"
    state = settled(state)
    assert state.assignment is not None
    assert state.assignment.owner(PLACE) == STANDBY
    assert OWNERS[2] not in state.assignment.members()
    gone = state.node(OWNERS[2])
    assert gone is not None
    assert gone.status is NodeStatus.LEFT
    assert None not in state.assignment.shadows
    assert (state.retiring, state.slow) == (None, ())


def test_it_is_told_to_end_and_its_instance_is_given_back() -> None:
    state = with_standby()
    for _ in range(ROUNDS):
        state = measured(state, 1, 1, 0.5, 1)
    effects: tuple[Effect, ...] = ()
    while state.retiring is not None:
        event = next_report(state)
        assert event is not None
        step = apply(state, event)
        state, effects = step.state, step.effects
    assert [type(effect) for effect in effects] == [End, TerminateInstance]
    assert effects[0].to == OWNERS[2]


def test_without_a_standby_nobody_is_replaced() -> None:
    state = running()
    for _ in range(2 * ROUNDS):
        state = measured(state, 1, 1, 0.5, 1)
    assert state.retiring is None
    assert rounds_of(state) == {OWNERS[2]: ROUNDS}
    assert measured(state, 1, 1, 0.5, 1) is state, "and nothing more is written down"
    state = apply(state, joined(STANDBY)).state
    assert measured(state, 1, 1, 0.5, 1).retiring == OWNERS[2], "until one comes"


def test_one_node_more_is_kept_until_the_slow_one_has_left() -> None:
    state = running()
    for _ in range(ROUNDS):
        assert kept_beyond(state) == 0
        state = measured(state, 1, 1, 0.5, 1)
    assert kept_beyond(state) == 1
    assert state.sentence.endswith("of its peers; one node more is to take its place")
    state = measured(apply(state, joined(STANDBY)).state, 1, 1, 0.5, 1)
    assert (state.retiring, kept_beyond(state)) == (OWNERS[2], 1)
    state = settled(state)
    assert (state.roll.live, kept_beyond(state)) == ({*OWNERS, STANDBY} - {OWNERS[2]}, 0)


def test_one_node_more_is_for_a_slow_one_that_stays_and_was_not_replaced_in_vain() -> None:
    slow = running()
    for _ in range(ROUNDS):
        slow = measured(slow, 1, 0.6, 0.5, 1)
    assert kept_beyond(slow) == 1, "one at a time"
    assert kept_beyond(measured(slow, 1, 1, 1, 1)) == 0, "fine again"
    one = measured(slow, 1, 1, 0.5, 1)
    advised = apply(one, RebalanceAdvised(node=OWNERS[2])).state
    assert kept_beyond(advised) == 1, "the same node is for both"
    assert kept_beyond(apply(one, RebalanceAdvised(node=OWNERS[1])).state) == 2
    assert kept_beyond(apply(one, lost(OWNERS[2])).state) == 0
    again = replaced(with_standby())
    for _ in range(ROUNDS):
        again = measured(again, 1, 1, 0.5, 1)
    assert (rounds_of(again), kept_beyond(again)) == ({STANDBY: ROUNDS}, 0), "the slot's own work"


def test_a_standby_that_is_lost_on_the_way_leaves_all_as_it_was() -> None:
    state = with_standby()
    for _ in range(ROUNDS):
        state = measured(state, 1, 1, 0.5, 1)
    state = settled(apply(state, lost(STANDBY)).state)
    assert state.assignment == running().assignment
    assert (state.retiring, kept_beyond(state)) == (OWNERS[2], 1)
    # The next one takes the place, and a node that is fine again keeps it.
    later = settled(apply(state, joined("n91.1")).state)
    assert later.assignment is not None
    assert later.assignment.owner(PLACE) == "n91.1"
    assert measured(state, 1, 1, 1, 1).retiring is None


def test_a_slot_whose_new_owner_is_as_slow_is_left_alone() -> None:
    state = replaced(with_standby())
    state = apply(state, joined("n91.1")).state
    for _ in range(2 * ROUNDS):
        state = measured(state, 1, 1, 0.5, 1)
    assert state.retiring is None
    assert state.relieved == (PLACE,)
    # Once its owner was found fine, a slow one there is a slow node again.
    state = measured(state, 1, 1, 1, 1)
    assert state.relieved == ()
    for _ in range(ROUNDS):
        state = measured(state, 1, 1, 0.5, 1)
    assert state.retiring == STANDBY


def test_one_at_a_time_and_the_slowest_first() -> None:
    state = apply(with_standby(stages=5), joined("n91.1")).state
    for _ in range(ROUNDS):
        state = measured(state, 1, 0.6, 0.5, 1, 1)
    assert state.retiring == OWNERS[2]
    state = settled(state)
    assert measured(state, 1, 0.6, 1, 1, 1).retiring == OWNERS[1]


def test_figures_of_another_layout_or_of_one_node_alone_say_nothing() -> None:
    state = with_standby()
    assert measured(state, 1, 1, 0.5, 1, era=state.era + 1) is state
    assert measured(state, 0.5) is state


def test_a_node_with_one_slot_that_was_judged_in_vain_is_left_alone_with_the_others() -> None:
    """Its slots are as slow as before, whoever else had one of them."""
    state = replaced(with_standby())
    state = settled(apply(state, lost(OWNERS[3])).state)
    assert state.assignment is not None
    assert len(state.assignment.owned_by(STANDBY)) == 2
    for name in ("n91.1", "n92.1"):
        state = apply(state, joined(name)).state
    owners = state.assignment.owners
    speeds = tuple(
        Speed(node=node, speed=0.5 if node == STANDBY else 1.0) for node in dict.fromkeys(owners)
    )
    event = SpeedsMeasured(reporter="launcher", era=state.era, speeds=speeds)
    for _ in range(2 * ROUNDS):
        after = apply(state, event).state
        assert after.retiring is None
        if after is state:
            break
        state = after
