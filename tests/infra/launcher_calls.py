"""Every call of a launcher, as the service puts it before whoever judges rights; and the documents
of terraform/policies/, filled in as for one stack."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from botocore import xform_name

from bamboo.ids import RunId, ZoneId
from cloud.ec2 import requests
from cloud.ec2.requests import EXPIRY_TAG, RUN_TAG, STACK_TAG, Ec2Settings
from cloud.ec2.run_role import Owner, RunRole, boundary_arn
from cloud.provider import LaunchSpec, Market, Pool
from tests.infra.iam import Ask, rendered

ROOT = Path(__file__).resolve().parents[2]
EC2 = "arn:aws:ec2:us-east-1:123456789012"
BUCKET = "arn:aws:s3:::bamboo-1"
SECRETS = "arn:aws:secretsmanager:us-east-1:123456789012:secret"
STACK = "bamboo"
OWNER = Owner(partition="aws", account="123456789012")
ROLE = RunRole(region="us-east-1", stack=STACK, run=RunId("r1"))
IAM = "arn:aws:iam::123456789012"
RUN_ROLE, RUN_PROFILE = (
    f"{IAM}:{kind}{ROLE.path}{ROLE.name}" for kind in ("role", "instance-profile")
)
BOUNDARY = boundary_arn(ROLE, OWNER)
RUN_SECRET = f"{SECRETS}:{STACK}/runs/r1-AbCdEf"
SPOT_ROLES = "arn:aws:iam::123456789012:role/aws-service-role/spot.amazonaws.com"
IMAGE_PARAMETER = "arn:aws:ssm:us-east-1::parameter/aws/service/deeplearning/ami/x/latest/ami-id"
TAGGED_PARTS = tuple(
    f"{EC2}:{part}" for part in ("launch-template/lt-1", "security-group/sg-1", "subnet/subnet-1")
)
FREE_PARTS = (f"{EC2}:network-interface/*", "arn:aws:ec2:us-east-1::image/*")
OF_STACK = {f"aws:ResourceTag/{STACK_TAG}": STACK}
VALUES: dict[str, Mapping[str, Any]] = {
    "launcher": {
        "partition": "aws",
        "region": "us-east-1",
        "ec2_arn": "arn:aws:ec2:us-east-1:*",
        "bucket_arn": BUCKET,
        "secret_arn": f"{SECRETS}:admin-1",
        "stack": STACK,
        "run_secrets_arn": f"arn:aws:secretsmanager:us-east-1:*:secret:{STACK}/runs/*",
        "run_boundary_arn": BOUNDARY,
        "run_roles_arn": f"arn:aws:iam::*:role/bamboo/us-east-1/{STACK}/*",
        "run_profiles_arn": f"arn:aws:iam::*:instance-profile/bamboo/us-east-1/{STACK}/*",
    },
    "run": {
        "bucket_arn": BUCKET,
        "run_secrets_arn": f"arn:aws:secretsmanager:us-east-1:*:secret:{STACK}/runs/*",
    },
    "store": {"admin_secret_arn": f"{SECRETS}:admin-1"},
    "bucket": {"bucket_arn": BUCKET},
}


def document(name: str) -> dict[str, Any]:
    template = (ROOT / "terraform" / "policies" / f"{name}.json.tftpl").read_text()
    return rendered(template, VALUES[name])


LAUNCHER = document("launcher")


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
        stack=STACK,
        launch_template=ROLE.template,
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
    for verb in sorted(verbs):
        asks += [Ask(action=verb, resource=part.replace("*", "1")) for part in FREE_PARTS]
        asks += [Ask(action=verb, resource=part, context=OF_STACK) for part in TAGGED_PARTS]
    passed = {"iam:PassedToService": "ec2.amazonaws.com"}
    return [*asks, Ask(action="iam:PassRole", resource=RUN_ROLE, context=passed)]


def of_a_run(kind: str, action: str) -> Ask:
    """A change of something that is there and carries the tags of a run and its stack."""
    context = {f"aws:ResourceTag/{RUN_TAG}": "r1", **OF_STACK}
    return Ask(action=f"ec2:{action}", resource=f"{EC2}:{kind}/x-1", context=context)


MARK = {RUN_TAG: "r1", EXPIRY_TAG: "1800000000", STACK_TAG: STACK}
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
    "delete_launch_template": of_a_run("launch-template", "DeleteLaunchTemplate"),
}
PROLONG = Ask(
    action="ec2:CreateTags",
    resource=f"{EC2}:instance/i-1",
    context={
        f"aws:ResourceTag/{RUN_TAG}": "r1",
        **OF_STACK,
        f"aws:RequestTag/{EXPIRY_TAG}": "1800003600",
        "aws:TagKeys": [EXPIRY_TAG],
    },
)
BOUNDED = {"iam:PermissionsBoundary": BOUNDARY}
TEMPLATE_TAGS = tags_of(requests.run_template(ROLE, {}))
CALLS: dict[str, list[Ask]] = {
    "run_instances": born(tags_of(LAUNCHES["RunInstances"])),
    "create_fleet": born(FLEET_TAGS, by="CreateFleet"),
    "create_tags": [PROLONG],
    "create_launch_template": [
        ask if ask.action == "ec2:CreateTags" else replace(ask, action="ec2:CreateLaunchTemplate")
        for ask in born(TEMPLATE_TAGS, by="CreateLaunchTemplate")
        if ask.resource == f"{EC2}:launch-template/*"
    ],
    "create_role": [Ask(action="iam:CreateRole", resource=RUN_ROLE, context=BOUNDED)],
    "put_role_policy": [Ask(action="iam:PutRolePolicy", resource=RUN_ROLE, context=BOUNDED)],
    "delete_role_policy": [Ask(action="iam:DeleteRolePolicy", resource=RUN_ROLE)],
    "delete_role": [Ask(action="iam:DeleteRole", resource=RUN_ROLE)],
    "list_roles": [Ask(action="iam:ListRoles")],
    "create_instance_profile": [
        Ask(action="iam:CreateInstanceProfile", resource=RUN_PROFILE),
    ],
    "add_role_to_instance_profile": [
        Ask(action="iam:AddRoleToInstanceProfile", resource=RUN_PROFILE),
        Ask(
            action="iam:PassRole",
            resource=RUN_ROLE,
            context={"iam:PassedToService": "ec2.amazonaws.com"},
        ),
    ],
    "remove_role_from_instance_profile": [
        Ask(action="iam:RemoveRoleFromInstanceProfile", resource=RUN_PROFILE)
    ],
    "delete_instance_profile": [Ask(action="iam:DeleteInstanceProfile", resource=RUN_PROFILE)],
    "create_secret": [
        Ask(action="secretsmanager:CreateSecret", resource=RUN_SECRET),
        Ask(action="secretsmanager:TagResource", resource=RUN_SECRET),
    ],
    "put_secret_value": [Ask(action="secretsmanager:PutSecretValue", resource=RUN_SECRET)],
    "delete_secret": [Ask(action="secretsmanager:DeleteSecret", resource=RUN_SECRET)],
    "list_secrets": [Ask(action="secretsmanager:ListSecrets")],
    **{name: [ask] for name, ask in ENDS.items()},
    **{
        xform_name(name): [Ask(action=f"ec2:{name}")]
        for name in (
            "DescribeAvailabilityZones", "DescribeFleets", "DescribeImages",
            "DescribeInstanceTypes", "DescribeInstances", "DescribeLaunchTemplateVersions",
            "DescribeSpotInstanceRequests", "DescribeSpotPriceHistory", "DescribeSubnets",
            "DescribeTags", "DescribeVolumes",
        )
    },
    **{
        xform_name(name): [Ask(action=f"servicequotas:{name}")]
        for name in ("GetServiceQuota", "GetAWSDefaultServiceQuota")
    },
    "get_parameter": [Ask(action="ssm:GetParameter", resource=IMAGE_PARAMETER)],
    "get_parameters": [Ask(action="ssm:GetParameters", resource=IMAGE_PARAMETER)],
    "get_secret_value": [
        Ask(action="secretsmanager:GetSecretValue", resource=f"{SECRETS}:admin-1")
    ],
    "get_role": [
        Ask(action="iam:GetRole", resource=f"{SPOT_ROLES}/AWSServiceRoleForEC2Spot"),
        Ask(action="iam:GetRole", resource=RUN_ROLE),
    ],
    "create_service_linked_role": [
        Ask(
            action="iam:CreateServiceLinkedRole",
            resource=f"{SPOT_ROLES}/AWSServiceRoleForEC2Spot",
        )
    ],
    "get_caller_identity": [],  # needs no right
    "list_objects_v2": [Ask(action="s3:ListBucket", resource=BUCKET)],
    "head_bucket": [Ask(action="s3:ListBucket", resource=BUCKET)],
    **{
        xform_name(name): [
            Ask(action=f"s3:{right}", resource=f"{BUCKET}/{key}")
            for key in ("runs/r1/final/stage-00", "starts/r1/agent.env", "data/0/tokens")
            + (("boot/constraints.txt", "boot/bounds.json") if right == "GetObject" else ())
        ]
        for name, right in {
            "GetObject": "GetObject", "HeadObject": "GetObject", "PutObject": "PutObject",
            "DeleteObject": "DeleteObject",
        }.items()
    },
}  # fmt: skip
"""Every call that a launcher may make, with what the service asks before it is done."""
