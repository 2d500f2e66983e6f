"""What the account holds for a run, or for any run: fleets, spot requests, instances, volumes; and
how each is released.

Rule: everything is found by tag, never by a list of its own. Releasing what has ended is no error.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from bamboo.ids import InstanceId, RunId, ZoneId
from cloud.ec2 import requests
from cloud.ec2.calls import Unknown, of_the_known, translated
from cloud.ec2.requests import EXPIRY_TAG, RUN_TAG, STACK_TAG
from cloud.provider import CloudRefused, Held, HeldKind, Market, Pool

ENDED_INSTANCES = ("shutting-down", "terminated")
REQUESTS_UNDER_WAY = ("open", "active")
FLEETS_UNDER_WAY = ("submitted", "active", "modifying")
ENDED_VOLUMES = ("deleting", "deleted")
FLEETS_A_CALL = 25
"""DeleteFleets takes at most so many instant fleets."""
DELETED_ALREADY = ("fleetIdDoesNotExist", "fleetNotInDeletableState")


def held(reader: Any, run: RunId | None, *, stack: str = "") -> tuple[Held, ...]:
    """See `Provider.held`; of this stack, or of any if it is empty."""
    asked = requests.tagged(run, stack=stack)
    fleet_ids = [
        tag["ResourceId"]
        for tag in _all(reader, "describe_tags", "DescribeTags", "Tags", requests.fleet_tags(run))
    ]
    fleets = [
        raw
        for some in _in_parts(fleet_ids)
        for raw in of_the_known(some, lambda ids: fleets_of(reader, ids))
        if not stack or _tags(raw).get(STACK_TAG) == stack
    ]
    name = "DescribeSpotInstanceRequests"
    spot = _all(reader, "describe_spot_instance_requests", name, "SpotInstanceRequests", asked)
    instances = [
        one
        for reservation in _all(
            reader, "describe_instances", "DescribeInstances", "Reservations", asked
        )
        for one in reservation["Instances"]
    ]
    volumes = _all(reader, "describe_volumes", "DescribeVolumes", "Volumes", asked)
    found = [
        *(_fleet(raw) for raw in fleets if raw["FleetState"] in FLEETS_UNDER_WAY),
        *(_request(raw) for raw in spot if raw["State"] in REQUESTS_UNDER_WAY),
        *(_instance(raw) for raw in instances if raw["State"]["Name"] not in ENDED_INSTANCES),
        *(_volume(raw) for raw in volumes if raw["State"] not in ENDED_VOLUMES),
    ]
    order = list(HeldKind)
    return tuple(sorted(found, key=lambda one: (order.index(one.kind), one.id)))


def fleets_of(reader: Any, ids: Sequence[str]) -> list[Mapping[str, Any]]:
    """The named fleets as EC2 shows them. An empty list would mean all but the instant ones. Raises
    Unknown where EC2 does not know one of them."""
    return _all(reader, "describe_fleets", "DescribeFleets", "Fleets", {"FleetIds": list(ids)})


def release(
    reader: Any, those: Sequence[Held], *, terminate: Callable[[Sequence[InstanceId]], object]
) -> None:
    """See `Provider.release`."""

    def of(kind: HeldKind) -> list[str]:
        return [one.id for one in those if one.kind is kind]

    def cancel(ids: list[str]) -> list[object]:
        with translated("CancelSpotInstanceRequests"):
            reader.cancel_spot_instance_requests(SpotInstanceRequestIds=ids)
        return []

    for some in _in_parts(of(HeldKind.FLEET)):
        _delete_fleets(reader, some)
    if spot := of(HeldKind.SPOT_REQUEST):
        of_the_known(spot, cancel)
    terminate([InstanceId(name) for name in of(HeldKind.INSTANCE)])
    for one in those:
        if one.kind is HeldKind.VOLUME and not one.attached_to:
            try:
                with translated("DeleteVolume"):
                    reader.delete_volume(VolumeId=one.id)
            except Unknown:
                continue


def _in_parts(fleets: Sequence[str]) -> list[Sequence[str]]:
    return [fleets[n : n + FLEETS_A_CALL] for n in range(0, len(fleets), FLEETS_A_CALL)]


def _delete_fleets(reader: Any, fleets: Sequence[str]) -> None:
    with translated("DeleteFleets"):
        answer = reader.delete_fleets(FleetIds=list(fleets), TerminateInstances=True)
    failed = [
        f"{one['FleetId']}: {one.get('Error', {}).get('Code', 'unknown')}"
        for one in answer.get("UnsuccessfulFleetDeletions", ())
        if one.get("Error", {}).get("Code") not in DELETED_ALREADY
    ]
    if failed:
        raise CloudRefused(f"EC2 refuses DeleteFleets: {', '.join(failed)}")


def _all(
    reader: Any, method: str, action: str, key: str, asked: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """All pages of an answer."""
    with translated(action):
        pages = reader.get_paginator(method).paginate(**asked)
        return [raw for page in pages for raw in page[key]]


def _tags(raw: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in raw.get("Tags", ())}


def _facts(raw: Mapping[str, Any], since: object) -> dict[str, Any]:
    """What all kinds have in common: the run, since when, and until when."""
    tags = _tags(raw)
    expires = tags.get(EXPIRY_TAG, "")
    return {
        "run": RunId(tags.get(RUN_TAG, "")),
        "stack": tags.get(STACK_TAG, ""),
        "since_s": since.timestamp() if isinstance(since, datetime) else None,
        "expires_at_s": float(expires) if expires.isdecimal() else None,
    }


def _fleet(raw: Mapping[str, Any]) -> Held:
    return Held(
        kind=HeldKind.FLEET,
        id=str(raw["FleetId"]),
        state=str(raw["FleetState"]),
        # An instant fleet requests instances once, when it is made.
        standing=raw.get("Type") != "instant",
        **_facts(raw, raw.get("CreateTime")),
    )


def _request(raw: Mapping[str, Any]) -> Held:
    state = str(raw["State"])
    return Held(
        kind=HeldKind.SPOT_REQUEST,
        id=str(raw["SpotInstanceRequestId"]),
        state=state,
        standing=state == "open" or raw.get("Type") == "persistent",
        **_facts(raw, raw.get("CreateTime")),
    )


def _instance(raw: Mapping[str, Any]) -> Held:
    spot = raw.get("InstanceLifecycle") == "spot"
    return Held(
        kind=HeldKind.INSTANCE,
        id=str(raw["InstanceId"]),
        state=str(raw["State"]["Name"]),
        pool=Pool(
            instance_type=str(raw["InstanceType"]),
            zone=ZoneId(str(raw["Placement"]["AvailabilityZone"])),
            market=Market.SPOT if spot else Market.ON_DEMAND,
        ),
        **_facts(raw, raw.get("LaunchTime")),
    )


def _volume(raw: Mapping[str, Any]) -> Held:
    attached = [str(one["InstanceId"]) for one in raw.get("Attachments", ())]
    return Held(
        kind=HeldKind.VOLUME,
        id=str(raw["VolumeId"]),
        state=str(raw["State"]),
        gib=int(raw.get("Size", 0)),
        attached_to=attached[0] if attached else "",
        **_facts(raw, raw.get("CreateTime")),
    )
