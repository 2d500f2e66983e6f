"""What the roles of instances may do: that of a run reads what starts it and reaches its own run,
the store's says how it is reached; neither touches an instance, whatever else it is given."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from botocore.session import get_session

from bamboo.checkpoint.shared_data import keys_of
from bamboo.ids import RunId
from cloud.ec2.requests import RUN_TAG
from cloud.ec2.run_role import RunRole, rights
from tests.infra.iam import Ask, allowed
from tests.infra.launcher_calls import BUCKET, EC2, OWNER, ROLE, RUN_ROLE, SECRETS, STACK, document

STORE, BOUNDARY = document("store"), document("run")
BUCKET_NAME = BUCKET.rpartition(":")[2]
READS = keys_of("a" * 64)
"""The tokens of the run, which others may read, too."""
RIGHTS = rights(ROLE, OWNER, bucket=BUCKET_NAME, reads=READS)
ALONG = ("code/0.zip", "weights/0/model.safetensors", "wheels/0/a.whl")
"""What a run takes along: it reads its own alone, and changes none of it."""
EVERYTHING = {"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}


def may(ask: Ask, *, own: Mapping[str, Any] = RIGHTS) -> bool:
    """A role may what both its policy and its bounds allow."""
    return allowed(own, ask) and allowed(BOUNDARY, ask)


def changes_of_ec2() -> list[str]:
    names = get_session().get_service_model("ec2").operation_names
    return [n for n in names if not n.startswith(("Describe", "Get", "List", "Search"))]


@pytest.mark.parametrize("role", [RIGHTS, BOUNDARY, STORE], ids=["run", "bounds", "store"])
def test_an_instance_may_do_nothing_in_ec2(role: Mapping[str, Any]) -> None:
    changes = changes_of_ec2()
    assert {"TerminateInstances", "RunInstances", "CreateFleet"} <= set(changes)
    assert len(changes) > 300
    own = {f"aws:ResourceTag/{RUN_TAG}": "r1", f"aws:RequestTag/{RUN_TAG}": "r1"}
    for name in changes:
        ask = Ask(action=f"ec2:{name}", resource=f"{EC2}:instance/i-1", context=own)
        assert not allowed(role, ask), name


def test_a_role_given_everything_keeps_within_its_bounds() -> None:
    files = Ask(action="s3:GetObject", resource=f"{BUCKET}/runs/r2/x")
    assert may(files, own=EVERYTHING), "what its bounds do not forbid"
    for action in ("ec2:TerminateInstances", "ec2:DescribeInstances", "ec2:RunInstances",
                   "ec2:CancelSpotInstanceRequests", "ec2:ModifyInstanceAttribute",
                   "logs:GetLogEvents", "ssm:StartSession"):  # fmt: skip
        assert not may(Ask(action=action, resource=f"{EC2}:instance/i-1"), own=EVERYTHING), action
    for action in ("sts:AssumeRole", "iam:PassRole", "iam:PutRolePolicy", "iam:DeleteRole"):
        assert not may(Ask(action=action, resource=RUN_ROLE), own=EVERYTHING)
    for action in ("PutObject", "DeleteObject"):
        for key in ("boot/bounds.json", "wheels/0/a.whl", "starts/r1/agent.env", READS[0]):
            ask = Ask(action=f"s3:{action}", resource=f"{BUCKET}/{key}")
            assert not may(ask, own=EVERYTHING), "nothing that starts a process or that others read"
    admin = Ask(action="secretsmanager:GetSecretValue", resource=f"{SECRETS}:bamboo-store-admin-1")
    assert not may(admin, own=EVERYTHING)


@pytest.mark.parametrize(
    ("secret", "reads"),
    [
        (f"{STACK}/runs/r1-AbCdEf", True),
        (f"{STACK}/runs/r2-AbCdEf", False),
        (f"{STACK}/runs/r1-longer-AbCdEf", False),
        (f"{STACK}/runs/r1-AbCdEf-GhIjKl", False),
        (f"{STACK}-store-admin-1", False),
        ("other/runs/r1-AbCdEf", False),
    ],
)
def test_a_run_reads_its_secret_and_no_other(secret: str, reads: bool) -> None:
    read = Ask(action="secretsmanager:GetSecretValue", resource=f"{SECRETS}:{secret}")
    assert may(read) is reads
    for action in ("PutSecretValue", "DeleteSecret", "DescribeSecret", "UpdateSecret"):
        assert not may(replace(read, action=f"secretsmanager:{action}"))
    assert not may(Ask(action="secretsmanager:ListSecrets"))


@pytest.mark.parametrize(
    ("action", "key", "does"),
    [
        ("GetObject", "boot/bamboo-agent.service", True),
        ("GetObject", "wheels/0/bamboo_train-1.whl", True),
        ("GetObject", "starts/r1/agent.env", True),
        *(("GetObject", f"starts/r1/{along}", True) for along in ALONG),
        *(("GetObject", f"starts/r2/{along}", False) for along in ALONG),
        *(("PutObject", f"starts/r1/{along}", False) for along in ALONG),
        *(("GetObject", key, True) for key in READS),
        *((action, READS[0], False) for action in ("PutObject", "DeleteObject")),
        ("GetObject", f"{READS[0]}.other", False),
        ("GetObject", keys_of("b" * 64)[0], False),
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
        ("GetObject", "starts/r2/agent.env", False),
        ("GetObject", "runs/r2/checkpoints/1/0", False),
        ("GetObject", "runs/r1-2/checkpoints/1/0", False),
        ("GetObject", "other/secret", False),
        ("PutObject", "runs2/r1/x", False),
        ("DeleteObjectVersion", "runs/r1/checkpoints/1/0", False),
        ("PutObjectAcl", "runs/r1/x", False),
    ],
)
def test_what_a_run_may_do_in_the_bucket(action: str, key: str, does: bool) -> None:
    ask = Ask(action=f"s3:{action}", resource=f"{BUCKET}/{key}")
    assert may(ask) is does
    assert not may(replace(ask, resource=f"arn:aws:s3:::bamboo-2/{key}"))


@pytest.mark.parametrize(
    ("prefix", "does"),
    [
        ("runs/r1/", True),
        ("runs/r1/checkpoints/", True),
        ("starts/r1/data/", True),
        (READS[0], True),
        *((prefix, False) for prefix in ("data/", f"{READS[0]}x", keys_of("b" * 64)[0])),
        *((prefix, False) for prefix in ("runs/", "runs/r", "runs/r1", "runs/r2/", "runs/r1-2/")),
        *((prefix, False) for prefix in ("starts/", "starts/r2/", "wheels/", "boot/", "", None)),
    ],
)
def test_what_a_run_may_list(prefix: str | None, does: bool) -> None:
    context = {} if prefix is None else {"s3:prefix": prefix}
    assert may(Ask(action="s3:ListBucket", resource=BUCKET, context=context)) is does


def test_two_runs_of_a_stack_reach_nothing_of_each_other() -> None:
    """Every action that there is in the services that a run could meet, at each thing of the other,
    whose name begins with the one's and goes on as Secrets Manager goes on with a name."""
    for mine, theirs in (("r", "r-abcdef"), ("r-abcdef", "r")):
        role = RunRole(region="us-east-1", stack=STACK, run=RunId(theirs))
        own = rights(replace(role, run=RunId(mine)), OWNER, bucket=BUCKET_NAME)
        tags = {f"aws:ResourceTag/{RUN_TAG}": theirs, "s3:prefix": f"runs/{theirs}/"}
        things = {
            "s3": [BUCKET, *(f"{BUCKET}/{at}/{theirs}/x" for at in ("runs", "starts"))],
            "secretsmanager": [f"{SECRETS}:{STACK}/runs/{theirs}-AbCdEf"],
            "ec2": [f"{EC2}:{kind}/x-1" for kind in ("instance", "volume", "launch-template")],
            "iam": [f"arn:aws:iam::123456789012:role{role.path}{role.name}"],
            "sts": [f"arn:aws:iam::123456789012:role{role.path}{role.name}"],
            "logs": ["arn:aws:logs:us-east-1:123456789012:log-group:any"],
            "ssm": [f"{EC2}:instance/x-1"],
        }
        for service, resources in things.items():
            names = get_session().get_service_model(service).operation_names
            rights_of = {"s3": {"HeadObject": "GetObject", "ListObjectsV2": "ListBucket"}}
            for name in names:
                action = rights_of.get(service, {}).get(name, name)
                for resource in resources:
                    ask = Ask(action=f"{service}:{action}", resource=resource, context=tags)
                    assert not may(ask, own=own), (mine, ask)
        assert may(Ask(action="s3:PutObject", resource=f"{BUCKET}/runs/{mine}/x"), own=own)


def test_the_store_says_how_it_is_reached_and_nothing_else() -> None:
    secret = f"{SECRETS}:admin-1"
    for action in ("GetSecretValue", "PutSecretValue"):
        ask = Ask(action=f"secretsmanager:{action}", resource=secret)
        assert allowed(STORE, ask)
        assert not allowed(STORE, replace(ask, resource=f"{SECRETS}:{STACK}/runs/r1-AbCdEf"))
    assert not allowed(STORE, Ask(action="secretsmanager:DeleteSecret", resource=secret))
    assert not allowed(STORE, Ask(action="s3:GetObject", resource=f"{BUCKET}/starts/r1/agent.env"))
