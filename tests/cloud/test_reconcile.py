"""The pure plan: what is missing, what is surplus, which pool is asked, and the sentences."""

from hypothesis import example, given
from hypothesis import strategies as st

from bamboo.ids import InstanceId, ZoneId
from cloud.provider import InstanceState, Market, Observed, Offer, Pool
from cloud.reconcile import (
    POOL_OUT_S,
    Budget,
    Desired,
    PoolMemory,
    Start,
    Terminate,
    Wait,
    reconcile,
)

A = Pool(instance_type="g5.xlarge", zone=ZoneId("us-east-1a"), market=Market.SPOT)
B = Pool(instance_type="g5.xlarge", zone=ZoneId("us-east-1b"), market=Market.SPOT)
D = Pool(instance_type="g5.xlarge", zone=ZoneId("us-east-1a"), market=Market.ON_DEMAND)
OFFERS = (Offer(pool=A, usd_per_hour=0.4), Offer(pool=B, usd_per_hour=0.5))


def instance(
    number: int, *, state: InstanceState = InstanceState.RUNNING, pool: Pool = A
) -> Observed:
    return Observed(
        instance=InstanceId(f"i-{number}"),
        pool=pool,
        state=state,
        launched_at_s=float(number),
        token="t",
        interrupted=False,
    )


def planned(count, observed=(), *, memory=None, unwanted=(), offers=OFFERS, now_s=100.0, zones=()):
    return reconcile(
        desired=Desired(count=count, unwanted=frozenset(unwanted), zones=dict(zones)),
        observed=observed,
        offers=offers,
        memory=memory or PoolMemory(),
        now_s=now_s,
    )


def test_nothing_to_do_when_all_are_there() -> None:
    assert planned(2, [instance(1), instance(2, state=InstanceState.PENDING)]) == ()


