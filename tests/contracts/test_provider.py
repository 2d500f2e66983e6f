"""One contract for every seller of instances: the fake one, EC2's code against the mock, by image
by launch template and with its looks written down, and EC2's code against an account, where
BAMBOO_TEST_AWS names a template.

On an account it costs some cents: t3.micro, of which each test ends what it started."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from bamboo.ids import InstanceId, RunId
from cloud.provider import (
    CloudUnavailable,
    HeldKind,
    InstanceState,
    LaunchSpec,
    Market,
    RefusalKind,
)
from testbed.waiting import wait_until
from tests.contracts.provider_worlds import (
    OUT,
    POOLS,
    PRICES,
    World,
    account_world,
    ec2_fleet_world,
    ec2_world,
    fake_fleet_world,
    fake_world,
    recorded_world,
)

KINDS = list(HeldKind)


def _worlds(made: Callable[[], Iterator[World]], run: RunId) -> Iterator[World]:
    for world in made():
        yield world
        world.provider.terminate([o.instance for o in world.provider.describe(run)])


@pytest.fixture(
    params=[
        *(fake_world, fake_fleet_world, ec2_world, ec2_fleet_world, recorded_world, account_world)
    ],
    ids=["fake", "fake-fleet", "ec2", "ec2-fleet", "recorded", "account"],
)
def world(request: pytest.FixtureRequest, run: RunId) -> Iterator[World]:
    yield from _worlds(request.param, run)


@pytest.fixture(
    params=[fake_fleet_world, ec2_fleet_world, account_world],
    ids=["fake-fleet", "ec2-fleet", "account"],
)
def broad(request: pytest.FixtureRequest, run: RunId) -> Iterator[World]:
    """Those that take a wish over several pools."""
    yield from _worlds(request.param, run)


def refuse(world: World, code: str, zone: str = "", grant: int = 0) -> None:
    if world.refuse is None:
        pytest.skip("an account cannot be told to refuse")
    world.refuse(code, zone, grant)


@pytest.fixture
def run(request: pytest.FixtureRequest) -> RunId:
    """A run of its own for each test: the mock keeps its instances as long as the process."""
    return RunId(f"run-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:12]}")


def spec(run: RunId, count: int = 2, *, zone: str = "us-east-1a", token: str = "1") -> LaunchSpec:
    return LaunchSpec(
        run=run,
        pool=POOLS[zone],
        count=count,
        token=f"{run}-{token}",
        expires_at_s=1_800_000_000,
    )


def test_offers_come_cheapest_first(world: World) -> None:
    offers = world.provider.offers()
    assert {o.pool for o in offers} == set(POOLS.values())
    assert [o.usd_per_speed for o in offers] == sorted(o.usd_per_speed for o in offers)
    if world.refuse is not None:
        assert [(o.pool.zone, o.usd_per_hour) for o in offers] == [
            ("us-east-1b", 0.2),
            ("us-east-1a", 0.3),
        ]


def test_a_launch_gives_what_was_asked_and_describe_shows_it(world: World, run: RunId) -> None:
    asked = spec(run, 3)
    answer = world.provider.launch([asked])
    assert answer.refusals == ()
    assert {one.pool for one in answer.launched} == {asked.pool}
    shown = world.provider.describe(run)
    assert [o.instance for o in shown] == sorted(one.instance for one in answer.launched)
    for one in shown:
        assert (one.pool, one.token, one.interrupted) == (asked.pool, asked.token, False)
        assert one.state.live


def test_the_same_token_never_starts_a_second_set(world: World, run: RunId) -> None:
    first = world.provider.launch([spec(run)])
    again = world.provider.launch([spec(run)])
    assert {o.instance for o in again.launched} == {o.instance for o in first.launched}
    assert len(world.provider.describe(run)) == 2


def test_a_pool_without_capacity_is_a_refusal_and_starts_nothing(world: World, run: RunId) -> None:
    refuse(world, OUT, "us-east-1a", 0)
    answer = world.provider.launch([spec(run), spec(run, zone="us-east-1b", token="2")])
    (refusal,) = answer.refusals
    assert (refusal.kind, refusal.code, refusal.missing) == (RefusalKind.POOL_OUT, OUT, 2)
    assert refusal.spec.pool.zone == "us-east-1a"
    assert [one.pool.zone for one in answer.launched] == ["us-east-1b"] * 2
    assert len(world.provider.describe(run)) == 2


def test_a_pool_may_give_a_part(world: World, run: RunId) -> None:
    refuse(world, OUT, "us-east-1a", 1)
    answer = world.provider.launch([spec(run, 3)])
    assert len(answer.launched) == 1
    assert [(r.kind, r.missing) for r in answer.refusals] == [(RefusalKind.POOL_OUT, 2)]


def test_a_refusal_for_good_is_told_apart(world: World, run: RunId) -> None:
    refuse(world, "InvalidAMIID.NotFound", "", 0)
    answer = world.provider.launch([spec(run)])
    assert [r.kind for r in answer.refusals] == [RefusalKind.REFUSED]


def test_a_terminated_instance_stays_in_sight_and_is_not_live(world: World, run: RunId) -> None:
    first, second = world.provider.launch([spec(run)]).launched
    world.provider.terminate([first.instance])
    shown = {o.instance: o for o in world.provider.describe(run)}
    assert not shown[first.instance].state.live
    assert not shown[first.instance].interrupted
    assert shown[second.instance].state.live


def test_terminating_twice_is_fine_and_what_nobody_knows_is_told(world: World, run: RunId) -> None:
    (only,) = world.provider.launch([spec(run, 1)]).launched
    unknown = InstanceId("i-00000000000000000")
    assert world.provider.terminate([unknown]) == (unknown,)
    assert world.provider.terminate([unknown, only.instance]) == (unknown,)
    assert world.provider.terminate([only.instance]) == ()
    assert world.provider.terminate([]) == ()
    (shown,) = world.provider.describe(run)
    assert not shown.state.live


def test_the_expiry_of_an_instance_can_be_moved(world: World, run: RunId) -> None:
    asked = spec(run, count=2)
    first, second = (one.instance for one in world.provider.launch([asked]).launched)
    world.provider.prolong([first], expires_at_s=asked.expires_at_s + 3600)
    world.provider.prolong([], expires_at_s=1)
    moved = {o.instance: o.expires_at_s for o in world.provider.describe(run)}
    assert moved == {first: asked.expires_at_s + 3600, second: asked.expires_at_s}
    world.provider.terminate([first])
    world.provider.prolong([first], expires_at_s=asked.expires_at_s + 7200)
    world.provider.prolong([InstanceId("i-0123456789abcdef0")], expires_at_s=1)


def test_an_interruption_is_told_apart_from_our_own_end(world: World, run: RunId) -> None:
    (only,) = world.provider.launch([spec(run, 1)]).launched
    if world.interrupt is None:
        pytest.skip("an account cannot be told to interrupt")
    world.interrupt(only.instance)
    (shown,) = world.provider.describe(run)
    assert (shown.state, shown.interrupted) == (InstanceState.TERMINATED, True)


def test_on_demand_instances_are_bought_as_such(world: World, run: RunId) -> None:
    pool = replace(POOLS["us-east-1a"], market=Market.ON_DEMAND)
    world.provider.launch([replace(spec(run, 1), pool=pool)])
    (shown,) = world.provider.describe(run)
    assert shown.pool == pool


def test_another_run_is_out_of_sight(world: World, run: RunId) -> None:
    world.provider.launch([spec(run)])
    assert world.provider.describe(RunId(f"{run}-other")) == ()


def over_both(run: RunId, count: int = 2, *, token: str = "1") -> LaunchSpec:
    """A wish that any of the two pools may grant, the second one first."""
    first = spec(run, count, zone="us-east-1b", token=token)
    return replace(first, alternatives=(POOLS["us-east-1a"],))


def test_a_wish_over_pools_is_granted_by_the_preferred_one(broad: World, run: RunId) -> None:
    answer = broad.provider.launch([over_both(run)])
    assert len(answer.launched) == 2
    assert answer.refusals == ()
    shown = broad.provider.describe(run)
    assert {o.instance: o.pool for o in shown} == {o.instance: o.pool for o in answer.launched}
    if broad.refuse is not None:  # an account takes whichever it has
        assert {o.pool.zone for o in shown} == {"us-east-1b"}
    assert {o.token for o in shown} == {over_both(run).token}


@pytest.mark.parametrize("out", ["us-east-1a", "us-east-1b"])
def test_each_pool_exhausted_in_turn_the_other_gives(broad: World, run: RunId, out: str) -> None:
    refuse(broad, OUT, out)
    answer = broad.provider.launch([over_both(run, 3)])
    (other,) = {"us-east-1a", "us-east-1b"} - {out}
    assert [one.pool.zone for one in answer.launched] == [other] * 3


def test_errors_and_instances_come_in_one_answer(broad: World, run: RunId) -> None:
    refuse(broad, OUT, "us-east-1b", 0)
    refuse(broad, OUT, "us-east-1a", 2)
    answer = broad.provider.launch([over_both(run, 3)])
    assert [one.pool.zone for one in answer.launched] == ["us-east-1a"] * 2
    assert {(r.pool.zone, r.code, r.missing) for r in answer.refusals} == {
        ("us-east-1a", OUT, 1),
        ("us-east-1b", OUT, 1),
    }
    assert {r.kind for r in answer.refusals} == {RefusalKind.POOL_OUT}
    assert len(broad.provider.describe(run)) == 2


def test_all_pools_exhausted_start_nothing(broad: World, run: RunId) -> None:
    for zone in PRICES:
        refuse(broad, OUT, zone)
    answer = broad.provider.launch([over_both(run)])
    assert answer.launched == ()
    assert {r.pool for r in answer.refusals} == set(POOLS.values())
    assert broad.provider.describe(run) == ()


def test_the_same_token_never_starts_a_second_set_of_a_fleet(broad: World, run: RunId) -> None:
    first = broad.provider.launch([over_both(run)])
    again = broad.provider.launch([over_both(run)])
    assert {o.instance for o in again.launched} == {o.instance for o in first.launched}
    assert len(broad.provider.describe(run)) == 2


def test_a_lost_answer_of_a_fleet_is_told_again(broad: World, run: RunId) -> None:
    _lost_and_told_again(broad, over_both(run))


def test_a_lost_answer_is_told_again_for_the_same_token(world: World, run: RunId) -> None:
    _lost_and_told_again(world, spec(run))


def _lost_and_told_again(world: World, wish: LaunchSpec) -> None:
    if world.lose is None:
        pytest.skip("an account cannot be told to lose an answer")
    world.lose()
    with pytest.raises(CloudUnavailable):
        world.provider.launch([wish])
    assert len(world.provider.describe(wish.run)) == 2
    assert len(world.provider.launch([wish]).launched) == 2
    assert len(world.provider.describe(wish.run)) == 2


def test_throttling_of_a_launch_is_told_apart(world: World, run: RunId) -> None:
    refuse(world, "RequestLimitExceeded")
    answer = world.provider.launch([spec(run)])
    assert [r.kind for r in answer.refusals] == [RefusalKind.THROTTLED]
    assert world.provider.describe(run) == ()


def test_what_is_held_is_tagged_from_its_birth_and_ends_when_released(
    world: World, run: RunId
) -> None:
    wish = over_both(run) if world.provider.several_pools else spec(run)
    launched = {one.instance for one in world.provider.launch([wish]).launched}
    held = world.provider.held(run)
    assert {one.id for one in held if one.kind is HeldKind.INSTANCE} == launched
    for one in held:
        assert (one.run, one.expires_at_s) == (run, 1_800_000_000)
        assert one.since_s is not None or one.kind is HeldKind.FLEET  # the mock has none of it
    assert set(held) <= set(world.provider.held(None))
    assert [one.kind for one in held] == sorted((one.kind for one in held), key=KINDS.index)
    world.provider.release(held)
    world.provider.release(held)  # they have ended: fine
    wait_until(
        lambda: not [one for one in world.provider.held(run) if not one.attached_to],
        what="nothing is held",
        timeout_s=60.0,
    )
    assert not any(o.state.live for o in world.provider.describe(run))


def test_nothing_is_held_for_a_run_that_never_was(world: World) -> None:
    assert world.provider.held(RunId("never-was")) == ()
    world.provider.release(())
