"""One contract for whoever knows prices: the fake one, and the AWS code against the mock."""

from collections.abc import Iterator

import pytest

from bamboo.ports import PriceSource, PricesSeen, TypeFacts
from cloud.ec2.prices import Ec2Prices
from cloud.fake import FakePrices
from cloud.local.faults import Market
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from tests.mock_account import ACCOUNT_CALLS, variables_of

REGION = "us-east-1"
G, P5 = "L-3819A6DF", "L-C4BD4855"
SPOT = {
    "g4dn.xlarge": {"us-east-1a": 0.2, "us-east-1b": 0.3},
    "g5.xlarge": {"us-east-1b": 0.4},
}
QUOTAS = {G: 64.0, P5: 0.0}
ZONE_IDS = {"us-east-1a": "use1-az6", "us-east-1b": "use1-az1"}


def fake_source(monkeypatch: pytest.MonkeyPatch) -> Iterator[PriceSource]:
    def facts(gpu: str, memory_mib: int, network_gbps: float) -> TypeFacts:
        return TypeFacts(
            gpu=gpu, gpus=1, gpu_memory_mib=memory_mib, vcpus=4, network_gbps=network_gbps
        )

    yield FakePrices(
        PricesSeen(
            region=REGION,
            zone_ids=ZONE_IDS,
            facts={"g4dn.xlarge": facts("T4", 16384, 5), "g5.xlarge": facts("A10G", 22888, 2.5)},
            spot=SPOT,
            quotas=QUOTAS,
        )
    )


def ec2_source(monkeypatch: pytest.MonkeyPatch) -> Iterator[PriceSource]:
    strange = {"m5.large": {"us-east-1a": 0.01}, "g6.xlarge": {"us-west-2a": 0.1}}
    aws = MockAws(
        metadata=MetadataService(),
        market=Market({**SPOT, **strange}),
        on_change=lambda: None,
        quotas=QUOTAS,
        calls=ACCOUNT_CALLS,
    )
    aws.start()
    for name, value in variables_of(aws.url, aws.token).items():
        monkeypatch.setenv(name, value)
    source = Ec2Prices.connect(region=REGION, endpoint_url=aws.url)
    try:
        yield source
    finally:
        source.close()
        aws.stop()


@pytest.fixture(params=[fake_source, ec2_source], ids=["fake", "ec2"])
def source(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PriceSource]:
    yield from request.param(monkeypatch)


def test_what_a_region_asks_for_its_types(source: PriceSource) -> None:
    seen = source.read(["g5.xlarge", "g4dn.xlarge", "p9.huge"], quotas=[G, P5])
    assert seen.region == REGION
    assert ZONE_IDS.items() <= seen.zone_ids.items()
    assert seen.spot == SPOT
    assert {name: f.gpu for name, f in seen.facts.items()} == {
        "g4dn.xlarge": "T4",
        "g5.xlarge": "A10G",
    }
    assert [(f.gpus, f.vcpus) for f in seen.facts.values()] == [(1, 4)] * 2
    assert seen.facts["g4dn.xlarge"].network_gbps == 5
    assert seen.facts["g5.xlarge"].gpu_memory_mib == 22888
    assert seen.quotas == QUOTAS


def test_only_what_was_asked_for_is_answered(source: PriceSource) -> None:
    seen = source.read(["g5.xlarge"], quotas=[])
    assert (set(seen.facts), set(seen.spot), seen.quotas) == ({"g5.xlarge"}, {"g5.xlarge"}, {})
    none = source.read(["p9.huge"], quotas=[])
    assert (none.facts, none.spot) == ({}, {})
