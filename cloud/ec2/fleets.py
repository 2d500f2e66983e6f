"""The answer of CreateFleet as launched and refused: a real cloud does both at once. Pure.

The same token never makes a second fleet. But AWS does not promise that the answer to a repeated
call names the instances of the first one, so the fleet itself is read.
"""

from collections.abc import Mapping
from typing import Any

from bamboo.ids import InstanceId, ZoneId
from cloud.ec2.errors import refusal_kind
from cloud.ec2.requests import Ec2Settings
from cloud.provider import (
    LaunchAnswer,
    Launched,
    LaunchSpec,
    Pool,
    Refusal,
    RefusalKind,
)


def names(answer: Mapping[str, Any]) -> list[str]:
    """The instances that an answer, or a fleet, names."""
    return [str(name) for one in answer.get("Instances", ()) for name in one.get("InstanceIds", ())]


def with_fleet(answer: Mapping[str, Any], fleet: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer, completed by what the fleet shows beyond it."""
    known = set(names(answer))
    more = [
        {**one, "InstanceIds": beyond}
        for one in fleet.get("Instances", ())
        if (beyond := [name for name in one.get("InstanceIds", ()) if name not in known])
    ]
    errors = answer.get("Errors") or fleet.get("Errors", ())
    return {**answer, "Instances": [*answer.get("Instances", ()), *more], "Errors": errors}


def fleet_answer(
    answer: Mapping[str, Any], spec: LaunchSpec, settings: Ec2Settings
) -> LaunchAnswer:
    """The instances by pool, and a refusal for each pool that was named with an error. Where fewer
    came than were requested and no error says why, each pool counts as out."""
    launched = tuple(
        Launched(instance=InstanceId(name), pool=_pool(one, spec, settings), token=spec.token)
        for one in answer.get("Instances", ())
        for name in one.get("InstanceIds", ())
    )
    missing = spec.count - len(launched)
    refusals = [
        Refusal(
            spec=spec,
            pool=_pool(one, spec, settings),
            kind=refusal_kind(str(one["ErrorCode"])),
            code=str(one["ErrorCode"]),
            message=str(one.get("ErrorMessage", "")),
            missing=max(missing, 0),
        )
        for one in answer.get("Errors", ())
    ]
    if missing > 0 and not refusals:
        refusals = [
            Refusal(
                spec=spec,
                pool=pool,
                kind=RefusalKind.POOL_OUT,
                code="InsufficientInstanceCapacity",
                message=f"only {len(launched)} of {spec.count} were given",
                missing=missing,
            )
            for pool in spec.pools
        ]
    # Several errors may name one pool, one for each attempt. A pool that gave all that was wanted
    # in the end must not be left alone.
    by_pool = {refusal.pool: refusal for refusal in refusals} if missing > 0 else {}
    return LaunchAnswer(launched=launched, refusals=tuple(by_pool.values()))


def _pool(one: Mapping[str, Any], spec: LaunchSpec, settings: Ec2Settings) -> Pool:
    """The pool of an entry of the answer, which names type and zone, or type and subnet. What it
    does not name is taken from the wish's first pool."""
    override = one.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    zones = {subnet: zone for zone, subnet in settings.subnets.items()}
    zone = override.get("AvailabilityZone") or zones.get(override.get("SubnetId", ""))
    kind = one.get("InstanceType") or override.get("InstanceType")
    return Pool(
        instance_type=str(kind or spec.pool.instance_type),
        zone=ZoneId(str(zone or spec.pool.zone)),
        market=spec.pool.market,
    )
