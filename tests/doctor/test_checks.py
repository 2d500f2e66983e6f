"""`bamboo doctor`: each check good and at fault, on this machine and in a mock account."""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import redis
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from bamboo.config.tree import CloudConfig, ClusterConfig, JobConfig, Subnet
from bamboo.coord.redis_store import StoreSeen
from bamboo.doctor import checks_here
from bamboo.doctor.checks import Finding, Result, examine
from bamboo.doctor.checks_account import AccountChecks
from bamboo.doctor.checks_here import disk_finding, gpu_finding, python_finding, store_finding
from bamboo.errors import BambooError
from bamboo.sites.account.account_ready import BOOT_FILES
from cli import main
from cloud.ec2 import account as ec2_account
from cloud.ec2.account import SPOT_ROLE
from cloud.local.faults import Market
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from testbed.store_server import start_admin_store, start_store
from tests.coord import refuser
from tests.jobs import tiny_job
from tests.mock_account import ACCOUNT_CALLS, variables_of
from tests.tls_store import free_port

REGION = "us-west-2"
"""Where no other test leaves anything: the mock is one for the process."""
HERE = ["python", "gpu", "loopback", "limits", "disk", "store"]
G_SPOT = "L-3819A6DF"
TEMPLATE, BUCKET = "doctor-worker", "doctor-bucket"
JOB = JobConfig(
    cloud=CloudConfig(
        provider="ec2",
        region=REGION,
        zones=(f"{REGION}a", f"{REGION}b"),
        launch_template=TEMPLATE,
        bucket=BUCKET,
    ),
    cluster=ClusterConfig(stages=4, standbys=1),
    file="job.toml",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    image: str

    def client(self, service: str) -> Any:
        return boto3.session.Session(region_name=REGION).client(service)


@pytest.fixture
def quotas() -> dict[str, float]:
    return {G_SPOT: 20.0}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quotas: dict) -> Iterator[World]:
    market = Market({"g4dn.xlarge": {f"{REGION}a": 0.2, f"{REGION}b": 0.2}})
    aws = MockAws(
        metadata=MetadataService(),
        market=market,
        on_change=lambda: None,
        quotas=quotas,
        calls=ACCOUNT_CALLS,
    )
    aws.start()
    for name, value in variables_of(aws.url, aws.token).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "cloud.toml"))
    monkeypatch.delenv("BAMBOO_REDIS_URL", raising=False)
    session = boto3.session.Session(region_name=REGION)  # with this account's credentials
    ec2, s3 = session.client("ec2"), session.client("s3")
    image = ec2.register_image(Name="worker", RootDeviceName="/dev/xvda")["ImageId"]
    ec2.create_launch_template(LaunchTemplateName=TEMPLATE, LaunchTemplateData={"ImageId": image})
    names = [f"boot/{n}" for n in BOOT_FILES]
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    for name in names:
        s3.put_object(Bucket=BUCKET, Key=name, Body=b"-")
    yield World(image=image)
    for name in names:
        s3.delete_object(Bucket=BUCKET, Key=name)
    s3.delete_bucket(Bucket=BUCKET)
    ec2.delete_launch_template(LaunchTemplateName=TEMPLATE)
    ec2.deregister_image(ImageId=image)
    aws.stop()


def found_of(job: JobConfig = JOB, *, needed: bool = True, **more: Any) -> Mapping[str, Finding]:
    return dict(examine(AccountChecks(job=job, needed=needed, **more).checks()))


def found_by(check: str, job: JobConfig = JOB, *, needed: bool = True, **more: Any) -> Finding:
    """The same of one check alone: nine of them ask the account dozens of things."""
    checks = AccountChecks(job=job, needed=needed, **more).checks()
    return dict(examine([one for one in checks if one.name == check]))[check]


def cloud(**keys: Any) -> JobConfig:
    return replace(JOB, cloud=replace(JOB.cloud, **keys))


