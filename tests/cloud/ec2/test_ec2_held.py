"""What is held and how it is given back, where AWS is stricter than the mock: at most 25 instant
fleets in a request to delete them, and nothing done for a list that holds an unknown id."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from bamboo.ids import RunId
from cloud.ec2.held import FLEETS_A_CALL, held, release
from cloud.provider import CloudRefused, Held, HeldKind

RUN = RunId("r1")
TAGS = [{"Key": "bamboo:run", "Value": RUN}]


class Strict:
    """A client of an account that has the fleets `there`; `tagged` names more. `failing`: a fleet
    -> the code with which its end fails."""

    def __init__(self, there: list[str], tagged: list[str], requests: list[str]) -> None:
        self.there, self.tagged, self.requests = there, tagged, requests
        self.failing: dict[str, str] = {}

    def get_paginator(self, method: str) -> "Strict":
        self._method = method
        return self

    def paginate(self, **asked: Any) -> list[dict[str, Any]]:
        match self._method:
            case "describe_tags":
                return [{"Tags": [{"ResourceId": one} for one in self.tagged]}]
            case "describe_fleets":
                self._know(asked["FleetIds"], self.there, "InvalidFleetId.NotFound")
                facts = {"FleetState": "active", "Type": "instant", "Tags": TAGS}
                return [{"Fleets": [{"FleetId": one, **facts} for one in asked["FleetIds"]]}]
            case "describe_spot_instance_requests":
                return [{"SpotInstanceRequests": []}]
            case "describe_instances":
                return [{"Reservations": []}]
            case _:
                return [{"Volumes": []}]

    def delete_fleets(self, *, FleetIds: list[str], TerminateInstances: bool) -> dict[str, Any]:
        assert TerminateInstances
        if len(FleetIds) > 25:
            raise refusal("InvalidParameterValue")
        wrong = {one: self.failing.get(one, "fleetIdDoesNotExist") for one in FleetIds
                 if one in self.failing or one not in self.there}  # fmt: skip
        self.there = [one for one in self.there if one in wrong or one not in FleetIds]
        return {
            "UnsuccessfulFleetDeletions": [
                {"FleetId": one, "Error": {"Code": code}} for one, code in wrong.items()
            ]
        }

    def cancel_spot_instance_requests(self, *, SpotInstanceRequestIds: list[str]) -> None:
        code = "InvalidSpotInstanceRequestID.NotFound"
        self._know(SpotInstanceRequestIds, self.requests, code)
        for one in SpotInstanceRequestIds:
            self.requests.remove(one)

    def _know(self, asked: list[str], known: list[str], code: str) -> None:
        if not set(asked) <= set(known):
            raise refusal(code)


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "said so"}}, "call")


def fleets(number: int) -> list[str]:
    return [f"fleet-{n:03d}" for n in range(number)]


def some(kind: HeldKind, names: list[str]) -> list[Held]:
    return [Held(kind=kind, id=name, run=RUN, state="active", since_s=None) for name in names]


@pytest.mark.parametrize("number", [1, FLEETS_A_CALL, FLEETS_A_CALL + 1, 4 * FLEETS_A_CALL])
def test_however_many_fleets_a_run_made_all_are_found_and_deleted(number: int) -> None:
    account = Strict(fleets(number), ["fleet-forgotten", *fleets(number)], [])
    found = held(account, RUN)
    assert [one.id for one in found] == fleets(number)
    release(account, found, terminate=lambda instances: None)
    assert account.there == []


@pytest.mark.parametrize("code", ["fleetIdDoesNotExist", "fleetNotInDeletableState"])
def test_a_fleet_that_is_deleted_already_is_fine(code: str) -> None:
    account = Strict(fleets(2), fleets(2), [])
    account.failing = {"fleet-000": code}
    release(account, some(HeldKind.FLEET, fleets(2)), terminate=lambda instances: None)
    assert "fleet-001" not in account.there


def test_a_fleet_that_cannot_be_deleted_is_named() -> None:
    account = Strict(fleets(1), fleets(1), [])
    account.failing = {"fleet-000": "unexpectedError"}
    with pytest.raises(CloudRefused, match="fleet-000: unexpectedError"):
        release(account, some(HeldKind.FLEET, fleets(1)), terminate=lambda instances: None)


def test_a_spot_request_that_is_forgotten_keeps_no_other_open() -> None:
    account = Strict([], [], ["sir-1", "sir-2"])
    those = some(HeldKind.SPOT_REQUEST, ["sir-0", "sir-1", "sir-2"])
    release(account, those, terminate=lambda instances: None)
    assert account.requests == []
