"""What a stranger gets from the mock of AWS of a run, and what one gets who is of the run."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from bamboo.ids import InstanceId, ZoneId
from cloud.local import http_server
from cloud.local.faults import Market
from cloud.local.http_server import Answer, Handling, LoopbackServer, Request
from cloud.local.metadata import MOST_TOKENS, PREFIX, TTL_HEADER, InstanceFacts, MetadataService
from cloud.local.mock_aws import MOST_BODY_BYTES, MockAws
from cloud.local.mock_calls import RUN_CALLS, call_of, is_among
from testbed.waiting import wait_until
from tests.mock_account import client_at
from tests.security import local_cloud
from tests.security.local_cloud import ATTACKS, Mock, main, through

pytestmark = pytest.mark.timeout(60)
ME = InstanceId("i-0123456789abcdef0")
SIGNED = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/{}/aws4_request, SignedHeaders=host"


@pytest.fixture
def metadata() -> MetadataService:
    return MetadataService()


@pytest.fixture
def aws(metadata: MetadataService) -> Iterator[MockAws]:
    mock = MockAws(metadata=metadata, market=Market({}), on_change=lambda: None, most_instances=3)
    mock.start()
    yield mock
    mock.stop()


def test_a_stranger_gets_nothing(
    aws: MockAws, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http_server, "STRANGER_S", 0.3)
    assert through(Mock(aws.url, slow_s=1.0)) == {}
    assert capfd.readouterr() == ("", ""), "nor does what a stranger sends stand in a log"


def test_what_gets_through_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script against a server that admits everybody."""
    monkeypatch.setattr(local_cloud, "ATTACKS", ATTACKS[-1:] + ATTACKS[:1])
    taken = Answer(status="200 OK", headers=(), body=b"")
    server = LoopbackServer(
        Handling(admit=lambda _: None, most_bytes=lambda _: 9999, answer=lambda _: taken), most=8
    )
    server.start()
    try:
        assert main([f"http://127.0.0.1:{server.port}"]) == 1
    finally:
        server.stop()
    said = capsys.readouterr().out
    assert said == (
        "the library behind it: GET /moto-api/data.json is answered\n"
        "many instances: 60 instances were started\n"
    )


def refused(ask: Any) -> str:
    with pytest.raises(ClientError) as caught:
        ask()
    return str(caught.value.response["Error"]["Code"])


def test_who_is_of_the_run_gets_what_a_run_needs(aws: MockAws) -> None:
    ec2 = client_at(aws.url, aws.token)
    for_one = {"ImageId": "ami-12345678", "MinCount": 1, "MaxCount": 1}
    assert len(ec2.run_instances(**for_one)["Instances"]) == 1
    assert refused(ec2.describe_vpcs) == "UnauthorizedOperation"
    assert refused(client_at(aws.url, aws.token, "iam").list_users) == "UnauthorizedOperation"
    assert refused(client_at(aws.url, aws.token, "sns").list_topics) in (
        "UnauthorizedOperation",
        "403",
    )
    other = client_at(aws.url, MetadataService().role_token)
    assert refused(other.describe_instances) == "AuthFailure"


def test_there_are_so_many_instances_and_no_more(aws: MockAws) -> None:
    """EC2 gives what it has, from the least to the most that is asked for."""
    ec2 = client_at(aws.url, aws.token)

    def launch(least: int, most: int) -> list[str]:
        made = ec2.run_instances(ImageId="ami-12345678", MinCount=least, MaxCount=most)
        return [one["InstanceId"] for one in made["Instances"]]

    first = launch(1, 2)
    assert refused(lambda: launch(2, 2)) == "InstanceLimitExceeded"
    assert len(launch(1, 60)) == 1
    assert refused(lambda: launch(1, 1)) == "InstanceLimitExceeded"
    ec2.terminate_instances(InstanceIds=first)
    assert len(launch(1, 60)) == 2


