"""The draw: from seed, minutes and job alone, complete, in order, and over in time."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.chaos.draw import MANNERS, Kind, draw
from bamboo.chaos.whom import Target, hit
from bamboo.errors import InputError

SEEDS = st.integers(min_value=0, max_value=2**32)
MINUTES = st.floats(min_value=0.6, max_value=60.0)
"""The longest that a first fault may take is over by then."""


@given(seed=SEEDS, minutes=MINUTES)
def test_the_same_swarm_again_and_all_of_it_is_over_in_time(seed: int, minutes: float) -> None:
    faults = draw(seed, minutes=minutes, lease_s=3.0)
    assert faults == draw(seed, minutes=minutes, lease_s=3.0)
    assert [fault.number for fault in faults] == list(range(1, len(faults) + 1))
    assert all(later.at_s > fault.at_s for fault, later in pairwise(faults))
    assert all(0 < fault.at_s <= fault.over_s <= 60 * minutes for fault in faults)


@given(seed=SEEDS, minutes=MINUTES)
def test_a_longer_swarm_begins_as_the_shorter_one(seed: int, minutes: float) -> None:
    short, long = (draw(seed, minutes=m, lease_s=3.0) for m in (minutes, minutes + 5.0))
    assert long[: len(short)] == short


@given(seed=SEEDS)
def test_every_kind_comes_and_none_more_often_than_it_may(seed: int) -> None:
    kinds = [fault.kind for fault in draw(seed, minutes=60.0, lease_s=3.0)]
    assert set(kinds) == set(Kind)
    assert all(kinds.count(kind) <= manner.most for kind, manner in MANNERS.items())


@given(seed=SEEDS, lease_s=st.floats(min_value=2.0, max_value=20.0))
def test_a_stop_is_past_the_lease_a_stall_is_not_and_a_cut_is_early(
    seed: int, lease_s: float
) -> None:
    for fault in draw(seed, minutes=20.0, lease_s=lease_s):
        if fault.kind is Kind.STOP_WORKER:
            assert fault.lasts_s >= lease_s + 1.0
        if fault.kind is Kind.STALL_WORKER:
            assert fault.lasts_s <= 1.0
        if fault.kind is Kind.NOTICE_CUT_SHORT:
            assert 0 < fault.cut_s < fault.lasts_s


@given(seed=SEEDS)
def test_what_needs_time_alone_has_it(seed: int) -> None:
    for fault, later in pairwise(draw(seed, minutes=30.0, lease_s=3.0)):
        manner = MANNERS[fault.kind]
        if manner.alone:
            assert later.at_s - fault.over_s >= manner.rest.least - 1e-6


def test_two_seeds_are_two_swarms() -> None:
    assert draw(1, minutes=5.0, lease_s=3.0) != draw(2, minutes=5.0, lease_s=3.0)


@pytest.mark.parametrize("minutes", [0.0, -1.0, 1e9, float("nan"), float("inf")])
def test_minutes_that_are_none_are_refused(minutes: float) -> None:
    why = "longer than a swarm may go on" if minutes > 0 else "leaves no time for a fault"
    with pytest.raises(InputError, match=f"--minutes .* {why}; take more than 0"):
        draw(1, minutes=minutes, lease_s=3.0)


@pytest.mark.parametrize("seed", range(20))
def test_minutes_that_leave_no_fault_are_refused_with_those_that_leave_one(seed: int) -> None:
    with pytest.raises(InputError) as refused:
        draw(seed, minutes=0.01, lease_s=3.0)
    said = re.fullmatch(
        rf"--minutes 0.01 leaves no time for a fault: the first of seed {seed} is over after "
        r"[\d.]+ s; take ([\d.]+) or more, or another --seed",
        str(refused.value),
    )
    assert said is not None, str(refused.value)
    least = float(said[1])
    assert draw(seed, minutes=least, lease_s=3.0)
    with pytest.raises(InputError, match="leaves no time for a fault"):
        draw(seed, minutes=least - 0.011, lease_s=3.0)


# ---------------------------------------------------------------- whom


def targets() -> list[Target]:
    """Two pipelines of three stages over two zones, one standby, one that has not joined."""
    owners = [
        Target(
            instance=f"i-{pipeline}{stage}",
            zone="a" if stage < 2 else "b",
            agent=100 + 10 * pipeline + stage,
            worker=200 + 10 * pipeline + stage,
            slots=((pipeline, stage),),
        )
        for pipeline in range(2)
        for stage in range(3)
    ]
    standby = Target(instance="i-s", zone="b", agent=130, worker=230)
    return [*owners, standby, Target(instance="i-t", zone="a", agent=140)]


@given(seed=SEEDS, order=st.permutations(targets()))
def test_whom_it_hits_is_not_a_matter_of_the_order_they_are_told_in(
    seed: int, order: list[Target]
) -> None:
    for fault in draw(seed, minutes=5.0, lease_s=3.0):
        assert hit(fault, order) == hit(fault, targets())


@given(seed=SEEDS)
def test_each_kind_hits_those_it_is_meant_for(seed: int) -> None:
    there = targets()
    for fault in draw(seed, minutes=30.0, lease_s=3.0):
        found = hit(fault, there)
        match fault.kind:
            case Kind.STOP_STORE | Kind.KILL_STORE | Kind.WIPE_STORE | Kind.KILL_LAUNCHER:
                assert found == ()
            case Kind.KILL_ALL | Kind.NOTHING_LEFT:
                assert len(found) == len(there)
            case Kind.KILL_HALF | Kind.NO_CAPACITY | Kind.NOTICE_TO_MANY:
                assert len(set(found)) == len(there) // 2
            case Kind.KILL_ZONE:
                (zone,) = {target.zone for target in found}
                assert set(found) == {target for target in there if target.zone == zone}
            case Kind.KILL_NEIGHBOURS:
                stages = [target.slots[0][1] for target in found]
                assert len({target.slots[0][0] for target in found}) == 1
                assert all((a + 1) % 3 == b for a, b in pairwise(stages))
                assert len(stages) in (2, 3)
            case Kind.DISK_FULL:
                assert len(found) == 7
            case _:
                assert len(found) == 1


def test_where_a_pipeline_is_one_node_those_of_several_are_neighbours() -> None:
    flat = [
        Target(instance=f"i-{d}", zone="a", agent=2 * d, worker=2 * d + 1, slots=((d, 0),))
        for d in range(4)
    ]
    faults = [one for seed in range(20) for one in draw(seed, minutes=30.0, lease_s=3.0)]
    hits = [hit(one, flat) for one in faults if one.kind is Kind.KILL_NEIGHBOURS]
    assert {len(set(found)) for found in hits} == {2, 3}


@given(seed=SEEDS)
def test_nobody_is_noticed_or_stopped_twice(seed: int) -> None:
    worn = [
        Target(instance="i-0", zone="a", agent=1, worker=2, noticed=True, stopped=True),
        Target(instance="i-1", zone="a", agent=3),
    ]
    for fault in draw(seed, minutes=30.0, lease_s=3.0):
        names = [target.instance for target in hit(fault, worn)]
        if fault.kind.startswith("notice"):
            assert names == ["i-1"]
        if fault.kind in (
            Kind.STOP_WORKER,
            Kind.STALL_WORKER,
            Kind.SLOW_WORKER,
            Kind.KILL_WORKER,
        ):
            assert names == []
