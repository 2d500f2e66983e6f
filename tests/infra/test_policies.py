"""The rights of launcher, worker and store, asked of their documents in terraform/policies/: each
call of ours is allowed, and the same call is not for what is not of a run."""

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore import xform_name
from botocore.session import get_session

from bamboo.ids import RunId, ZoneId
from cloud.ec2 import requests
from cloud.ec2.requests import EXPIRY_TAG, RUN_TAG, Ec2Settings
from cloud.provider import LaunchSpec, Market, Pool
from tests.infra.iam import Ask, allowed, rendered

ROOT = Path(__file__).resolve().parents[2]
EC2 = "arn:aws:ec2:us-east-1:123456789012"
BUCKET = "arn:aws:s3:::bamboo-1"
SECRETS = "arn:aws:secretsmanager:us-east-1:123456789012:secret"
RUN_SECRETS = f"{SECRETS}:bamboo/runs/*"
OBJECTS = (f"{BUCKET}/runs/r1/x", f"{BUCKET}/starts/r1/x")
WORKER_ROLE = "arn:aws:iam::123456789012:role/bamboo-worker-1"
SPOT_ROLES = "arn:aws:iam::123456789012:role/aws-service-role/spot.amazonaws.com"
IMAGE_PARAMETER = "arn:aws:ssm:us-east-1::parameter/aws/service/deeplearning/ami/x/latest/ami-id"
PARTS = (
    f"{EC2}:launch-template/lt-1",
    f"{EC2}:security-group/sg-1",
    f"{EC2}:network-interface/*",
    "arn:aws:ec2:us-east-1::image/*",
    f"{EC2}:subnet/subnet-1",
)
VALUES: dict[str, Mapping[str, Any]] = {
    "launcher": {
        "partition": "aws",
        "region": "us-east-1",
        "ec2_arn": "arn:aws:ec2:us-east-1:*",
        "bucket_arn": BUCKET,
        "secret_arn": f"{SECRETS}:admin-1",
        "run_secrets_arn": RUN_SECRETS,
        "worker_role_arn": WORKER_ROLE,
        "part_arns": PARTS,
    },
    "worker": {"bucket_arn": BUCKET, "secret_arn": RUN_SECRETS},
    "store": {"admin_secret_arn": f"{SECRETS}:admin-1"},
    "bucket": {"bucket_arn": BUCKET},
}


def document(name: str) -> dict[str, Any]:
    template = (ROOT / "terraform" / "policies" / f"{name}.json.tftpl").read_text()
    return rendered(template, VALUES[name])


LAUNCHER, WORKER, STORE = document("launcher"), document("worker"), document("store")


def launch_requests() -> dict[str, Any]:
    """What launches really send, by the name of the call."""
    spec = LaunchSpec(
        run=RunId("r1"),
        pool=Pool(instance_type="g5.xlarge", zone=ZoneId("us-east-1a"), market=Market.SPOT),
        count=2,
        token="token-1",
        expires_at_s=1_800_000_000,
    )
    settings = Ec2Settings(
        region="us-east-1",
        launch_template="bamboo-worker",
        subnets={"us-east-1a": "subnet-1"},
    )
    several = replace(spec, alternatives=(replace(spec.pool, instance_type="g6.xlarge"),))
    return dict(requests.launch_call(one, settings) for one in (spec, several))


