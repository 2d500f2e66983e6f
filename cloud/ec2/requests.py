"""The exact requests that go to EC2, as plain values: a dry run prints them, the provider sends
them. Pure.

What the launch template contains is repeated explicitly. A template can change while a run goes on,
and these settings (one-time spot, tokens only, nothing left after the end) are not negotiable.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bamboo.ids import RunId
from cloud.ec2.run_role import RunRole
from cloud.provider import LaunchSpec, Market, Pool

RUN_TAG = "bamboo:run"
STACK_TAG = "bamboo:stack"
EXPIRY_TAG = "bamboo:expires-at"
TOKEN_TAG = "bamboo:launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Settings:
    """The settings that do not change during a run. `subnets` are by zone; empty means the default
    subnet of the zone. `launch_template` or `image` may be empty, but not both. `stack` is a tag of
    everything that is started, and things of another stack are neither seen nor ended; empty: there
    is no stack."""

    region: str
    stack: str = ""
    image: str = ""
    launch_template: str = ""
    subnets: Mapping[str, str] = field(default_factory=dict)
    security_groups: tuple[str, ...] = ()
    instance_profile: str = ""
    user_data: str = ""


def of_run(settings: Ec2Settings, role: RunRole) -> Ec2Settings:
    """The settings with which a run's instances have the run's own role: by the run's launch
    template where the stack has one, otherwise by the name of the profile."""
    if settings.launch_template:
        return replace(settings, launch_template=role.template)
    return replace(settings, instance_profile=role.name)


def asks_several(settings: Ec2Settings) -> bool:
    """Whether one call can cover several pools. CreateFleet needs a launch template, and cannot
    have user data, groups or a profile of its own."""
    own = settings.user_data or settings.security_groups or settings.instance_profile
    return bool(settings.launch_template) and not own


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
        "TagSpecifications": _tagged(spec, settings, "instance", "volume"),
    }
    if spec.pool.market is Market.SPOT:
        # No maximum price: it saves nothing and adds a reason to be interrupted. One-time, because
        # a persistent request starts the instance again after its end.
        request["InstanceMarketOptions"] = {
            "MarketType": "spot",
            "SpotOptions": {
                "SpotInstanceType": "one-time",
                "InstanceInterruptionBehavior": "terminate",
            },
        }
        request["TagSpecifications"] += _tagged(spec, settings, "spot-instances-request")
    if settings.image:
        request["ImageId"] = settings.image
    if settings.launch_template:
        request["LaunchTemplate"] = _template(settings)
    if settings.subnets:
        request["SubnetId"] = settings.subnets[spec.pool.zone]
    if settings.security_groups:
        request["SecurityGroupIds"] = list(settings.security_groups)
    if settings.instance_profile:
        request["IamInstanceProfile"] = {"Name": settings.instance_profile}
    if settings.user_data:
        request["UserData"] = settings.user_data
    return request


def create_fleet(spec: LaunchSpec, settings: Ec2Settings) -> dict[str, Any]:
    """The arguments of CreateFleet for a wish over several pools: up to `spec.count` instances,
    once. What a fleet cannot specify itself (metadata, disk, boot) is in the launch template.
    """
    spot = spec.pool.market is Market.SPOT
    # All in one zone where there are several, because bytes between nodes of one zone cost nothing.
    options: dict[str, Any] = {"SingleAvailabilityZone": len({p.zone for p in spec.pools}) > 1}
    if spot:
        # The pools are about equally good, and only the cloud knows which of them lasts. No maximum
        # price, and no other mode than one-time: an instant fleet has no other.
        options |= {
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
        }
    else:
        options["AllocationStrategy"] = "prioritized"
    return {
        "Type": "instant",
        "ClientToken": spec.token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": _template(settings),
                "Overrides": [
                    _override(pool, priority, settings) for priority, pool in enumerate(spec.pools)
                ],
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": spec.count,
            "DefaultTargetCapacityType": spec.pool.market.value,
        },
        "SpotOptions" if spot else "OnDemandOptions": options,
        "TagSpecifications": _tagged(spec, settings, "fleet", "instance", "volume"),
    }


def _override(pool: Pool, priority: int, settings: Ec2Settings) -> dict[str, Any]:
    """One pool of a fleet; the lowest number comes first."""
    place = (
        {"SubnetId": settings.subnets[pool.zone]}
        if settings.subnets
        else {"AvailabilityZone": pool.zone}
    )
    image = {"ImageId": settings.image} if settings.image else {}
    return {"InstanceType": pool.instance_type, **place, **image, "Priority": float(priority)}


def launch_call(spec: LaunchSpec, settings: Ec2Settings) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of the call for a wish."""
    if spec.alternatives:
        return "CreateFleet", create_fleet(spec, settings)
    return "RunInstances", run_instances(spec, settings)