def test_an_account_with_all_that_a_job_needs(world: World) -> None:
    found = found_of()
    assert found["spot role"].result is Result.WARNING
    assert "create-service-linked-role" in found["spot role"].remedy
    # The mock gives a role that it makes by itself another name than IAM does.
    iam = world.client("iam")
    iam.create_role(RoleName=SPOT_ROLE, AssumeRolePolicyDocument="{}")
    found = found_of()
    iam.delete_role(RoleName=SPOT_ROLE)
    assert {name: one.result for name, one in found.items()} == dict.fromkeys(
        (
            *("credentials", "clock", "region", "quotas", "spot role", "image", "network"),
            *("bucket", "rights"),
        ),
        Result.GOOD,
    )
    assert "arn:aws:" in found["credentials"].sentence
    assert found["quotas"].lines[0].startswith("5 g4dn.xlarge need 20 vCPUs of the quota")
    assert world.image in found["image"].sentence
    assert "default ones" in found["network"].sentence
    assert "tried dry, and would be done" in found["rights"].sentence
    assert not world.client("ec2").describe_instances()["Reservations"]
    assert "rights" not in found_of(needed=False)


@pytest.mark.usefixtures("world")
def test_a_right_that_lacks_is_a_fault_before_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    send = BaseClient._make_api_call

    def answer(client: Any, operation: str, arguments: Any) -> Any:
        if operation != "CreateFleet":
            return send(client, operation, arguments)
        assert arguments["DryRun"] is True
        body = {"Error": {"Code": "UnauthorizedOperation", "Message": "You are not " + "x" * 999}}
        raise ClientError(body, operation)

    monkeypatch.setattr(BaseClient, "_make_api_call", answer)
    found = found_by("rights")
    assert found.result is Result.FAULT
    assert found.sentence.startswith("CreateFleet: UnauthorizedOperation: You are not xxx")
    assert len(found.sentence) <= 300
    assert "launcher_policy" in found.remedy


MISSING: tuple[tuple[Mapping[str, Any], str, str, str], ...] = (
    ({"zones": (f"{REGION}a", f"{REGION}x")}, "region", f"no {REGION}x", "cloud.zones of"),
    ({"anchors": 1}, "quotas", "5 nodes of g4dn.xlarge", "Service Quotas"),
    ({"launch_template": "none"}, "image", "no launch template none", "bamboo init"),
    ({"launch_template": "lt-0123456789abcdef0"}, "image", "no launch", "bamboo init"),
    ({"image": "ami-00000000"}, "image", "ami-00000000: not there", "cloud.image"),
    ({"image": "resolve:ssm:/no/such"}, "image", "/no/such: not there", "cloud.image"),
    ({"subnets": (Subnet(zone=f"{REGION}a", id="subnet-0"),)}, "network", "not there", "init"),
    ({"bucket": ""}, "bucket", "is empty", "bamboo init"),
    ({"zones": ("nowhere-1a",)}, "network", "nowhere-1a has no default", "cloud.subnets"),
)


@pytest.mark.usefixtures("world")
def test_what_is_missing_is_a_fault_with_a_remedy() -> None:
    for keys, check, says, remedy in MISSING:
        found = found_by(check, cloud(**keys))
        assert found.result is Result.FAULT, keys
        assert says in found.sentence
        assert remedy in found.remedy


