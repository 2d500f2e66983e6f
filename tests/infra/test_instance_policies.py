"""What the roles of instances may do: a worker reads what starts it and writes its run, the store
says how it is reached; neither touches an instance."""

from dataclasses import replace

import pytest
from botocore.session import get_session

from cloud.ec2.requests import RUN_TAG
from tests.infra.iam import Ask, allowed
from tests.infra.test_policies import BUCKET, EC2, SECRETS, STORE, WORKER, WORKER_ROLE, document


def changes_of_ec2() -> list[str]:
    names = get_session().get_service_model("ec2").operation_names
    return [n for n in names if not n.startswith(("Describe", "Get", "List", "Search"))]


@pytest.mark.parametrize("role", ["worker", "store"])
def test_an_instance_may_do_nothing_in_ec2(role: str) -> None:
    changes = changes_of_ec2()
    assert {"TerminateInstances", "RunInstances", "CreateFleet"} <= set(changes)
    assert len(changes) > 300
    own = {f"aws:ResourceTag/{RUN_TAG}": "r1", f"aws:RequestTag/{RUN_TAG}": "r1"}
    for name in changes:
        ask = Ask(action=f"ec2:{name}", resource=f"{EC2}:instance/i-1", context=own)
        assert not allowed(document(role), ask), name


def test_a_worker_given_everything_still_ends_and_starts_nothing() -> None:
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    wide = {"Statement": [*WORKER["Statement"], everything]}
    assert allowed(wide, Ask(action="ec2:DescribeInstances"))
    for name in ("TerminateInstances", "StopInstances", "RunInstances", "CreateFleet",
                 "CancelSpotInstanceRequests", "DeleteVolume", "ModifyInstanceAttribute",
                 "RequestSpotInstances"):  # fmt: skip
        assert not allowed(wide, Ask(action=f"ec2:{name}", resource=f"{EC2}:instance/i-1"))
    assert not allowed(wide, Ask(action="sts:AssumeRole", resource=WORKER_ROLE))
    assert not allowed(wide, Ask(action="iam:PassRole", resource=WORKER_ROLE))


def test_a_worker_reads_secrets_of_runs_and_not_the_store_s() -> None:
    read = Ask(action="secretsmanager:GetSecretValue", resource=f"{SECRETS}:bamboo/runs/r1-1")
    assert allowed(WORKER, read)
    for other in ("bamboo-store-admin-1", "other/runs/r1-1"):
        assert not allowed(WORKER, replace(read, resource=f"{SECRETS}:{other}"))
    for action in ("PutSecretValue", "DeleteSecret", "ListSecrets"):
        assert not allowed(WORKER, replace(read, action=f"secretsmanager:{action}"))


@pytest.mark.parametrize(
    ("action", "key", "may"),
    [
        ("GetObject", "boot/bamboo-agent.service", True),
        ("GetObject", "wheels/0/bamboo_train-1.whl", True),
        ("GetObject", "starts/r1/agent.env", True),
        ("GetObject", "runs/r1/checkpoints/1/0", True),
        ("PutObject", "runs/r1/checkpoints/1/0", True),
        ("DeleteObject", "runs/r1/checkpoints/1/0", True),
        ("AbortMultipartUpload", "runs/r1/checkpoints/1/0", True),
        ("PutObject", "boot/bamboo-agent.service", False),
        ("PutObject", "wheels/0/bamboo_train-1.whl", False),
        ("DeleteObject", "wheels/0/bamboo_train-1.whl", False),
        ("PutObject", "starts/r1/agent.env", False),
        ("PutObject", "starts/r1/store-ca.pem", False),
        ("DeleteObject", "starts/r1/data/0", False),
        ("AbortMultipartUpload", "starts/r1/data/0", False),
        ("GetObject", "other/secret", False),
        ("PutObject", "runs2/r1/x", False),
        ("DeleteObjectVersion", "runs/r1/checkpoints/1/0", False),
        ("PutObjectAcl", "runs/r1/x", False),
    ],
)
def test_what_a_worker_may_do_in_the_bucket(action: str, key: str, may: bool) -> None:
    ask = Ask(action=f"s3:{action}", resource=f"{BUCKET}/{key}")
    assert allowed(WORKER, ask) is may
    assert not allowed(WORKER, replace(ask, resource=f"arn:aws:s3:::bamboo-2/{key}"))


@pytest.mark.parametrize(
    ("prefix", "may"),
    [("runs/r1/checkpoints/", True), ("wheels/", False), ("", False), (None, False), ("a/", False)],
)
def test_what_a_worker_may_list(prefix: str | None, may: bool) -> None:
    context = {} if prefix is None else {"s3:prefix": prefix}
    assert allowed(WORKER, Ask(action="s3:ListBucket", resource=BUCKET, context=context)) is may


def test_the_store_says_how_it_is_reached_and_nothing_else() -> None:
    secret = f"{SECRETS}:admin-1"
    for action in ("GetSecretValue", "PutSecretValue"):
        ask = Ask(action=f"secretsmanager:{action}", resource=secret)
        assert allowed(STORE, ask)
        assert not allowed(STORE, replace(ask, resource=f"{SECRETS}:bamboo/runs/r1-1"))
    assert not allowed(STORE, Ask(action="secretsmanager:DeleteSecret", resource=secret))
    assert not allowed(STORE, Ask(action="s3:GetObject", resource=f"{BUCKET}/starts/r1/agent.env"))
