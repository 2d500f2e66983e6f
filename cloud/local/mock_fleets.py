"""CreateFleet of the mock: what a request asks for, and the answer, which may have both errors and
instances. Only instant fleets of one market and one launch template, as Bamboo requests them."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from cloud.local.http_server import Answer
from cloud.local.mock_answers import XML_NAMESPACE

_CONFIG = "LaunchTemplateConfigs.1."
_OVERRIDE = re.compile(r"LaunchTemplateConfigs\.1\.Overrides\.(\d+)\.(\w+)")
_TAGS = re.compile(r"TagSpecification\.(\d+)\.ResourceType")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPool:
    """One override of the request."""

    kind: str
    zone: str
    """Empty where it names a subnet."""
    subnet: str
    priority: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAsked:
    """What a request for a fleet asks for, pools by priority."""

    count: int
    market: str
    one_zone: bool
    pools: tuple[FleetPool, ...]
    template: Mapping[str, str]
    tags: Mapping[str, str]
    """In the form of the fields of a request for instances."""

    @classmethod
    def read(cls, form: Mapping[str, str]) -> "FleetAsked":
        """From the fields of the request."""
        overrides: dict[str, dict[str, str]] = {}
        for key, value in form.items():
            if found := _OVERRIDE.fullmatch(key):
                overrides.setdefault(found[1], {})[found[2]] = value
        pools = [
            FleetPool(
                kind=one["InstanceType"],
                zone=one.get("AvailabilityZone", ""),
                subnet=one.get("SubnetId", ""),
                priority=float(one.get("Priority", "0")),
            )
            for one in overrides.values()
        ]
        market = form["TargetCapacitySpecification.DefaultTargetCapacityType"]
        options = "SpotOptions" if market == "spot" else "OnDemandOptions"
        prefix = f"{_CONFIG}LaunchTemplateSpecification."
        return cls(
            count=int(form["TargetCapacitySpecification.TotalTargetCapacity"]),
            market=market,
            one_zone=form.get(f"{options}.SingleAvailabilityZone") == "true",
            pools=tuple(sorted(pools, key=lambda pool: pool.priority)),
            template={k[len(prefix) :]: v for k, v in form.items() if k.startswith(prefix)},
            tags=_tags(form, ("instance", "volume")),
        )

    def record(self, form: Mapping[str, str]) -> dict[str, str]:
        """The request that makes moto keep the fleet and its tags, and start nothing."""
        kept = {k: v for k, v in form.items() if not k.startswith("TagSpecification.")}
        empty = {"TargetCapacitySpecification.TotalTargetCapacity": "0"}
        return {**kept, **_tags(form, ("fleet",)), **empty}

    def run_instances(self, pool: FleetPool, number: int) -> dict[str, str]:
        """The request for instances that stands for one pool."""
        form = {
            "Action": "RunInstances",
            "Version": XML_NAMESPACE.rstrip("/").rpartition("/")[2],
            "InstanceType": pool.kind,
            "MinCount": str(number),
            "MaxCount": str(number),
            **{f"LaunchTemplate.{key}": value for key, value in self.template.items()},
            **self.tags,
        }
        if pool.zone:
            form["Placement.AvailabilityZone"] = pool.zone
        if pool.subnet:
            form["SubnetId"] = pool.subnet
        if self.market == "spot":
            form["InstanceMarketOptions.MarketType"] = "spot"
        return form


def _tags(form: Mapping[str, str], kinds: Sequence[str]) -> dict[str, str]:
    """The tag specifications of these kinds, numbered from 1 again."""
    found: dict[str, str] = {}
    specified = ((_TAGS.fullmatch(key), kind) for key, kind in form.items())
    numbers = sorted(match[1] for match, kind in specified if match and kind in kinds)
    for new, old in enumerate(numbers, start=1):
        prefix = f"TagSpecification.{old}."
        for key, value in form.items():
            if key.startswith(prefix):
                found[f"TagSpecification.{new}.{key[len(prefix) :]}"] = value
    return found


def instance_ids(body: bytes) -> list[str]:
    """The instances of a RunInstances answer."""
    return re.findall(r"<instanceId>(i-[0-9a-f]+)</instanceId>", body.decode())


def fleet_id(body: bytes) -> str:
    """The id of the fleet that moto made."""
    (found,) = re.findall(r"<fleetId>([^<]+)</fleetId>", body.decode())
    return str(found)


def fleet_created(
    fleet: str,
    given: Sequence[tuple[FleetPool, str]],
    errors: Sequence[tuple[FleetPool, str]],
    *,
    market: str,
) -> Answer:
    """The answer for a fleet of this id."""
    instances = "".join(
        f"<item><launchTemplateAndOverrides>{_overrides(pool)}</launchTemplateAndOverrides>"
        f"<lifecycle>{market}</lifecycle><instanceIds><item>{name}</item></instanceIds>"
        f"<instanceType>{escape(pool.kind)}</instanceType></item>"
        for pool, name in given
    )
    failed = "".join(
        f"<item><launchTemplateAndOverrides>{_overrides(pool)}</launchTemplateAndOverrides>"
        f"<lifecycle>{market}</lifecycle><errorCode>{escape(code)}</errorCode>"
        f"<errorMessage>no capacity at present</errorMessage></item>"
        for pool, code in errors
    )
    body = (
        f'<CreateFleetResponse xmlns="{XML_NAMESPACE}"><requestId>{uuid.uuid4()}</requestId>'
        f"<fleetId>{fleet}</fleetId><errorSet>{failed}</errorSet>"
        f"<fleetInstanceSet>{instances}</fleetInstanceSet></CreateFleetResponse>"
    )
    return Answer(status="200 OK", headers=(("Content-Type", "text/xml"),), body=body.encode())


def _overrides(pool: FleetPool) -> str:
    place = (
        f"<subnetId>{escape(pool.subnet)}</subnetId>"
        if pool.subnet
        else f"<availabilityZone>{escape(pool.zone)}</availabilityZone>"
    )
    return f"<overrides><instanceType>{escape(pool.kind)}</instanceType>{place}</overrides>"
