"""A repeated CreateFleet: the fleet is the same one, and shows itself what it started."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from bamboo.ids import InstanceId, RunId, ZoneId
from cloud.ec2.provider import Ec2Provider
from cloud.ec2.requests import Ec2Settings
from cloud.provider import CloudUnavailable, LaunchAnswer, LaunchSpec, Market, Pool

A, B = (
    Pool(instance_type="g5.xlarge", zone=ZoneId(zone), market=Market.SPOT)
    for zone in ("us-east-1a", "us-east-1b")
)
SPEC = LaunchSpec(
    run=RunId("r1"), pool=A, alternatives=(B,), count=2, token="t", expires_at_s=1_800_000_000
)
OUT = {"ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": "none there"}


def of(pool: Pool, *instances: str) -> dict[str, Any]:
    override = {"InstanceType": pool.instance_type, "AvailabilityZone": pool.zone}
    return {
        "LaunchTemplateAndOverrides": {"Overrides": override},
        "InstanceIds": list(instances),
        "InstanceType": pool.instance_type,
    }


def ask(answer: dict[str, Any], shown: dict[str, Any] | str) -> LaunchAnswer:
    """What comes of a wish that CreateFleet answers so, where DescribeFleets shows so much of the
    fleet, or fails with that code."""

    class Account:
        run_instances = None

        def create_fleet(self, **asked: Any) -> dict[str, Any]:
            assert asked["ClientToken"] == "t"
            return {"FleetId": "fleet-1", **answer}

        def get_paginator(self, method: str) -> "Account":
            assert method == "describe_fleets"
            return self

        def paginate(self, *, FleetIds: list[str]) -> list[dict[str, Any]]:
            if isinstance(shown, str):
                raise ClientError({"Error": {"Code": shown, "Message": "said so"}}, "call")
            assert FleetIds == ["fleet-1"]
            return [{"Fleets": [{"FleetId": "fleet-1", "FleetState": "active", **shown}]}]

    provider = Ec2Provider(
        launcher=Account(),
        reader=Account(),
        settings=Ec2Settings(region="us-east-1", launch_template="bamboo-worker"),
        instance_types=["g5.xlarge"],
        zones=["us-east-1a", "us-east-1b"],
        markets=[Market.SPOT],
        on_demand_usd_per_hour={},
    )
    return provider.launch([SPEC])


def launched(answer: LaunchAnswer) -> list[tuple[InstanceId, Pool]]:
    return [(one.instance, one.pool) for one in answer.launched]


@pytest.mark.parametrize("repeated", [{}, {"Instances": [of(A, "i-1")]}])
def test_what_a_repeat_does_not_name_the_fleet_shows(repeated: dict[str, Any]) -> None:
    answer = ask(repeated, {"Instances": [of(A, "i-1"), of(B, "i-2")]})
    assert launched(answer) == [("i-1", A), ("i-2", B)]
    assert answer.refusals == ()


def test_why_fewer_came_is_told_by_the_fleet_as_well() -> None:
    error = {**of(B), **OUT}
    answer = ask({}, {"Instances": [of(A, "i-1")], "Errors": [error]})
    assert launched(answer) == [("i-1", A)]
    assert [(one.pool, one.missing) for one in answer.refusals] == [(B, 1)]


@pytest.mark.parametrize(
    "code", ["InvalidFleetId.NotFound", "RequestLimitExceeded", "InternalError"]
)
def test_where_neither_tells_what_came_of_it_the_wish_stays_open(code: str) -> None:
    with pytest.raises(CloudUnavailable, match="fleet-1 cannot be seen yet"):
        ask({}, code)


@pytest.mark.parametrize("code", ["InvalidFleetId.NotFound", "UnauthorizedOperation"])
def test_an_answer_that_says_why_is_one_also_where_the_fleet_is_not_shown(code: str) -> None:
    answer = ask({"Instances": [of(A, "i-1")], "Errors": [{**of(B), **OUT}]}, code)
    assert launched(answer) == [("i-1", A)]
    assert [one.pool for one in answer.refusals] == [B]


def test_a_fleet_that_gave_all_is_not_asked_for_again() -> None:
    answer = ask({"Instances": [of(A, "i-1", "i-2")]}, "UnauthorizedOperation")
    assert [one.instance for one in answer.launched] == ["i-1", "i-2"]


def test_a_hiccup_of_one_pool_is_no_refusal_for_good() -> None:
    error = {**of(A), "ErrorCode": "InternalError", "ErrorMessage": "try again"}
    (refusal,) = ask({"Errors": [error]}, {}).refusals
    assert (refusal.pool, refusal.kind) == (A, "pool-out")