@given(
    desired=st.builds(
        lambda count, zone_b, anchors: Desired(
            count=count, zones={B.zone: zone_b}, anchors=anchors
        ),
        st.integers(0, 8),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    here=st.lists(st.sampled_from((A, B, D)), max_size=8),
    new=st.integers(0, 8),
    out=st.sets(st.sampled_from((A, B, D))),
)
@example(desired=Desired(count=3, anchors=2), here=[], new=2, out={D})
def test_no_more_are_started_than_may_be(desired, here, new, out) -> None:
    """And what may not be changes nothing else: the same ones end."""
    plans = [
        reconcile(
            desired=desired,
            observed=[instance(n, pool=pool) for n, pool in enumerate(here)],
            offers=(*OFFERS, Offer(pool=D, usd_per_hour=1.0)),
            budget=Budget(new=limit),
            memory=PoolMemory(out_until_s=tuple((pool, 200.0) for pool in sorted(out, key=str))),
            now_s=100.0,
        )
        for limit in (new, None)
    ]
    few, all_ = (sum(a.count for a in plan if isinstance(a, Start)) for plan in plans)
    assert few == min(new, all_)
    ends = [[a for a in plan if isinstance(a, Terminate)] for plan in plans]
    assert ends[0] == ends[1]


def test_all_that_is_missing_is_asked_of_the_cheapest_pool() -> None:
    (start,) = planned(4, [instance(1), instance(2, state=InstanceState.TERMINATED)])
    assert start == Start(
        pool=A,
        count=3,
        reason="3 of 4 missing: spot g5.xlarge in us-east-1a is the cheapest usable offer "
        "at $0.4000/h",
    )


def test_a_pool_without_capacity_is_passed_over_for_three_minutes() -> None:
    memory = PoolMemory().with_out(A, now_s=100.0)
    (start,) = planned(1, memory=memory, now_s=100.0 + POOL_OUT_S - 1)
    assert isinstance(start, Start)
    assert start.pool == B
    assert "spot g5.xlarge in us-east-1a had no capacity" in start.reason
    (later,) = planned(1, memory=memory, now_s=100.0 + POOL_OUT_S)
    assert isinstance(later, Start)
    assert later.pool == A


def test_when_every_pool_is_out_it_waits_for_the_earliest() -> None:
    memory = PoolMemory().with_out(A, now_s=90.0).with_out(B, now_s=100.0)
    (wait,) = planned(2, memory=memory)
    assert isinstance(wait, Wait)
    assert (wait.missing, wait.until_s) == (2, 90.0 + POOL_OUT_S)
    assert "asking again in 170 s" in wait.reason


def test_without_any_offer_it_says_so() -> None:
    (wait,) = planned(1, offers=())
    assert wait == Wait(
        missing=1, until_s=None, reason="1 of 1 missing and there is no offer at all"
    )


def test_surplus_ends_youngest_first() -> None:
    actions = planned(1, [instance(2), instance(3), instance(1)])
    assert [a.instance for a in actions if isinstance(a, Terminate)] == ["i-3", "i-2"]
    assert actions[0].reason == "surplus: 3 run, 1 wanted"


def test_an_unwanted_instance_ends_and_is_replaced() -> None:
    end, start = planned(2, [instance(1), instance(2)], unwanted=[InstanceId("i-1")])
    assert end == Terminate(instance=InstanceId("i-1"), reason="the run does not want it any more")
    assert isinstance(start, Start)
    assert start.count == 1


ZONES = {A.zone: 2, B.zone: 2}


def test_each_zone_is_asked_for_what_it_lacks() -> None:
    first, second = planned(4, [instance(1)], zones=ZONES)
    assert (first.pool, first.count) == (A, 1)
    assert (second.pool, second.count) == (B, 2)
    assert first.reason == (
        "1 of the 1 that us-east-1a lacks: spot g5.xlarge in us-east-1a is its cheapest usable "
        "offer at $0.4000/h"
    )
    # Of fewer than they lack together, each gets its share.
    assert [(s.pool, s.count) for s in planned(2, zones=ZONES)] == [(A, 1), (B, 1)]


def test_a_zone_asks_its_cheapest_usable_type() -> None:
    other = Pool(instance_type="g6.xlarge", zone=B.zone, market=Market.SPOT)
    offers = (*OFFERS, Offer(pool=other, usd_per_hour=0.6))
    lacking = [instance(1), instance(2), instance(3, pool=B)]
    memory = PoolMemory().with_out(B, now_s=100.0)
    (start,) = planned(4, lacking, zones=ZONES, memory=memory, offers=offers)
    assert start.pool == other


def test_what_a_zone_cannot_give_comes_from_the_cheapest_pool() -> None:
    memory = PoolMemory().with_out(B, now_s=100.0)
    first, rest = planned(4, zones=ZONES, memory=memory)
    assert (first.pool, first.count) == (A, 2)
    assert (rest.pool, rest.count) == (A, 2)
    # They stay where they are when the other zone has capacity again.
    assert planned(4, [instance(n) for n in range(4)], zones=ZONES) == ()


def test_surplus_ends_where_there_are_too_many() -> None:
    running = [instance(1), instance(2), instance(3), instance(4, pool=B), instance(5, pool=B)]
    (end,) = planned(4, running, zones=ZONES)
    assert end.instance == "i-3"


@given(
    count=st.integers(0, 8),
    states=st.lists(st.sampled_from(InstanceState), max_size=10),
    unwanted=st.sets(st.integers(0, 9)),
    out=st.sets(st.sampled_from([A, B])),
    zones=st.dictionaries(st.sampled_from([A.zone, B.zone]), st.integers(0, 6)),
)
def test_carrying_the_plan_out_reaches_what_is_desired(count, states, unwanted, out, zones) -> None:
    observed = [instance(i, state=state, pool=(A, B)[i % 2]) for i, state in enumerate(states)]
    memory = PoolMemory()
    for pool in out:
        memory = memory.with_out(pool, now_s=100.0)
    ids = [InstanceId(f"i-{i}") for i in unwanted]
    actions = planned(count, observed, unwanted=ids, memory=memory, zones=zones)
    ended = {a.instance for a in actions if isinstance(a, Terminate)}
    live = {o.instance for o in observed if o.state.live}
    assert ended <= live
    assert live & set(ids) <= ended
    started = sum(a.count for a in actions if isinstance(a, Start))
    waiting = sum(a.missing for a in actions if isinstance(a, Wait))
    assert len(live - ended) + started + waiting == count
    assert all(a.pool not in out for a in actions if isinstance(a, Start))