def tags_of(request: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Type of resource -> its tags at birth."""
    return {
        one["ResourceType"]: {tag["Key"]: tag["Value"] for tag in one["Tags"]}
        for one in request["TagSpecifications"]
    }


def born(
    tags: Mapping[str, Mapping[str, str]], *, by: str = "RunInstances", tokens: str = "required"
) -> list[Ask]:
    """What a start is asked for: each thing that is made with its tags, and each part it is of."""
    asks = []
    for kind, given in tags.items():
        context: dict[str, Any] = {f"aws:RequestTag/{k}": v for k, v in given.items()}
        labelled = context | {"ec2:CreateAction": by, "aws:TagKeys": list(given)}
        asks.append(Ask(action="ec2:CreateTags", resource=f"{EC2}:{kind}/*", context=labelled))
        if kind == "instance":
            context |= {"ec2:MetadataHttpTokens": tokens}
        action = "ec2:CreateFleet" if kind == "fleet" else "ec2:RunInstances"
        asks.append(Ask(action=action, resource=f"{EC2}:{kind}/*", context=context))
        if kind != "fleet" and by == "CreateFleet":
            # A fleet is asked for each thing that it will make, as well; whether with more than the
            # tags is not documented.
            bare = {k: v for k, v in context.items() if k.startswith("aws:")}
            asks.append(Ask(action="ec2:CreateFleet", resource=f"{EC2}:{kind}/*", context=bare))
    if by == "CreateFleet":
        # Seen in accounts: the template is asked for before its name has become an id.
        asks.append(Ask(action="ec2:CreateFleet", resource=f"{EC2}:launch-template/*"))
    verbs = {f"ec2:{by}", "ec2:RunInstances"}
    # Those of an instant fleet have no tags, says the reference of CreateFleet. A request starts
    # nothing by itself: that is asked of the instance.
    asks += [Ask(action=verb, resource=f"{EC2}:spot-instances-request/*") for verb in verbs]
    asks += [
        Ask(action=verb, resource=part.replace("*", "1"))
        for verb in sorted(verbs)
        for part in PARTS
    ]
    passed = {"iam:PassedToService": "ec2.amazonaws.com"}
    return [*asks, Ask(action="iam:PassRole", resource=WORKER_ROLE, context=passed)]


def of_a_run(kind: str, action: str) -> Ask:
    """A change of something that is there and carries a run's tag."""
    context = {f"aws:ResourceTag/{RUN_TAG}": "r1"}
    return Ask(action=f"ec2:{action}", resource=f"{EC2}:{kind}/x-1", context=context)


MARK = {RUN_TAG: "r1", EXPIRY_TAG: "1800000000"}
LAUNCHES = launch_requests()
FLEET_TAGS = tags_of(LAUNCHES["CreateFleet"])
TAGGED_KINDS = (*FLEET_TAGS, "spot-instances-request")
ENDS = {
    "terminate_instances": of_a_run("instance", "TerminateInstances"),
    "cancel_spot_instance_requests": of_a_run(
        "spot-instances-request", "CancelSpotInstanceRequests"
    ),
    "delete_fleets": of_a_run("fleet", "DeleteFleets"),
    "delete_volume": of_a_run("volume", "DeleteVolume"),
}
PROLONG = Ask(
    action="ec2:CreateTags",
    resource=f"{EC2}:instance/i-1",
    context={
        f"aws:ResourceTag/{RUN_TAG}": "r1",
        f"aws:RequestTag/{EXPIRY_TAG}": "1800003600",
        "aws:TagKeys": [EXPIRY_TAG],
    },
)
CALLS: dict[str, list[Ask]] = {
    "run_instances": born(tags_of(LAUNCHES["RunInstances"])),
    "create_fleet": born(FLEET_TAGS, by="CreateFleet"),
    "create_tags": [PROLONG],
    **{name: [ask] for name, ask in ENDS.items()},
    **{
        xform_name(name): [Ask(action=f"ec2:{name}")]
        for name in (
            "DescribeAvailabilityZones", "DescribeFleetInstances", "DescribeFleets",
            "DescribeImages", "DescribeInstanceStatus", "DescribeInstanceTypeOfferings",
            "DescribeInstanceTypes", "DescribeInstances", "DescribeLaunchTemplateVersions",
            "DescribeLaunchTemplates", "DescribeRouteTables", "DescribeSecurityGroups",
            "DescribeSpotInstanceRequests", "DescribeSpotPriceHistory", "DescribeSubnets",
            "DescribeTags", "DescribeVolumes", "DescribeVpcs", "GetSpotPlacementScores",
        )
    },
    **{
        xform_name(name): [Ask(action=f"servicequotas:{name}")]
        for name in ("GetServiceQuota", "GetAWSDefaultServiceQuota", "ListServiceQuotas")
    },
    "get_parameter": [Ask(action="ssm:GetParameter", resource=IMAGE_PARAMETER)],
    "get_parameters": [Ask(action="ssm:GetParameters", resource=IMAGE_PARAMETER)],
    "get_secret_value": [
        Ask(action="secretsmanager:GetSecretValue", resource=f"{SECRETS}:admin-1")
    ],
    "list_secrets": [Ask(action="secretsmanager:ListSecrets")],
    **{
        xform_name(name): [
            Ask(action=f"secretsmanager:{action}", resource=f"{SECRETS}:bamboo/runs/r1-1")
            for action in actions
        ]
        for name, actions in {
            "CreateSecret": ("CreateSecret", "TagResource"),
            "PutSecretValue": ("PutSecretValue",),
            "DeleteSecret": ("DeleteSecret",),
        }.items()
    },
    "get_role": [Ask(action="iam:GetRole", resource=f"{SPOT_ROLES}/AWSServiceRoleForEC2Spot")],
    "create_service_linked_role": [
        Ask(
            action="iam:CreateServiceLinkedRole",
            resource=f"{SPOT_ROLES}/AWSServiceRoleForEC2Spot",
        )
    ],
    "get_caller_identity": [],  # needs no right
    "list_objects_v2": [Ask(action="s3:ListBucket", resource=BUCKET)],
    "head_bucket": [Ask(action="s3:ListBucket", resource=BUCKET)],
    "get_object": [Ask(action="s3:GetObject", resource=where) for where in OBJECTS],
    "head_object": [Ask(action="s3:GetObject", resource=where) for where in OBJECTS],
    "put_object": [Ask(action="s3:PutObject", resource=where) for where in OBJECTS],
    "delete_object": [Ask(action="s3:DeleteObject", resource=where) for where in OBJECTS],
}  # fmt: skip
"""Every call that a launcher may make, with what the service asks before it is done."""


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
    services = ("ec2", "service-quotas", "ssm", "secretsmanager", "sts", "s3")
    return {
        xform_name(operation)
        for service in services
        for operation in session.get_service_model(service).operation_names
    }


def test_every_call_in_the_code_was_tried() -> None:
    sources = [*(ROOT / "cloud" / "ec2").glob("*.py"), *(ROOT / "cli").rglob("*.py")]
    called = operations() & {name for path in sources for name in names_in(path)}
    named = {"run_instances", "create_fleet", "create_tags", "get_service_quota", *ENDS}
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
    "tags", [{}, {"team": "x"}, {"bamboo:stack": "bamboo"}, {RUN_TAG: ""}, {"Bamboo:run2": "r1"}]
)
def test_the_launcher_ends_nothing_foreign(call: str, tags: Mapping[str, str]) -> None:
    """`bamboo:stack` alone is what the store's own instance carries."""
    context = {f"aws:ResourceTag/{key}": value for key, value in tags.items()}
    assert not allowed(LAUNCHER, replace(ENDS[call], context=context))


