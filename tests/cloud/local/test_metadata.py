"""The metadata service's contract, seen raw and through the client that agents use."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from botocore.utils import InstanceMetadataFetcher

from bamboo.errors import InputError
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


def test_role_credentials_have_the_form_that_boto3_reads(service, prefix) -> None:
    key = token(service, prefix)
    below = "/latest/meta-data/iam/security-credentials/"
    assert get(service, prefix, below, key) == (200, ROLE)
    raw = json.loads(get(service, prefix, below + ROLE, key)[1])
    assert {"Code", "AccessKeyId", "SecretAccessKey", "Token", "Expiration"} <= raw.keys()


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


def test_without_a_service_there_is_no_identity_and_no_notice() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = f"http://127.0.0.1:{unused.getsockname()[1]}"
        imds = Imds(f"{place}/imds/{ME}-its-key")
        assert imds.notice() is None
        with pytest.raises(InputError, match=f"no metadata service answers at {place};"):
            imds.identity()
        imds.close()


def test_a_service_that_hangs_costs_two_seconds_and_no_more(monkeypatch) -> None:
    monkeypatch.setattr("cloud.ec2.imds.DEADLINE_S", 0.2)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        imds = Imds(f"http://127.0.0.1:{mute.getsockname()[1]}")
        answers: list[object] = []
        asking = threading.Thread(target=lambda: answers.append(imds.notice()))
        asking.start()
        asking.join(timeout=5)
        assert answers == [None]
        imds.close()


def test_an_endpoint_that_is_no_http_address_is_refused() -> None:
    with pytest.raises(InputError, match="is no http address"):
        Imds.from_environment({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "file:///etc"})


def test_the_raw_service_answers_like_the_real_one() -> None:
    service = MetadataService()
    with served(service) as url:
        parts = urlsplit(url + service.add(facts()))
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
        connection.request("GET", parts.path + "/latest/meta-data/instance-id")
        response = connection.getresponse()
        response.read()
        assert response.status == 401
        connection.request("PUT", parts.path + "/latest/api/token", headers={TTL_HEADER: "60"})
        response = connection.getresponse()
        key = response.read().decode()
        assert (response.status, response.getheader(TTL_HEADER)) == (200, "60")
        connection.request("GET", parts.path + ACTION, headers={TOKEN_HEADER: key})
        response = connection.getresponse()
        response.read()
        assert response.status == 404
        connection.close()