def test_rights_that_a_load_balancer_hides_are_not_known(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = BaseClient._make_api_call

    def answer(client: Any, operation: str, arguments: Any) -> Any:
        if operation != "RunInstances":
            return send(client, operation, arguments)
        status = {"HTTPStatusCode": 502}
        raise ClientError({"Error": {"Code": "502"}, "ResponseMetadata": status}, operation)

    monkeypatch.setattr(BaseClient, "_make_api_call", answer)
    assert found_by("rights").result is Result.UNKNOWN


def test_a_subnet_in_another_zone_is_a_fault(world: World) -> None:
    subnets = world.client("ec2").describe_subnets()["Subnets"]
    name = next(one["SubnetId"] for one in subnets if one["AvailabilityZone"] == f"{REGION}a")
    good = cloud(subnets=(Subnet(zone=f"{REGION}a", id=name),))
    assert found_by("network", good).result is Result.GOOD
    wrong = cloud(subnets=(Subnet(zone=f"{REGION}b", id=name),))
    assert f"is in {REGION}a, not {REGION}b" in found_by("network", wrong).sentence


def test_a_bucket_without_a_boot_file_is_a_fault_before_the_launch(world: World) -> None:
    world.client("s3").delete_object(Bucket=BUCKET, Key="boot/deadman.sh")
    found = found_by("bucket")
    assert found.result is Result.FAULT
    assert "lacks deadman.sh in boot/" in found.sentence
    assert "bamboo init --apply" in found.remedy


def test_an_image_by_parameter_is_followed(world: World) -> None:
    ssm = world.client("ssm")
    ssm.put_parameter(Name="/image", Value=world.image, Type="String", Overwrite=True)
    assert found_by("image", cloud(image="resolve:ssm:/image")).result is Result.GOOD


@pytest.mark.parametrize("quotas", [{}])
def test_a_new_account_is_told_what_to_ask_for(world: World) -> None:
    found = found_by("quotas")
    assert found.result is Result.FAULT
    assert "this account has 0" in found.lines[0]
    found = found_by("quotas", needed=False)
    assert found.result is Result.WARNING
    assert any("All G and VT Spot" in line and "0 vCPUs" in line for line in found.lines)


def test_without_a_job_some_quota_is_enough(world: World) -> None:
    assert found_by("quotas", needed=False).result is Result.GOOD


def test_a_clock_that_is_off_is_a_fault(world: World) -> None:
    found = found_by("clock", now=lambda: time.time() - 400.0)
    assert found.result is Result.FAULT
    assert "NTP" in found.remedy
    assert "+" in found.sentence


def test_an_account_that_does_not_answer_is_unknown_in_every_check(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(ec2_account, "ATTEMPTS", 1)
    monkeypatch.setattr("cloud.ec2.prices.ATTEMPTS", 1)
    found = dict(found_of())
    assert {one.result for one in found.values()} == {Result.UNKNOWN}
    assert "got no answer" in found.pop("credentials").sentence
    assert {one.sentence for one in found.values()} == {"not asked, as it needs credentials"}


def test_each_check_of_an_account_stands_for_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = AccountChecks(job=JOB, needed=True).checks()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(ec2_account, "ATTEMPTS", 1)
    monkeypatch.setattr("cloud.ec2.prices.ATTEMPTS", 1)
    for check in checks:
        ((_, found),) = examine([check])
        assert found.result is Result.UNKNOWN
        nothing = "Could not connect" if check.name == "bucket" else "got no answer"
        assert nothing in found.sentence


def test_python_and_torch_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert python_finding().result is Result.GOOD
    assert "torch 2" in python_finding().sentence

    def missing(name: str) -> str:
        raise checks_here.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(checks_here.metadata, "version", missing)
    assert python_finding().result is Result.FAULT
    assert "make setup" in python_finding().remedy


@pytest.mark.parametrize(
    ("cuda", "result", "says"),
    [
        ("12.8", Result.GOOD, r"1 GPU"),
        (
            "13.0",
            Result.FAULT,
            r"the NVIDIA driver 550\.54 is older than 580.*; install driver 580.*",
        ),
        ("", Result.GOOD, r"1 GPU; torch 2\.13\.0 has no CUDA.*"),
    ],
)
def test_the_driver_is_compared_with_the_build_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str, result: Result, says: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA L4, 550.54, 23034 MiB'\n")
    program.chmod(0o755)
    monkeypatch.setattr(checks_here, "torch_here", lambda: ("2.13.0", cuda))
    found = gpu_finding(str(program))
    assert found.result is result
    assert re.fullmatch(says, "; ".join(filter(None, (found.sentence, found.remedy))))
    assert found.lines == ("NVIDIA L4, 550.54, 23034 MiB",)


@pytest.mark.parametrize(
    ("does", "result", "says"),
    [
        ("echo 'NVIDIA L4, 550.54, 23034 MiB'", Result.GOOD, "1 GPU"),
        ("echo 'versions differ' >&2; exit 18", Result.FAULT, "status 18 and said versions differ"),
        ("exit 0", Result.FAULT, "said nothing"),
        ("exec sleep 60", Result.FAULT, "did not answer: TimeoutExpired"),
    ],
)
def test_the_driver_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, result: Result, says: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    monkeypatch.setattr(checks_here, "GPU_DEADLINE_S", 0.5 if "sleep" in does else 10.0)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = gpu_finding()
    assert found.result is result
    assert says in found.sentence


def test_a_machine_without_a_gpu_is_at_no_fault() -> None:
    found = gpu_finding("no-such-driver-program")
    assert found.result is Result.GOOD
    assert "CPU" in found.sentence


@pytest.mark.parametrize(
    ("free", "result"), [(6 << 30, Result.GOOD), (1 << 30, Result.WARNING), (9, Result.FAULT)]
)
def test_the_disk_has_room_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, result: Result
) -> None:
    monkeypatch.setattr(checks_here, "free_bytes", lambda folder: free)
    found = disk_finding(tmp_path / "not" / "there")
    assert found.result is result
    assert bool(found.remedy) is (result is not Result.GOOD)


def test_the_store_is_asked_what_it_is(tmp_path: Path) -> None:
    server = start_store(tmp_path)
    try:
        found = store_finding(server.url)
        assert found.result is Result.GOOD
        assert "answers without TLS and takes what a run writes" in found.sentence
        with redis.Redis.from_url(server.url, decode_responses=True) as admin:
            with refuser.setting(maxmemory=1)(server, admin):
                full = store_finding(server.url)
            assert (full.result, "no memory left" in full.sentence) == (Result.FAULT, True)
            assert full.remedy.startswith("raise its maxmemory")
            assert admin.keys("*") == []
        shared = store_finding(server.url, in_account=True)
        assert (shared.result, "lets in everyone" in shared.sentence) == (Result.FAULT, True)
        off = store_finding(server.url, now=lambda: 0.0)
        assert (off.result, "NTP" in off.remedy) == (Result.WARNING, True)
    finally:
        server.stop()
    gone = store_finding(server.url)
    assert gone.result is Result.FAULT
    assert "launcher_cidrs" in gone.remedy
    assert store_finding("").result is Result.GOOD
    assert store_finding("", in_account=True).result is Result.FAULT


def test_a_store_that_is_too_old_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, result in (("6.0.16", Result.FAULT), ("6.2.0", Result.GOOD)):
        seen = StoreSeen(software="redis", version=version, now_s=0.0)
        monkeypatch.setattr(checks_here.wiring, "look_at_store", lambda _, s=seen: (s, True))
        assert store_finding("rediss://h", now=lambda: 0.0).result is result


def test_this_machine_alone_asks_no_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "cloud.toml"))
    monkeypatch.delenv("BAMBOO_REDIS_URL", raising=False)

    def asked(**_: object) -> None:
        raise BambooError("an account was asked")

    monkeypatch.setattr(ec2_account.Ec2Account, "connect", asked)
    local = tiny_job(tmp_path, []).file
    for words in (["doctor", "--json"], ["doctor", local, "--json"]):
        assert main.run(words) == 0
        checks = json.loads(capsys.readouterr().out)["checks"]
        assert [one["check"] for one in checks] == HERE


