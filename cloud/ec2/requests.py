"""The exact requests that go to EC2, as plain values: a dry run prints them, the provider sends
them. Pure.

What the launch template holds as well is said again explicitly: a template can change behind a run,
and these settings (one-time spot, tokens only, nothing left after the end) are not negotiable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bamboo.ids import RunId
from cloud.provider import LaunchSpec, Market

RUN_TAG = "bamboo:run"
EXPIRY_TAG = "bamboo:expires-at"
TOKEN_TAG = "bamboo:launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Settings:
    """What does not change during a run. `subnets` by zone, empty: the default subnet of the zone;
    `launch_template` and `image` may be empty, but not both."""

    region: str
    image: str = ""
    launch_template: str = ""
    subnets: Mapping[str, str] = field(default_factory=dict)
    security_groups: tuple[str, ...] = ()
    instance_profile: str = ""
    user_data: str = ""


def run_instances(spec: LaunchSpec, settings: Ec2Settings) -> dict[str, Any]:
    """The arguments of RunInstances for a wish: from one to `spec.count` instances."""
    request: dict[str, Any] = {
        "InstanceType": spec.pool.instance_type,
        "MinCount": 1,
        "MaxCount": spec.count,
        "ClientToken": spec.token,
        "Placement": {"AvailabilityZone": spec.pool.zone},
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": _tags(spec)} for kind in ("instance", "volume")
        ],
    }
    if spec.pool.market is Market.SPOT:
        # No maximum price: it saves nothing and adds a way to be interrupted. One-time, because a
        # persistent request starts the instance again after its end.
        request["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {
                "SpotInstanceType": "one-time",
                "InstanceInterruptionBehavior": "terminate",
            },
        }
    if settings.image:
        request["ImageId"] = settings.image
    if settings.launch_template:
        key = "LaunchTemplateId" if settings.launch_template.startswith("lt-") else None
        request["LaunchTemplate"] = {
            key or "LaunchTemplateName": settings.launch_template,
            "Version": "$Default",
        }
    if settings.subnets:
        request["SubnetId"] = settings.subnets[spec.pool.zone]
    if settings.security_groups:
        request["SecurityGroupIds"] = list(settings.security_groups)
    if settings.instance_profile:
        request["IamInstanceProfile"] = {"Name": settings.instance_profile}
    if settings.user_data:
        request["UserData"] = settings.user_data
    return request


def describe_instances(run: RunId) -> dict[str, Any]:
    """The arguments of DescribeInstances for all instances of a run."""
    return {"Filters": [{"Name": f"tag:{RUN_TAG}", "Values": [run]}]}


def spot_prices(*, instance_types: tuple[str, ...], now_iso: str) -> dict[str, Any]:
    """The arguments of DescribeSpotPriceHistory for the present prices (start = end = now)."""
    return {
        "InstanceTypes": list(instance_types),
        "ProductDescriptions": ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
        "StartTime": now_iso,
        "EndTime": now_iso,
    }


def zones(region: str) -> dict[str, Any]:
    """The arguments of DescribeAvailabilityZones: the zones proper of a region, no local ones."""
    return {
        "Filters": [
            {"Name": "zone-type", "Values": ["availability-zone"]},
            {"Name": "region-name", "Values": [region]},
        ]
    }


def instance_types(types: Sequence[str]) -> dict[str, Any]:
    """The arguments of DescribeInstanceTypes. As a filter, because a type that the region does not
    have would refuse a list by name as a whole."""
    return {"Filters": [{"Name": "instance-type", "Values": list(types)}]}


def _tags(spec: LaunchSpec) -> list[dict[str, str]]:
    tags = {
        "Name": f"bamboo-{spec.run}",
        RUN_TAG: spec.run,
        EXPIRY_TAG: str(spec.expires_at_s),
        TOKEN_TAG: spec.token,
    }
    return [{"Key": key, "Value": value} for key, value in tags.items()]