def shown(call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call as it may be shown: the user data, which is long and may contain secrets, as its
    digest and size."""
    text = arguments.get("UserData")
    if text is not None:
        digest = hashlib.sha256(text.encode()).hexdigest()
        data = {"sha256": digest, "bytes": len(text.encode())}
        arguments = {**arguments, "UserData": data}
    return {"call": call, "arguments": dict(arguments)}


def tagged(run: RunId | None, *, stack: str = "") -> dict[str, Any]:
    """The filter for things with the tag of a run, or of any run, and with that of the stack if
    there is one."""
    filters = [
        {"Name": "tag-key", "Values": [RUN_TAG]}
        if run is None
        else {"Name": f"tag:{RUN_TAG}", "Values": [run]}
    ]
    if stack:
        filters.append({"Name": f"tag:{STACK_TAG}", "Values": [stack]})
    return {"Filters": filters}


def fleet_tags(run: RunId | None) -> dict[str, Any]:
    """The arguments of DescribeTags for the fleets of a run, or of any run. DescribeFleets shows an
    instant fleet only to a caller that names it."""
    filters = [
        {"Name": "resource-type", "Values": ["fleet"]},
        {"Name": "key", "Values": [RUN_TAG]},
    ]
    if run is not None:
        filters.append({"Name": "value", "Values": [run]})
    return {"Filters": filters}


def prolong(instances: Sequence[str], expires_at_s: int) -> dict[str, Any]:
    """The arguments of CreateTags that move the expiry of instances, and nothing else."""
    tag = {"Key": EXPIRY_TAG, "Value": str(expires_at_s)}
    return {"Resources": list(instances), "Tags": [tag]}


def spot_prices(*, instance_types: tuple[str, ...], now_iso: str) -> dict[str, Any]:
    """The arguments of DescribeSpotPriceHistory for the present prices (start = end = now)."""
    return {
        "InstanceTypes": list(instance_types),
        "ProductDescriptions": ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
        "StartTime": now_iso,
        "EndTime": now_iso,
    }


def zones(region: str) -> dict[str, Any]:
    """The arguments of DescribeAvailabilityZones: the zones of a region, without local zones."""
    return {
        "Filters": [
            {"Name": "zone-type", "Values": ["availability-zone"]},
            {"Name": "region-name", "Values": [region]},
        ]
    }


def instance_types(types: Sequence[str]) -> dict[str, Any]:
    """The arguments of DescribeInstanceTypes. The types are a filter, because a list by name fails
    as a whole when the region lacks one of them."""
    return {"Filters": [{"Name": "instance-type", "Values": list(types)}]}


def template_version(template: str) -> dict[str, Any]:
    """The arguments of DescribeLaunchTemplateVersions for the version that a launch uses."""
    key = "LaunchTemplateId" if template.startswith("lt-") else "LaunchTemplateName"
    return {key: template, "Versions": ["$Default"]}


def run_template(role: RunRole, data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of CreateLaunchTemplate for a run: `data` of the stack's template, with the
    run's own profile."""
    tags = [{"Key": RUN_TAG, "Value": role.run}, {"Key": STACK_TAG, "Value": role.stack}]
    return {
        "LaunchTemplateName": role.template,
        "LaunchTemplateData": {**data, "IamInstanceProfile": {"Name": role.name}},
        "TagSpecifications": [{"ResourceType": "launch-template", "Tags": tags}],
    }


def image(image_id: str) -> dict[str, Any]:
    """The arguments of DescribeImages. The id is a filter, as an unknown id would be an error."""
    return {"Filters": [{"Name": "image-id", "Values": [image_id]}]}


def subnets(ids: Sequence[str]) -> dict[str, Any]:
    """The arguments of DescribeSubnets, by a filter as for an image."""
    return {"Filters": [{"Name": "subnet-id", "Values": list(ids)}]}


def default_subnets() -> dict[str, Any]:
    """The arguments of DescribeSubnets for those that a launch without subnets uses."""
    return {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}


def _template(settings: Ec2Settings) -> dict[str, str]:
    by_id = settings.launch_template.startswith("lt-")
    key = "LaunchTemplateId" if by_id else "LaunchTemplateName"
    return {key: settings.launch_template, "Version": "$Default"}


def _tagged(spec: LaunchSpec, settings: Ec2Settings, *kinds: str) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": _tags(spec, settings.stack)} for kind in kinds]


def _tags(spec: LaunchSpec, stack: str) -> list[dict[str, str]]:
    tags = {
        "Name": f"bamboo-{spec.run}",
        RUN_TAG: spec.run,
        EXPIRY_TAG: str(spec.expires_at_s),
        TOKEN_TAG: spec.token,
    }
    if stack:
        tags[STACK_TAG] = stack
    return [{"Key": key, "Value": value} for key, value in tags.items()]
