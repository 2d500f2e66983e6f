"""What AWS's refusals, silences and many pages become when it is asked for prices."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from cloud.ec2.prices import ATTEMPTS, Ec2Prices, type_facts
from cloud.local.faults import Market
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from cloud.provider import CloudRefused, CloudThrottled, CloudUnavailable
from tests.cloud.ec2.aws_answers import answer, ec2_error, instead, json_error, quota
from tests.mock_account import ACCOUNT_CALLS, variables_of

SPOT = {"g4dn.xlarge": {"us-east-1a": 0.2, "us-east-1b": 0.3}, "g5.xlarge": {"us-east-1b": 0.4}}
TYPES = tuple(SPOT)
HISTORY = "DescribeSpotPriceHistory"


@pytest.fixture(scope="module")
def account() -> Iterator[MockAws]:
    aws = MockAws(
        metadata=MetadataService(),
        market=Market(SPOT),
        on_change=lambda: None,
        calls=ACCOUNT_CALLS,
    )
    aws.start()
    yield aws
    aws.stop()


@pytest.fixture
def prices(account: MockAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ec2Prices]:
    for name, value in variables_of(account.url, account.token).items():
        monkeypatch.setenv(name, value)
    with closing(Ec2Prices.connect(region="us-east-1", endpoint_url=account.url)) as source:
        yield source


def test_all_pages_are_read(prices: Ec2Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = instead(prices._ec2, HISTORY, lambda: None)
    monkeypatch.setattr(
        "cloud.ec2.prices.PAGE",
        {"describe_spot_price_history": 1, "describe_instance_types": 100},
    )
    assert prices.read(TYPES, quotas=[]).spot == SPOT
    assert len(calls) == 3


def test_throttling_is_waited_for_and_then_said(prices: Ec2Prices) -> None:
    refusals = [ec2_error("RequestLimitExceeded", status=503) for _ in range(ATTEMPTS - 1)]
    calls = instead(prices._ec2, HISTORY, lambda: refusals.pop() if refusals else None)
    assert prices.read(TYPES, quotas=[]).spot == SPOT
    assert len(calls) == ATTEMPTS
    refusals += [ec2_error("RequestLimitExceeded", status=503) for _ in range(ATTEMPTS)]
    with pytest.raises(CloudThrottled, match=f"{HISTORY}: RequestLimitExceeded: said so"):
        prices.read(TYPES, quotas=[])


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("UnauthorizedOperation", 403, CloudRefused),
        ("AuthFailure", 401, CloudRefused),
        ("InternalError", 500, CloudUnavailable),
    ],
)
@pytest.mark.parametrize("action", ["DescribeAvailabilityZones", "DescribeInstanceTypes", HISTORY])
def test_a_refusal_of_any_call_names_it(
    prices: Ec2Prices, action: str, code: str, status: int, error: type[Exception]
) -> None:
    instead(prices._ec2, action, lambda: ec2_error(code, status=status))
    with pytest.raises(error, match=f"{action}: {code}: said so"):
        prices.read(TYPES, quotas=[])


def test_the_deadline_is_of_all_calls_together(prices: Ec2Prices) -> None:
    def late(*times_s: float) -> Ec2Prices:
        times = iter(times_s)
        return Ec2Prices(
            ec2=prices._ec2,
            quotas=prices._quotas,
            region="us-east-1",
            clock=lambda: next(times),
            deadline_s=9.0,
        )

    for on_time, action in enumerate(
        ["DescribeAvailabilityZones", "DescribeInstanceTypes", HISTORY]
    ):
        with pytest.raises(CloudUnavailable, match=f"{action} was not over after 9 s"):
            late(0.0, *[9.0] * on_time, 9.1).read(TYPES, quotas=[])
    seen = late(0.0, 1.0, 1.0, 1.0, 9.0, 9.1).read(TYPES, quotas=["L-1", "L-2", "L-3"])
    assert (seen.spot, set(seen.quotas)) == (SPOT, {"L-1"})
    assert seen.notes[0].startswith("quotas from L-2 on were not read: GetServiceQuota was not ov")


def test_a_quota_that_was_never_raised_is_that_of_every_account(prices: Ec2Prices) -> None:
    instead(prices._quotas, "GetServiceQuota", lambda: json_error("NoSuchResourceException"))
    instead(prices._quotas, "GetAWSDefaultServiceQuota", lambda: quota(0))
    seen = prices.read(TYPES, quotas=["L-1", "L-2"])
    assert (seen.quotas, seen.notes) == ({"L-1": 0.0, "L-2": 0.0}, ())


def test_quotas_that_may_not_be_read_are_a_note_and_the_prices_are_there(
    prices: Ec2Prices,
) -> None:
    left = [quota(8)]
    instead(
        prices._quotas,
        "GetServiceQuota",
        lambda: left.pop() if left else json_error("AccessDeniedException"),
    )
    seen = prices.read(TYPES, quotas=["L-1", "L-2", "L-3"])
    assert (seen.spot, seen.quotas) == (SPOT, {"L-1": 8.0})
    (note,) = seen.notes
    assert note.startswith("quotas from L-2 on were not read: ")
    assert "AccessDenied" in note


def test_an_answer_without_prices_is_no_pool(prices: Ec2Prices) -> None:
    empty = f"<{HISTORY}Response><spotPriceHistorySet/><nextToken/></{HISTORY}Response>"
    instead(prices._ec2, HISTORY, lambda: answer(empty))
    seen = prices.read(TYPES, quotas=[])
    assert (seen.spot, set(seen.facts)) == ({}, set(TYPES))


def test_an_endpoint_that_does_not_answer_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with (
            closing(Ec2Prices.connect(region="us-east-1", endpoint_url=nowhere)) as source,
            pytest.raises(CloudUnavailable, match="DescribeAvailabilityZones got no answer"),
        ):
            source.read(TYPES, quotas=[])


def test_facts_of_odd_types() -> None:
    raw = {
        "InstanceType": "x",
        "VCpuInfo": {"DefaultVCpus": 96},
        "NetworkInfo": {"NetworkCards": [{"BaselineBandwidthInGbps": 100.0}] * 4},
        "GpuInfo": {"Gpus": [{"Name": "A100", "Count": 8, "MemoryInfo": {"SizeInMiB": 40960}}]},
    }
    facts = type_facts(raw)
    assert facts is not None
    assert (facts.gpus, facts.gpu_memory_mib, facts.network_gbps) == (8, 40960, 400.0)
    unsaid = type_facts({**raw, "NetworkInfo": {"NetworkCards": [{}]}})
    assert unsaid is not None
    assert unsaid.network_gbps is None
    assert type_facts({**raw, "GpuInfo": {}}) is None
    shared = [{"Name": "L4", "Count": 0, "MemoryInfo": {"SizeInMiB": 2861}}]
    assert type_facts({**raw, "GpuInfo": {"Gpus": shared}}) is None
