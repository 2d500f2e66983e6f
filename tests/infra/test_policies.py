"""The rights of the launcher, asked of their document in terraform/policies/: each call of ours is
allowed, and the same call is not for what is not of a run of this stack."""

import ast
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore import xform_name
from botocore.session import get_session

from bamboo.ids import RunId
from cloud.ec2.requests import EXPIRY_TAG, RUN_TAG, STACK_TAG
from cloud.ec2.run_role import RunRole, boundary_arn
from tests.infra.iam import Ask, allowed, rendered
from tests.infra.launcher_calls import (
    BOUNDARY,
    BOUNDED,
    BUCKET,
    CALLS,
    EC2,
    ENDS,
    FLEET_TAGS,
    IAM,
    LAUNCHER,
    MARK,
    OWNER,
    PROLONG,
    ROOT,
    RUN_PROFILE,
    RUN_ROLE,
    SECRETS,
    STACK,
    TAGGED_KINDS,
    TAGGED_PARTS,
    VALUES,
    born,
    document,
)


def names_in(path: Path) -> set[str]:
    """Every attribute and every text of a file, whatever it is of."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def operations() -> set[str]:
    """The names that boto3 gives to the operations of the services we call."""
    session = get_session()
    services = ("ec2", "iam", "service-quotas", "ssm", "secretsmanager", "sts", "s3")
    return {
        xform_name(operation)
        for service in services
        for operation in session.get_service_model(service).operation_names
    }


def test_every_call_in_the_code_was_tried() -> None:
    sources = [*(ROOT / "cloud" / "ec2").glob("*.py"), *(ROOT / "cli").rglob("*.py")]
    called = operations() & {name for path in sources for name in names_in(path)}
    named = {"run_instances", "create_fleet", "create_tags", "create_role", *ENDS}
    assert named <= called
    assert called <= CALLS.keys(), "write down here what the service asks before these calls"


@pytest.mark.parametrize("call", CALLS)
def test_the_launcher_may(call: str) -> None:
    for ask in CALLS[call]:
        assert allowed(LAUNCHER, ask), ask


@pytest.mark.parametrize("call", CALLS)
def test_a_right_is_used_only_for_what_it_names(call: str) -> None:
    """No right of the launcher is as wide as the whole service where the service can do less."""
    for ask in CALLS[call]:
        if ask.resource != "*":
            assert not allowed(LAUNCHER, replace(ask, resource="arn:aws:x:::other", context={}))


@pytest.mark.parametrize("call", ENDS)
@pytest.mark.parametrize(
    "tags",
    [
        {},
        {"team": "x"},
        {STACK_TAG: STACK},
        {RUN_TAG: "r1"},
        {RUN_TAG: "", STACK_TAG: STACK},
        {RUN_TAG: "r1", STACK_TAG: "other"},
        {RUN_TAG: "r1", STACK_TAG: "bamboo2"},
        {"Bamboo:run2": "r1", STACK_TAG: STACK},
    ],
)
def test_the_launcher_ends_nothing_foreign(call: str, tags: Mapping[str, str]) -> None:
    """`bamboo:stack` alone is what the store's own instance carries, `bamboo:run` with another what
    a run of another stack does."""
    context = {f"aws:ResourceTag/{key}": value for key, value in tags.items()}
    assert not allowed(LAUNCHER, replace(ENDS[call], context=context))


@pytest.mark.parametrize("by", ["RunInstances", "CreateFleet"])
@pytest.mark.parametrize("kind", FLEET_TAGS)
@pytest.mark.parametrize(
    "foreign",
    [{"team": "x"}, {RUN_TAG: "r1", EXPIRY_TAG: "1"}, {**MARK, STACK_TAG: "other"}],
    ids=["no-run", "no-stack", "other-stack"],
)
def test_the_launcher_starts_nothing_without_its_tags(
    kind: str, by: str, foreign: Mapping[str, str]
) -> None:
    asks = born({kind: foreign}, by=by)
    made = [ask for ask in asks if ask.resource == f"{EC2}:{kind}/*"]
    assert len(made) == (3 if by == "CreateFleet" and kind != "fleet" else 2)
    assert not any(allowed(LAUNCHER, ask) for ask in made)


def test_the_launcher_starts_nothing_that_nobody_can_call_stale() -> None:
    asks = born({"instance": {RUN_TAG: "r1", STACK_TAG: STACK}})
    assert not all(allowed(LAUNCHER, ask) for ask in asks)


def test_the_launcher_starts_nothing_with_open_metadata() -> None:
    assert not all(allowed(LAUNCHER, a) for a in born({"instance": MARK}, tokens="optional"))


@pytest.mark.parametrize("part", TAGGED_PARTS)
@pytest.mark.parametrize("tags", [{}, {f"aws:ResourceTag/{STACK_TAG}": "other"}])
def test_the_launcher_starts_nothing_elsewhere(part: str, tags: Mapping[str, str]) -> None:
    assert not allowed(LAUNCHER, Ask(action="ec2:RunInstances", resource=part, context=tags))
    # A fleet starts nothing but by RunInstances, for which the template's own name is asked.
    fleet = Ask(action="ec2:CreateFleet", resource=part, context=tags)
    assert allowed(LAUNCHER, fleet) is ("launch-template/" in part)


def test_the_launcher_cannot_make_a_foreign_thing_its_own() -> None:
    """Else it could end anything, by tagging it first."""
    mark: dict[str, Any] = {f"aws:RequestTag/{k}": v for k, v in MARK.items()}
    foreign = {"aws:ResourceTag/team": "x"}
    for kind in TAGGED_KINDS:
        where = f"{EC2}:{kind}/x-1"
        for keys in ([RUN_TAG], [EXPIRY_TAG], list(MARK)):
            ask = Ask(
                action="ec2:CreateTags",
                resource=where,
                context=mark | foreign | {"aws:TagKeys": keys},
            )
            assert not allowed(LAUNCHER, ask)


def test_the_launcher_moves_no_instance_to_another_run() -> None:
    keys = {"aws:TagKeys": [EXPIRY_TAG, RUN_TAG]}
    assert not allowed(LAUNCHER, replace(PROLONG, context={**PROLONG.context, **keys}))


@pytest.mark.parametrize(
    "role", ["role/admin", "role/bamboo/us-east-1/other/r1/x", "role/bamboo/eu-west-1/bamboo/r1/x"]
)
def test_the_launcher_makes_changes_and_gives_no_other_role(role: str) -> None:
    passed = {"iam:PassedToService": "ec2.amazonaws.com"}
    other = f"{IAM}:{role}"
    assert not allowed(LAUNCHER, Ask(action="iam:PassRole", resource=other, context=passed))
    for name in ("CreateRole", "PutRolePolicy", "DeleteRole", "DeleteRolePolicy"):
        assert not allowed(LAUNCHER, Ask(action=f"iam:{name}", resource=other, context=BOUNDED))


def test_the_launcher_gives_a_role_to_instances_alone() -> None:
    elsewhere = {"iam:PassedToService": "lambda.amazonaws.com"}
    assert not allowed(LAUNCHER, Ask(action="iam:PassRole", resource=RUN_ROLE, context=elsewhere))


@pytest.mark.parametrize(
    "bound", [{}, {"iam:PermissionsBoundary": "arn:aws:iam::aws:policy/AdministratorAccess"}]
)
def test_the_launcher_makes_no_role_out_of_bounds(bound: Mapping[str, str]) -> None:
    for name in ("CreateRole", "PutRolePolicy"):
        assert not allowed(LAUNCHER, Ask(action=f"iam:{name}", resource=RUN_ROLE, context=bound))


def test_the_launcher_does_nothing_else_in_iam() -> None:
    """Else it could widen a role, its bounds, or itself."""
    may = {
        *("CreateRole", "PutRolePolicy", "DeleteRole", "DeleteRolePolicy", "GetRole", "PassRole"),
        *("CreateInstanceProfile", "DeleteInstanceProfile", "AddRoleToInstanceProfile"),
        *("RemoveRoleFromInstanceProfile", "ListRoles"),
    }
    names = get_session().get_service_model("iam").operation_names
    assert {"AttachRolePolicy", "UpdateAssumeRolePolicy", "PutUserPolicy"} <= set(names) - may
    for name in set(names) - may:
        for resource in (RUN_ROLE, RUN_PROFILE, BOUNDARY, "*"):
            ask = Ask(action=f"iam:{name}", resource=resource, context=BOUNDED)
            assert not allowed(LAUNCHER, ask), name


def test_the_rights_fit_into_a_policy() -> None:
    """With the longest names there may be: AWS counts 6,144 characters that are no blanks."""
    region, stack = "us-gov-west-1", "s" * 31
    longest = {
        **VALUES["launcher"],
        "partition": "aws-us-gov",
        "region": region,
        "ec2_arn": f"arn:aws-us-gov:ec2:{region}:*",
        "bucket_arn": f"arn:aws-us-gov:s3:::{stack}-20260101000000000000000001",
        "secret_arn": f"arn:aws-us-gov:secretsmanager:{region}:123456789012:secret:"
        f"{stack}-store-admin-20260101000000000000000001-AbCdEf",
        "stack": stack,
        "run_secrets_arn": f"arn:aws-us-gov:secretsmanager:{region}:*:secret:{stack}/runs/*",
        "run_boundary_arn": boundary_arn(
            RunRole(region=region, stack=stack, run=RunId("r")),
            replace(OWNER, partition="aws-us-gov"),
        ),
        **{
            f"run_{kind}s_arn": f"arn:aws-us-gov:iam::*:{word}/bamboo/{region}/{stack}/*"
            for kind, word in {"role": "role", "profile": "instance-profile"}.items()
        },
    }
    template = (ROOT / "terraform" / "policies" / "launcher.json.tftpl").read_text()
    assert len("".join(json.dumps(rendered(template, longest)).split())) < 6144


@pytest.mark.parametrize("secret", ["other-1", "bamboo/runs2/r1-AbCdEf", "other/runs/r1-AbCdEf"])
def test_the_launcher_changes_no_secret_but_those_of_runs(secret: str) -> None:
    for name in ("CreateSecret", "PutSecretValue", "DeleteSecret", "GetSecretValue"):
        ask = Ask(action=f"secretsmanager:{name}", resource=f"{SECRETS}:{secret}")
        assert not allowed(LAUNCHER, ask)


def test_the_launcher_leaves_boot_files_alone() -> None:
    boot = Ask(action="s3:PutObject", resource=f"{BUCKET}/boot/bamboo-agent.service")
    assert not allowed(LAUNCHER, boot)


def test_the_launcher_brings_wheels_and_takes_none_away() -> None:
    wheel = Ask(action="s3:PutObject", resource=f"{BUCKET}/wheels/0/a.whl")
    assert allowed(LAUNCHER, wheel)
    assert not allowed(LAUNCHER, replace(wheel, action="s3:DeleteObject"))


def test_the_bucket_refuses_whoever_comes_in_the_clear() -> None:
    everybody = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    both = {"Statement": [*document("bucket")["Statement"], everybody]}
    for resource in (BUCKET, f"{BUCKET}/runs/r1/x"):
        ask = Ask(action="s3:GetObject", resource=resource)
        assert not allowed(both, replace(ask, context={"aws:SecureTransport": "false"}))
        assert allowed(both, replace(ask, context={"aws:SecureTransport": "true"}))


def test_the_judge_judges() -> None:
    allow = {"Effect": "Allow", "Action": ["ec2:Run*"], "Resource": "arn:?:x"}
    both = {"Statement": [allow, {**allow, "Effect": "Deny", "Action": "ec2:RunNot"}]}
    assert allowed(both, Ask(action="EC2:runinstances", resource="arn:a:x"))
    assert not allowed(both, Ask(action="ec2:RunNot", resource="arn:a:x"))
    assert not allowed(both, Ask(action="ec2:RunInstances", resource="arn:ab:x"))
    assert not allowed(both, Ask(action="ec2:Terminate", resource="arn:a:x"))
    with pytest.raises(NotImplementedError, match="NotAction"):
        allowed({"Statement": [{**allow, "NotAction": "*"}]}, Ask(action="x"))
    unread = {**allow, "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}
    with pytest.raises(NotImplementedError, match="IpAddress"):
        allowed({"Statement": [unread]}, Ask(action="ec2:Run", resource="arn:a:x"))
    with pytest.raises(KeyError):
        rendered('{"a": "${nobody}"}', {})
