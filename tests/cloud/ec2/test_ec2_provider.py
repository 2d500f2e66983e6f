"""What EC2's refusals, silences and lies become: our own errors, with a remedy."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import pytest

from bamboo.ids import InstanceId, RunId, ZoneId
from cloud.ec2.provider import Ec2Provider, observed
from cloud.ec2.requests import Ec2Settings
from cloud.local.faults import CapacityFault
from cloud.local.faults import Market as MockMarket
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from cloud.provider import (
    CloudRefused,
    CloudThrottled,
    CloudUnavailable,
    InstanceState,
    LaunchAnswer,
    LaunchSpec,
    Market,
    Pool,
    RefusalKind,
    WishHeard,
)
from tests.cloud.ec2.aws_answers import answer, ec2_error, instead

POOL = Pool(instance_type="g5.xlarge", zone=ZoneId("us-east-1a"), market=Market.SPOT)


def connect(
    endpoint_url: str | None,
    token: str = "",
    *,
    launch_timeout_s: float = 30.0,
    ceilings: Mapping[str, float] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Ec2Provider:
    return Ec2Provider.connect(
        settings=Ec2Settings(region="us-east-1", image="ami-12345678"),
        instance_types=["g5.xlarge"],
        zones=["us-east-1a"],
        markets=[Market.SPOT],
        on_demand_usd_per_hour={},
        endpoint_url=endpoint_url,
        token=token,
        launch_timeout_s=launch_timeout_s,
        ceilings=ceilings,
        note=note,
    )


def spec(token: str = "t") -> LaunchSpec:
    return LaunchSpec(
        run=RunId("errors"), pool=POOL, count=1, token=token, expires_at_s=1_800_000_000
    )


@pytest.fixture
def market() -> MockMarket:
    return MockMarket({})


@pytest.fixture
def provider(market: MockMarket) -> Iterator[Ec2Provider]:
    aws = MockAws(metadata=MetadataService(), market=market, on_change=lambda: None)
    aws.start()
    provider = connect(aws.url, aws.token)
    yield provider
    provider.close()
    aws.stop()


def test_a_launch_is_asked_once_and_no_more(provider, market) -> None:
    # The library would take this 5xx for a hiccup, ask again and succeed.
    market.inject(CapacityFault(code="InsufficientInstanceCapacity", count=1))
    assert len(provider.launch([spec("once")]).refusals) == 1
    assert len(provider.launch([spec("twice")]).launched) == 1


def test_throttling_is_a_refusal_that_blames_no_pool(provider, market) -> None:
    market.inject(CapacityFault(code="RequestLimitExceeded"))
    (refusal,) = provider.launch([spec()]).refusals
    assert refusal.kind is RefusalKind.THROTTLED


@pytest.mark.parametrize("code", ["AuthFailure", "UnauthorizedOperation", "ExpiredToken"])
def test_refused_credentials_are_an_input_error(provider, market, code) -> None:
    market.inject(CapacityFault(code=code))
    with pytest.raises(CloudRefused, match=f"EC2 refuses RunInstances: {code}") as caught:
        provider.launch([spec()])
    assert caught.value.exit_code == 2


def test_a_broken_service_is_unavailable(provider, market) -> None:
    market.inject(CapacityFault(code="InternalError"))
    with pytest.raises(CloudUnavailable, match="InternalError"):
        provider.launch([spec()])


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ("<html>Bad Gateway</html>", 502, CloudUnavailable),
        ("", 503, CloudUnavailable),
        ("upstream timed out", 504, CloudUnavailable),
        ("cut off", 200, CloudUnavailable),
        ("<html>Request Timeout</html>", 408, CloudUnavailable),
        ("<html>Too Many Requests</html>", 429, CloudThrottled),
        ("<html>Forbidden</html>", 403, CloudRefused),
    ],
)
def test_an_answer_of_what_stands_in_front_of_ec2_goes_by_its_status(
    provider, body, status, error
) -> None:
    for call in ("RunInstances", "DescribeInstances"):
        instead(
            provider._launcher if call == "RunInstances" else provider._reader,
            call,
            lambda: answer(body, status=status),
        )
    with pytest.raises(error):
        provider.describe(RunId("errors"))
    if error is CloudUnavailable:
        with pytest.raises(error):
            provider.launch([spec()])
    else:
        (refusal,) = provider.launch([spec()]).refusals
        kind = RefusalKind.THROTTLED if error is CloudThrottled else RefusalKind.REFUSED
        assert refusal.kind is kind


def test_a_5xx_with_a_code_for_capacity_blames_the_pool(provider) -> None:
    instead(provider._launcher, "RunInstances", lambda: ec2_error("VcpuLimitExceeded", status=500))
    (refusal,) = provider.launch([spec()]).refusals
    assert refusal.kind is RefusalKind.POOL_OUT


def test_a_token_that_has_another_request_was_heard(provider) -> None:
    refused = ec2_error("IdempotentParameterMismatch")
    instead(provider._launcher, "RunInstances", lambda: refused)
    with pytest.raises(WishHeard, match="IdempotentParameterMismatch"):
        provider.launch([spec()])


def test_a_token_whose_instances_have_ended_comes_to_nothing_and_blames_no_pool(provider) -> None:
    instead(provider._launcher, "RunInstances", lambda: ec2_error("IdempotentInstanceTerminated"))
    assert provider.launch([spec()]) == LaunchAnswer(launched=(), refusals=())


def test_what_was_launched_before_a_failure_is_not_lost(provider, market) -> None:
    first = provider.launch([spec("kept")])
    market.inject(CapacityFault(code="InternalError"))
    both = provider.launch([spec("kept"), spec("broken")])
    assert both.launched == first.launched
    assert both.refusals == ()


def test_an_endpoint_that_does_not_answer_is_unavailable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        provider = connect(f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(CloudUnavailable, match="RunInstances got no answer"):
            provider.launch([spec()])
        provider.close()


def test_missing_credentials_name_the_remedy(monkeypatch, tmp_path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    provider = connect(None)
    with pytest.raises(CloudRefused, match="aws configure"):
        provider.launch([spec()])
    provider.close()


def test_a_stopped_instance_is_not_live(provider) -> None:
    (launched,) = provider.launch([spec("seen")]).launched
    (raw,) = [
        instance
        for page in provider._reader.describe_instances(InstanceIds=[launched.instance])[
            "Reservations"
        ]
        for instance in page["Instances"]
    ]
    assert observed(raw).instance == launched.instance
    stopped = observed({**raw, "State": {"Name": "stopped"}})
    assert (stopped.state, stopped.state.live) == (InstanceState.SHUTTING_DOWN, False)
    provider.terminate([InstanceId(launched.instance)])


def test_an_instance_that_is_shown_on_two_pages_is_there_once(provider, monkeypatch) -> None:
    provider.launch([spec()])
    shown = provider.describe(RunId("errors"))
    assert shown
    plain = provider._reader.get_paginator

    class Twice:
        def paginate(self, **asked):
            return [*plain("describe_instances").paginate(**asked)] * 2

    monkeypatch.setattr(provider._reader, "get_paginator", lambda name: Twice())
    assert provider.describe(RunId("errors")) == shown


def test_a_slow_answer_is_unavailable_and_the_same_token_tells_it(market) -> None:
    metadata = MetadataService()
    held_up = threading.Event()
    aws = MockAws(metadata=metadata, market=market, on_change=lambda: held_up.wait(5.0) or None)
    aws.start()
    provider = connect(aws.url, aws.token, launch_timeout_s=0.3)
    with pytest.raises(CloudUnavailable, match="RunInstances got no answer"):
        provider.launch([spec("slow")])
    held_up.set()
    assert len(provider.launch([spec("slow")]).launched) == 1
    seen = [o for o in provider.describe(RunId("errors")) if o.token == "slow"]
    assert len(seen) == 1
    provider.close()
    aws.stop()


@pytest.mark.parametrize("call", ["held", "describe"])
@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("RequestLimitExceeded", 503, CloudThrottled),
        ("InternalError", 500, CloudUnavailable),
        ("UnauthorizedOperation", 403, CloudRefused),
    ],
)
def test_a_look_that_is_refused_is_told_by_its_kind(provider, call, code, status, error) -> None:
    asked = instead(provider._reader, "DescribeInstances", lambda: ec2_error(code, status=status))
    with pytest.raises(error, match=code):
        getattr(provider, call)(RunId("errors"))
    assert len(asked) == 1, "whoever has a loop asks again, the library does not"


def test_a_pool_whose_price_is_none_is_no_offer_and_is_said_once() -> None:
    prices = {"g5.xlarge": {"us-east-1a": 1.7}}
    aws = MockAws(metadata=MetadataService(), market=MockMarket(prices), on_change=lambda: None)
    aws.start()
    told: list[str] = []
    with closing(
        connect(aws.url, aws.token, ceilings={"g5.xlarge": 1.006}, note=told.append)
    ) as provider:
        assert [provider.offers(), provider.offers()] == [(), ()]
    with closing(connect(aws.url, aws.token, note=told.append)) as provider:
        assert [offer.usd_per_hour for offer in provider.offers()] == [1.7]
    assert told == [
        "g5.xlarge on spot in us-east-1a is left out: 1.7 USD is above the on-demand price of "
        "1.006 USD"
    ]
    aws.stop()