def test_the_account_file_and_a_job_say_what_is_looked_at(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = start_admin_store(port=free_port())
    reference = tmp_path / "store-url"
    reference.touch(mode=0o600)
    reference.write_text(store.admin_url)
    monkeypatch.setenv("BAMBOO_REDIS_URL", f"file:{reference}")
    (tmp_path / "cloud.toml").write_text(
        f'[cloud]\nregion = "{REGION}"\nzones = ["{REGION}a"]\nlaunch_template = "{TEMPLATE}"\n'
        f'bucket = "{BUCKET}"\n'
    )
    assert main.run(["doctor"]) == 0
    said = capsys.readouterr().out
    assert f"launch template {TEMPLATE}, and its image" in said
    assert "orphans: good: nothing bills" in said
    job = tmp_path / "job.toml"
    job.write_text(f'[cloud]\nprovider = "ec2"\nregion = "{REGION}"\n[cluster]\nstages = 6\n')
    assert main.run(["doctor", str(job), "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    results = {one["check"]: one["result"] for one in body["checks"]}
    assert results["quotas"] == "fault"
    assert results["orphans"] == results["network"] == "good"
    assert main.run(["doctor", str(job), "--set", "cluster.stages=2"]) == 0
    store.stop()
    assert main.run(["doctor", str(job), "--set", "cluster.stages=2"]) == 1
