"""The sellers of instances that the contract of `test_provider` is asked of."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from botocore.exceptions import ClientError

from bamboo.ids import InstanceId, ZoneId
from cloud.ec2.provider import Ec2Provider
from cloud.ec2.requests import Ec2Settings
from cloud.fake import FakeProvider, ScriptedRefusal
from cloud.local.faults import CapacityFault
from cloud.local.faults import Market as MockMarket
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from cloud.local.mock_calls import RUN_CALLS
from cloud.provider import Market, Offer, Pool, Provider, RefusalKind
from cloud.recorder import Recorded
from tests.mock_account import client_at

KIND = os.environ.get("BAMBOO_TEST_AWS_TYPE", "t3.micro")
ZONES = ("us-east-1a", "us-east-1b")
PRICES = dict(zip(ZONES, (0.3, 0.2), strict=True))
POOLS = {zone: Pool(instance_type=KIND, zone=ZoneId(zone), market=Market.SPOT) for zone in PRICES}
OUT = "InsufficientInstanceCapacity"
TEMPLATE = "bamboo-contract"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A provider, and what only the cloud itself can do; None: it cannot be told to."""

    provider: Provider
    interrupt: Callable[[InstanceId], Any] | None
    refuse: Callable[[str, str, int], Any] | None
    """Code, zone, and how many are given all the same."""
    lose: Callable[[], Any] | None = None
    """The answer to the next launch, which is carried out."""


def fake_world(*, several: bool = False) -> Iterator[World]:
    provider = FakeProvider(
        listed=tuple(Offer(pool=POOLS[z], usd_per_hour=usd) for z, usd in PRICES.items()),
        several_pools=several,
    )
    kinds = {OUT: RefusalKind.POOL_OUT, "RequestLimitExceeded": RefusalKind.THROTTLED}

    def refuse(code: str, zone: str, grant: int) -> None:
        kind = kinds.get(code, RefusalKind.REFUSED)
        provider.script.append(ScriptedRefusal(kind=kind, code=code, zone=zone, grant=grant))

    def lose() -> None:
        provider.loses_answers += 1

    yield World(provider=provider, interrupt=provider.interrupt, refuse=refuse, lose=lose)


def fake_fleet_world() -> Iterator[World]:
    return fake_world(several=True)


def ec2_world(settings: Ec2Settings | None = None) -> Iterator[World]:
    market = MockMarket({KIND: PRICES})
    calls = RUN_CALLS if settings is None else {*RUN_CALLS, "ec2:CreateLaunchTemplate"}
    aws = MockAws(metadata=MetadataService(), market=market, on_change=lambda: None, calls=calls)
    aws.start()
    provider = Ec2Provider.connect(
        settings=settings or Ec2Settings(region="us-east-1", image="ami-12345678"),
        instance_types=[KIND],
        zones=list(PRICES),
        markets=[Market.SPOT],
        on_demand_usd_per_hour={},
        endpoint_url=aws.url,
        token=aws.token,
    )
    if settings is not None:
        make_template(aws)

    def refuse(code: str, zone: str, grant: int) -> None:
        market.inject(CapacityFault(code=code, zone=zone, grant=grant))

    def lose() -> None:
        market.inject(CapacityFault(lost=True))

    try:
        yield World(provider=provider, interrupt=aws.interrupt, refuse=refuse, lose=lose)
    finally:
        provider.close()
        aws.stop()


def ec2_fleet_world() -> Iterator[World]:
    return ec2_world(Ec2Settings(region="us-east-1", launch_template=TEMPLATE))


def recorded_world() -> Iterator[World]:
    with TemporaryDirectory() as folder:
        for world in ec2_world():
            yield replace(world, provider=Recorded(world.provider, Path(folder) / "cloud.jsonl"))


def make_template(aws: MockAws) -> None:
    client = client_at(aws.url, aws.token)
    with suppress(ClientError):  # moto keeps it as long as the process
        client.create_launch_template(
            LaunchTemplateName=TEMPLATE, LaunchTemplateData={"ImageId": "ami-12345678"}
        )
    client.close()


def account_world() -> Iterator[World]:
    template = os.environ.get("BAMBOO_TEST_AWS", "")
    if not template:
        pytest.skip("no AWS account: set BAMBOO_TEST_AWS to a launch template of us-east-1")
    provider = Ec2Provider.connect(
        settings=Ec2Settings(region="us-east-1", launch_template=template),
        instance_types=[KIND],
        zones=list(PRICES),
        markets=[Market.SPOT],
        on_demand_usd_per_hour={},
    )
    yield World(provider=provider, interrupt=None, refuse=None)
    provider.close()