def test_a_fleet_is_given_no_more_either(metadata: MetadataService) -> None:
    aws = MockAws(
        metadata=metadata,
        market=Market({}),
        on_change=lambda: None,
        calls={*RUN_CALLS, "ec2:CreateLaunchTemplate", "ec2:DeleteLaunchTemplate"},
        most_instances=2,
    )
    aws.start()
    try:
        ec2 = client_at(aws.url, aws.token)
        image = {"ImageId": "ami-12345678"}
        ec2.create_launch_template(LaunchTemplateName="capped", LaunchTemplateData=image)
        pool = {"InstanceType": "t3.micro", "AvailabilityZone": "us-east-1a"}
        template = {"LaunchTemplateName": "capped", "Version": "$Latest"}
        made = ec2.create_fleet(
            Type="instant",
            LaunchTemplateConfigs=[{"LaunchTemplateSpecification": template, "Overrides": [pool]}],
            TargetCapacitySpecification={
                "TotalTargetCapacity": 60,
                "DefaultTargetCapacityType": "spot",
            },
        )
        ec2.delete_launch_template(LaunchTemplateName="capped")
    finally:
        aws.stop()
    assert sum(len(some["InstanceIds"]) for some in made["Instances"]) == 2
    assert [error["ErrorCode"] for error in made["Errors"]] == ["InstanceLimitExceeded"]


def asked(aws: MockAws, **headers: str) -> int:
    """The status of a look with the run's token and these headers besides."""
    known = {
        "Authorization": SIGNED.format("ec2"),
        "X-Amz-Security-Token": aws.token,
        "Content-Type": "application/x-www-form-urlencoded",
        "Host": aws.url.removeprefix("http://"),
    }
    body = b"Action=DescribeInstances&Version=2016-11-15"
    mock = Mock(aws.url)
    return mock.ask("POST", "/", body=body, headers={**known, **headers})[0]


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://attacker.example"},
        {"Origin": "null"},
        {"Host": "attacker.example"},
        {"X-Amz-Security-Token": ""},
        {"X-Amz-Security-Token": "a" * 43},
        {"Authorization": SIGNED.format("sns")},
        {"Authorization": "AWS local:0"},
        {"X-Amz-Target": "AmazonEC2.DescribeVpcs"},
        {"Content-Type": "text/plain"},
    ],
    ids=str,
)
def test_a_request_that_is_not_wholly_in_order_is_refused(
    aws: MockAws, headers: dict[str, str]
) -> None:
    assert asked(aws) == 200
    assert asked(aws, **headers) == 403


def request(
    path: str = "/", query: str = "", method: str = "POST", service: str = "ec2", **more: str
) -> Request:
    headers = {"authorization": SIGNED.format(service), **more}
    return Request(method=method, path=path, query=query, headers=headers, hang_up=lambda: None)


def test_a_call_is_read_in_one_way_or_not_at_all() -> None:
    look = {"Action": ["DescribeInstances"]}
    target = {"x-amz-target": "ServiceQuotasV20190624.GetServiceQuota"}
    assert call_of(request(), look) == "ec2:DescribeInstances"
    assert call_of(request(service="servicequotas", **target), {}) == (
        "servicequotas:GetServiceQuota"
    )
    assert call_of(request("/bucket/key", method="PUT", service="s3"), {}) == "s3:PUT"
    assert not call_of(request(), {"Action": ["DescribeInstances", "CreateVpc"]})
    assert not call_of(request(query="Action=CreateVpc"), look)
    assert not call_of(request("/moto-api/reset"), look)
    assert not call_of(request(**target), look)
    for page in ("/moto-api/data.json", "/%6doto-api/reset", "/latest/meta-data/x"):
        assert not call_of(request(page, method="GET", service="s3"), {})
    assert is_among("s3:PUT", {"s3:*"})
    assert not is_among("ec2:CreateVpc", RUN_CALLS)
    assert not is_among("", {"ec2:*"})


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 30, str(MOST_BODY_BYTES + 1), " "])
def test_a_body_of_no_length_or_too_long_is_not_read(aws: MockAws, length: str) -> None:
    head = (
        f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{aws.url.rpartition(':')[2]}\r\n"
        f"Authorization: {SIGNED.format('ec2')}\r\nX-Amz-Security-Token: {aws.token}\r\n"
    )
    for more in (f"Content-Length: {length}\r\n", "Transfer-Encoding: chunked\r\n"):
        with Mock(aws.url).connect() as line:
            line.sendall(f"{head}{more}\r\n".encode())
            assert line.recv(13) in (b"HTTP/1.1 411 ", b"HTTP/1.1 413 ")