@pytest.mark.parametrize("by", ["RunInstances", "CreateFleet"])
@pytest.mark.parametrize("kind", FLEET_TAGS)
def test_the_launcher_starts_nothing_without_its_tag(kind: str, by: str) -> None:
    asks = born({kind: {"team": "x"}}, by=by)
    made = [ask for ask in asks if ask.resource == f"{EC2}:{kind}/*"]
    assert len(made) == (3 if by == "CreateFleet" and kind != "fleet" else 2)
    assert not any(allowed(LAUNCHER, ask) for ask in made)


def test_the_launcher_starts_nothing_that_nobody_can_call_stale() -> None:
    asks = born({"instance": {RUN_TAG: "r1"}})
    assert not all(allowed(LAUNCHER, ask) for ask in asks)


def test_the_launcher_starts_nothing_with_open_metadata() -> None:
    assert not all(allowed(LAUNCHER, a) for a in born({"instance": MARK}, tokens="optional"))


@pytest.mark.parametrize("part", ["subnet/subnet-2", "security-group/sg-2", "launch-template/lt-2"])
def test_the_launcher_starts_nothing_elsewhere(part: str) -> None:
    assert not allowed(LAUNCHER, Ask(action="ec2:RunInstances", resource=f"{EC2}:{part}"))
    # A fleet starts nothing but by RunInstances, for which the template's own name is asked.
    fleet = Ask(action="ec2:CreateFleet", resource=f"{EC2}:{part}")
    assert allowed(LAUNCHER, fleet) is part.startswith("launch-template/")


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


def test_the_launcher_gives_no_other_role_and_to_nobody_else() -> None:
    passed = {"iam:PassedToService": "ec2.amazonaws.com"}
    other = Ask(action="iam:PassRole", resource="arn:aws:iam::123456789012:role/admin")
    assert not allowed(LAUNCHER, replace(other, context=passed))
    elsewhere = {"iam:PassedToService": "lambda.amazonaws.com"}
    assert not allowed(LAUNCHER, replace(other, resource=WORKER_ROLE, context=elsewhere))


def test_the_launcher_reads_one_secret_and_leaves_boot_files_alone() -> None:
    for name in ("other-1", "bamboo/runs/r1-1"):
        read = Ask(action="secretsmanager:GetSecretValue", resource=f"{SECRETS}:{name}")
        assert not allowed(LAUNCHER, read)
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
