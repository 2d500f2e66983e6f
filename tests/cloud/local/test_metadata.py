"""The metadata service's contract, seen raw and through the client that agents use."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from botocore.utils import InstanceMetadataFetcher

from bamboo.ids import InstanceId, ZoneId
from cloud.ec2.imds import Imds
from cloud.local.faults import Market
from cloud.local.metadata import (
    ROLE,
    TOKEN_HEADER,
    TTL_HEADER,
    InstanceFacts,
    MetadataService,
)
from cloud.local.mock_aws import MockAws

ME = InstanceId("i-1")
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class Clock:
    now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(clock: Clock) -> MetadataService:
    return MetadataService(now=clock)


@pytest.fixture
def prefix(service: MetadataService) -> str:
    return service.add(facts())


def facts(instance: InstanceId = ME) -> InstanceFacts:
    return InstanceFacts(
        instance=instance,
        zone=ZoneId("us-east-1b"),
        region="us-east-1",
        instance_type="g5.xlarge",
        lifecycle="spot",
        private_ip="10.0.0.4",
        user_data="",
    )


def token(service: MetadataService, prefix: str, *, ttl: str = "60") -> str:
    response = service.respond("PUT", prefix + "/latest/api/token", {TTL_HEADER: ttl})
    assert response.status == 200
    return response.body


def get(service: MetadataService, prefix: str, path: str, key: str):
    response = service.respond("GET", prefix + path, {TOKEN_HEADER: key})
    return response.status, response.body


@pytest.mark.parametrize("ttl", [None, "", "0", "21601", "soon"])
def test_a_token_needs_a_sensible_lifetime(service, prefix, ttl) -> None:
    headers = {} if ttl is None else {TTL_HEADER: ttl}
    assert service.respond("PUT", prefix + "/latest/api/token", headers).status == 400


def test_without_a_living_token_nothing_is_told(service, prefix, clock) -> None:
    path = "/latest/meta-data/instance-id"
    assert get(service, prefix, path, "")[0] == 401
    key = token(service, prefix, ttl="60")
    assert get(service, prefix, path, key) == (200, ME)
    clock.now_s += 60
    assert get(service, prefix, path, key)[0] == 401


def test_one_instances_token_opens_nothing_of_another(service, prefix) -> None:
    other = service.add(facts(InstanceId("i-2")))
    key = token(service, prefix)
    assert get(service, other, "/latest/meta-data/instance-id", key)[0] == 401


def test_a_stranger_and_a_gone_instance_get_404(service, prefix) -> None:
    assert service.respond("PUT", "/imds/i-9/latest/api/token", {TTL_HEADER: "60"}).status == 404
    service.remove(ME)
    response = service.respond("PUT", prefix + "/latest/api/token", {TTL_HEADER: "60"})
    assert response.status == 404


def test_notices_are_404_until_they_are_there(service, prefix, clock) -> None:
    key = token(service, prefix)
    assert get(service, prefix, ACTION, key)[0] == 404
    assert get(service, prefix, REBALANCE, key)[0] == 404
    service.notice(ME, at_s=clock.now_s + 120)
    status, body = get(service, prefix, ACTION, key)
    assert (status, json.loads(body)) == (
        200,
        {"action": "terminate", "time": "2027-01-15T08:02:00Z"},
    )
    status, body = get(service, prefix, REBALANCE, key)
    assert json.loads(body) == {"noticeTime": "2027-01-15T08:00:00Z"}


def test_advice_comes_without_a_notice(service, prefix) -> None:
    key = token(service, prefix)
    service.advise(ME)
    assert get(service, prefix, ACTION, key)[0] == 404
    status, body = get(service, prefix, REBALANCE, key)
    assert (status, json.loads(body)) == (200, {"noticeTime": "2027-01-15T08:00:00Z"})


@contextmanager
def served(service: MetadataService) -> Iterator[str]:
    aws = MockAws(metadata=service, market=Market({}), on_change=lambda: None)
    aws.start()
    try:
        yield aws.url
    finally:
        aws.stop()


def test_the_client_reads_identity_and_notice_over_http() -> None:
    service = MetadataService()
    with served(service) as url:
        imds = Imds(url + service.add(facts()))
        assert imds.identity().instance == ME
        assert imds.identity().zone == "us-east-1b"
        assert imds.identity().address == "10.0.0.4"
        assert imds.notice() is None
        assert not imds.advised()
        service.advise(ME)
        assert imds.notice() is None
        assert imds.advised()
        service.notice(ME, at_s=1_900_000_000.9)
        notice, again = imds.notice(), imds.notice()
        assert notice is not None
        assert notice == again
        assert notice.at_s == 1_900_000_000.0
        service.notice(ME, at_s=1_900_000_100)
        other = imds.notice()
        assert other is not None
        assert other.id != notice.id
        imds.close()


def test_the_client_fetches_a_new_token_when_its_own_has_run_out(clock) -> None:
    service = MetadataService(now=clock)
    with served(service) as url:
        imds = Imds(url + service.add(facts()))
        assert imds.get("/latest/meta-data/instance-id") == ME
        clock.now_s += 30_000
        assert imds.get("/latest/meta-data/instance-id") == ME
        assert imds.get("/latest/meta-data/nothing") is None
        imds.close()


def test_boto3_takes_role_credentials_from_it() -> None:
    service = MetadataService()
    with served(service) as url:
        fetcher = InstanceMetadataFetcher(
            base_url=url + service.add(facts()), timeout=2, num_attempts=1
        )
        credentials = fetcher.retrieve_iam_role_credentials()
    assert credentials["access_key"].startswith("ASIA")
    assert credentials["role_name"] == ROLE