def test_connections_are_so_many_and_strangers_go_first() -> None:
    done = threading.Event()
    answer = Answer(status="200 OK", headers=(), body=b"yes")

    def slowly(asked: Request) -> Answer:
        if asked.path == "/slow":
            done.wait(20.0)
        return answer

    def admit(asked: Request) -> Answer | None:
        return None if "me" in asked.headers else Answer(status="403 No", headers=(), body=b"")

    server = LoopbackServer(Handling(admit=admit, most_bytes=lambda _: 0, answer=slowly), most=4)
    server.start()
    known = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    slow = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    lines: list[socket.socket] = []
    try:
        slow.request("GET", "/slow", headers={"me": "1"})
        for _ in range(2):  # the second time over the same connection
            known.request("GET", "/", headers={"me": "1"})
            assert known.getresponse().read() == b"yes"
        kept = known.sock
        lines += [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
        wait_until(
            lambda: sum(1 for line in lines if is_open(line)) <= 2,
            what="all strangers but two are hung up on",
        )
        known.request("GET", "/", headers={"me": "1"})
        assert known.getresponse().read() == b"yes"
        assert known.sock is kept
        done.set()
        assert slow.getresponse().read() == b"yes"
    finally:
        done.set()
        for line in (*lines, known, slow):
            line.close()
        server.stop()


def is_open(line: socket.socket) -> bool:
    line.setblocking(False)
    try:
        return bool(line.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def facts() -> InstanceFacts:
    return InstanceFacts(
        instance=ME,
        zone=ZoneId("us-east-1a"),
        region="us-east-1",
        instance_type="g4dn.xlarge",
        lifecycle="spot",
        private_ip="127.0.0.1",
        user_data="",
    )


def test_the_key_of_an_instance_is_its_own_and_long(
    aws: MockAws, metadata: MetadataService
) -> None:
    prefix = metadata.add(facts())
    key = prefix.removeprefix(f"{PREFIX}{ME}-")
    assert len(key) == 32
    mock, ttl = Mock(aws.url), {TTL_HEADER: "60"}
    host = {"Host": aws.url.removeprefix("http://")}
    token = f"{prefix}/latest/api/token"
    assert mock.ask("PUT", token, headers=ttl)[0] == 200
    assert mock.ask("PUT", token, headers={**ttl, "Origin": "http://x"})[0] == 403
    assert mock.ask("PUT", token, headers={**ttl, "Host": "x"})[0] == 403
    assert mock.ask("PUT", token, headers={**ttl, **host})[0] == 200
    for wrong in ("", f"{ME}", f"{ME}-", f"{ME}-{key[:-1]}", f"{ME}-{'0' * 32}", f"-{key}", "-"):
        assert mock.ask("PUT", f"{PREFIX}{wrong}/latest/api/token", headers=ttl)[0] == 404


def test_tokens_of_one_instance_are_so_many(metadata: MetadataService) -> None:
    prefix = metadata.add(facts())
    path, ttl = f"{prefix}/latest/api/token", {TTL_HEADER: "60"}
    made = [metadata.respond("PUT", path, ttl).body for _ in range(MOST_TOKENS + 1)]
    where = f"{prefix}/latest/meta-data/instance-id"
    shown = [
        metadata.respond("GET", where, {"x-aws-ec2-metadata-token": token}).status for token in made
    ]
    assert shown == [401] + [200] * MOST_TOKENS


def test_the_instances_role_has_the_runs_token(metadata: MetadataService) -> None:
    prefix = metadata.add(facts())
    token = metadata.respond("PUT", f"{prefix}/latest/api/token", {TTL_HEADER: "60"}).body
    where = f"{prefix}/latest/meta-data/iam/security-credentials/bamboo-node"
    body = metadata.respond("GET", where, {"x-aws-ec2-metadata-token": token}).body
    assert json.loads(body)["Token"] == metadata.role_token
