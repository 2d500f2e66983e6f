"""One contract for every seller of instances: the fake one, and EC2's code against the mock."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from bamboo.ids import InstanceId, RunId, ZoneId
from cloud.ec2.provider import Ec2Provider
from cloud.ec2.requests import Ec2Settings
from cloud.fake import FakeProvider, ScriptedRefusal
from cloud.local.faults import CapacityFault
from cloud.local.faults import Market as MockMarket
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from cloud.provider import (
    InstanceState,
    LaunchSpec,
    Market,
    Offer,
    Pool,
    Provider,
    RefusalKind,
)

PRICES = {"us-east-1a": 0.3, "us-east-1b": 0.2}
POOLS = {
    zone: Pool(instance_type="g4dn.xlarge", zone=ZoneId(zone), market=Market.SPOT)
    for zone in PRICES
}
OUT = "InsufficientInstanceCapacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A provider, and the two things that only the cloud itself can do."""

    provider: Provider
    interrupt: Callable[[InstanceId], Any]
    refuse: Callable[[str, str, int], Any]
    """Code, zone, and how many are given all the same."""


def fake_world() -> Iterator[World]:
    provider = FakeProvider(
        listed=tuple(Offer(pool=POOLS[z], usd_per_hour=usd) for z, usd in PRICES.items())
    )

    def refuse(code: str, zone: str, grant: int) -> None:
        kind = RefusalKind.POOL_OUT if code == OUT else RefusalKind.REFUSED
        provider.script.append(ScriptedRefusal(kind=kind, code=code, zone=zone, grant=grant))

    yield World(provider=provider, interrupt=provider.interrupt, refuse=refuse)


def ec2_world() -> Iterator[World]:
    market = MockMarket({"g4dn.xlarge": PRICES})
    aws = MockAws(metadata=MetadataService(), market=market, on_change=lambda: None)
    aws.start()
    provider = Ec2Provider.connect(
        settings=Ec2Settings(region="us-east-1", image="ami-12345678"),
        instance_types=["g4dn.xlarge"],
        zones=list(PRICES),
        market=Market.SPOT,
        on_demand_usd_per_hour={},
        endpoint_url=aws.url,
    )

    def refuse(code: str, zone: str, grant: int) -> None:
        market.inject(CapacityFault(code=code, zone=zone, grant=grant))

    try:
        yield World(provider=provider, interrupt=aws.interrupt, refuse=refuse)
    finally:
        provider.close()
        aws.stop()


@pytest.fixture(params=[fake_world, ec2_world], ids=["fake", "ec2"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    yield from request.param()


@pytest.fixture
def run(request: pytest.FixtureRequest) -> RunId:
    """A run of its own for each test: the mock keeps its instances as long as the process."""
    return RunId(f"run-{abs(hash(request.node.nodeid)):x}")


def spec(run: RunId, count: int = 2, *, zone: str = "us-east-1a", token: str = "1") -> LaunchSpec:
    return LaunchSpec(
        run=run,
        pool=POOLS[zone],
        count=count,
        token=f"{run}-{token}",
        expires_at_s=1_800_000_000,
    )


def test_offers_come_cheapest_first(world: World) -> None:
    assert [(o.pool.zone, o.usd_per_hour) for o in world.provider.offers()] == [
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
    world.refuse(OUT, "us-east-1a", 0)
    answer = world.provider.launch([spec(run), spec(run, zone="us-east-1b", token="2")])
    (refusal,) = answer.refusals
    assert (refusal.kind, refusal.code, refusal.missing) == (RefusalKind.POOL_OUT, OUT, 2)
    assert refusal.spec.pool.zone == "us-east-1a"
    assert [one.pool.zone for one in answer.launched] == ["us-east-1b"] * 2
    assert len(world.provider.describe(run)) == 2


def test_a_pool_may_give_a_part(world: World, run: RunId) -> None:
    world.refuse(OUT, "us-east-1a", 1)
    answer = world.provider.launch([spec(run, 3)])
    assert len(answer.launched) == 1
    assert [(r.kind, r.missing) for r in answer.refusals] == [(RefusalKind.POOL_OUT, 2)]


def test_a_refusal_for_good_is_told_apart(world: World, run: RunId) -> None:
    world.refuse("InvalidAMIID.NotFound", "", 0)
    answer = world.provider.launch([spec(run)])
    assert [r.kind for r in answer.refusals] == [RefusalKind.REFUSED]


def test_a_terminated_instance_stays_in_sight_and_is_not_live(world: World, run: RunId) -> None:
    first, second = world.provider.launch([spec(run)]).launched
    world.provider.terminate([first.instance])
    shown = {o.instance: o for o in world.provider.describe(run)}
    assert not shown[first.instance].state.live
    assert not shown[first.instance].interrupted
    assert shown[second.instance].state.live


def test_terminating_twice_or_what_nobody_knows_is_fine(world: World, run: RunId) -> None:
    (only,) = world.provider.launch([spec(run, 1)]).launched
    unknown = InstanceId("i-00000000000000000")
    world.provider.terminate([unknown])
    world.provider.terminate([unknown, only.instance])
    world.provider.terminate([only.instance])
    world.provider.terminate([])
    (shown,) = world.provider.describe(run)
    assert not shown.state.live


def test_an_interruption_is_told_apart_from_our_own_end(world: World, run: RunId) -> None:
    (only,) = world.provider.launch([spec(run, 1)]).launched
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
