"""The exact EC2 requests, held against a golden file, and the meaning of error codes and prices."""

import contextlib
import hashlib
import json
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bamboo.errors import InputError
from bamboo.ids import RunId, ZoneId
from cloud.ec2 import requests
from cloud.ec2.errors import refusal_kind
from cloud.ec2.fleets import fleet_answer
from cloud.ec2.pricing import on_demand_offers, spot_offers
from cloud.ec2.requests import Ec2Settings
from cloud.ec2.user_data import agent_environment, agent_names, boot_script
from cloud.provider import LaunchSpec, Market, Pool, RefusalKind

GOLDEN = Path(__file__).parent / "golden"
HOSTILE_NAMES = (
    *("PYTHONWARNINGS", "BROWSER", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "LD_PRELOAD"),
    *("AWS_CONFIG_FILE", "AWS_ENDPOINT_URL", "BAMBOO_WORKER_ENTRY", "BAMBOO_ZYGOTE", "PATH"),
    *("BASH_ENV", "https_proxy", "BAMBOO_RUN ", "bamboo_run", ""),
)
"""Of an environment: each starts code, or changes who is asked, in some process of an instance."""


def spec(market: Market = Market.SPOT) -> LaunchSpec:
    return LaunchSpec(
        run=RunId("calm-fox"),
        pool=Pool(instance_type="g5.xlarge", zone=ZoneId("us-east-1a"), market=market),
        count=4,
        token="calm-fox-1",
        expires_at_s=1_800_000_000,
    )


FULL = Ec2Settings(
    region="us-east-1",
    image="ami-0123456789abcdef0",
    launch_template="bamboo-worker",
    subnets={"us-east-1a": "subnet-1", "us-east-1b": "subnet-2"},
    security_groups=("sg-1",),
    instance_profile="bamboo-worker",
    user_data="#!/bin/bash\n",
)


def test_a_full_spot_request_is_the_golden_one() -> None:
    golden = json.loads((GOLDEN / "run_instances.json").read_text())
    assert requests.run_instances(spec(), FULL) == golden


def test_an_on_demand_request_differs_in_the_market_alone() -> None:
    spot = requests.run_instances(spec(), FULL)
    on_demand = requests.run_instances(spec(Market.ON_DEMAND), FULL)
    assert spot.pop("InstanceMarketOptions")["SpotOptions"]["SpotInstanceType"] == "one-time"
    assert spot["TagSpecifications"].pop()["ResourceType"] == "spot-instances-request"
    assert on_demand == spot


def test_what_is_not_set_is_not_sent() -> None:
    request = requests.run_instances(spec(), Ec2Settings(region="us-east-1", image="ami-1"))
    for absent in ("LaunchTemplate", "SubnetId", "SecurityGroupIds", "UserData"):
        assert absent not in request
    assert request["MetadataOptions"]["HttpTokens"] == "required"


def test_a_template_is_named_by_id_or_by_name() -> None:
    by_id = Ec2Settings(region="us-east-1", launch_template="lt-0abc")
    request = requests.run_instances(spec(), by_id)
    assert request["LaunchTemplate"] == {"LaunchTemplateId": "lt-0abc", "Version": "$Default"}
    assert "ImageId" not in request


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", RefusalKind.POOL_OUT),
        ("MaxSpotInstanceCountExceeded", RefusalKind.POOL_OUT),
        ("VcpuLimitExceeded", RefusalKind.POOL_OUT),
        ("UnfulfillableCapacity", RefusalKind.POOL_OUT),
        ("Unsupported", RefusalKind.POOL_OUT),
        ("InsufficientFreeAddressesInSubnet", RefusalKind.POOL_OUT),
        ("MaxFleetCountExceeded", RefusalKind.POOL_OUT),
        ("ReservationCapacityExceeded", RefusalKind.POOL_OUT),
        ("InternalError", RefusalKind.POOL_OUT),
        ("ServiceUnavailable", RefusalKind.POOL_OUT),
        ("RequestLimitExceeded", RefusalKind.THROTTLED),
        ("TooManyRequestsException", RefusalKind.THROTTLED),
        ("UnauthorizedOperation", RefusalKind.REFUSED),
        ("InvalidAMIID.NotFound", RefusalKind.REFUSED),
    ],
)
def test_what_an_error_code_means(code: str, kind: RefusalKind) -> None:
    assert refusal_kind(code) is kind


def record(zone: str, usd: str, hour: int, kind: str = "g5.xlarge") -> dict[str, object]:
    return {
        "InstanceType": kind,
        "AvailabilityZone": zone,
        "SpotPrice": usd,
        "Timestamp": datetime(2026, 1, 1, hour, tzinfo=UTC),
    }


def test_spot_offers_take_the_newest_price_of_each_pool_cheapest_first() -> None:
    history = [
        record("us-east-1a", "0.50", 3),
        record("us-east-1a", "0.10", 1),
        record("us-east-1b", "0.40", 2),
        record("us-east-1z", "0.01", 2),
    ]
    offers = spot_offers(history, zones=["us-east-1a", "us-east-1b"]).offers
    assert [(o.pool.zone, o.usd_per_hour) for o in offers] == [
        ("us-east-1b", 0.4),
        ("us-east-1a", 0.5),
    ]


def test_equal_prices_go_by_the_order_of_the_zones() -> None:
    history = [record("us-east-1a", "0.5", 1), record("us-east-1b", "0.5", 1)]
    offers = spot_offers(history, zones=["us-east-1b", "us-east-1a"]).offers
    assert [o.pool.zone for o in offers] == ["us-east-1b", "us-east-1a"]


def test_on_demand_offers_leave_out_what_has_no_price() -> None:
    offers = on_demand_offers(
        {"g5.xlarge": 1.006}, instance_types=["g5.xlarge", "new.type"], zones=["us-east-1a"]
    ).offers
    assert [(o.pool.instance_type, o.usd_per_hour) for o in offers] == [("g5.xlarge", 1.006)]


def test_the_agents_settings_file_has_a_line_for_each() -> None:
    text = agent_environment({"BAMBOO_RUN": "calm-fox", "BAMBOO_REDIS_URL": "secret:b/runs/x"})
    assert text == 'BAMBOO_REDIS_URL="secret:b/runs/x"\nBAMBOO_RUN="calm-fox"\n'
    with pytest.raises(InputError, match=r"BAMBOO_RUN cannot stand in .*: its value"):
        agent_environment({"BAMBOO_RUN": "two\nlines"})


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_what_runs_code_by_itself_is_no_setting_of_an_agent(name: str) -> None:
    with pytest.raises(InputError, match="an instance is given no other names than"):
        agent_environment({name: "1"})


@given(st.sampled_from(agent_names()) | st.text(), st.text())
@example("BAMBOO_RUN", '"; reboot; "')
@example("BAMBOO_RUN", "$(reboot)")
@example("BAMBOO_RUN", "a\\")
def test_no_setting_adds_a_line_or_ends_its_quotes(name: str, value: str) -> None:
    with contextlib.suppress(InputError):
        text = agent_environment({name: value})
        read = re.fullmatch(r'([A-Z_]+)="([^"\\$`\s]*)"\n', text)
        assert read is not None
        assert (read[1], read[2]) == (name, value)


def test_the_boot_script_learns_its_bucket_first() -> None:
    text = boot_script(bucket="b-1", script="echo hi\n")
    assert text == "#!/bin/bash\nexport BAMBOO_BUCKET=b-1\necho hi\n"


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@example("b; touch stolen")
@example("$(touch stolen)")
@example("a\nb'\"`\\")
def test_nothing_of_a_bucket_s_name_runs_at_the_boot(bucket: str) -> None:
    text = boot_script(bucket=bucket, script='printf %s "$BAMBOO_BUCKET"')
    done = subprocess.run(
        ["bash"], input=text.encode(), capture_output=True, check=True, timeout=30, env={}
    )
    assert done.stdout == bucket.encode()


ALTERNATIVE = Pool(instance_type="g6.xlarge", zone=ZoneId("us-east-1b"), market=Market.SPOT)
STACK = Ec2Settings(
    region="us-east-1",
    launch_template="bamboo-worker",
    subnets={"us-east-1a": "subnet-1", "us-east-1b": "subnet-2"},
)


def over_two() -> LaunchSpec:
    return replace(spec(), alternatives=(ALTERNATIVE,))


def test_a_full_fleet_request_is_the_golden_one() -> None:
    golden = json.loads((GOLDEN / "create_fleet.json").read_text())
    assert requests.launch_call(over_two(), STACK) == ("CreateFleet", golden)
    assert "MaxPrice" not in json.dumps(golden)
    assert "MaxTotalPrice" not in json.dumps(golden)


def test_an_on_demand_fleet_takes_its_pools_by_priority() -> None:
    anchor = replace(
        spec(Market.ON_DEMAND), alternatives=(replace(ALTERNATIVE, market=Market.ON_DEMAND),)
    )
    request = requests.create_fleet(anchor, STACK)
    assert request["OnDemandOptions"]["AllocationStrategy"] == "prioritized"
    assert "SpotOptions" not in request
    assert request["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "on-demand"


def test_only_a_template_that_says_all_else_can_be_asked_over_several_pools() -> None:
    assert requests.asks_several(STACK)
    assert not requests.asks_several(Ec2Settings(region="us-east-1", image="ami-1"))
    assert not requests.asks_several(FULL)


def test_user_data_is_shown_as_digest_and_size() -> None:
    call = requests.shown(*requests.launch_call(spec(), FULL))
    assert call["call"] == "RunInstances"
    data = call["arguments"]["UserData"]
    text = b"#!/bin/bash\n"
    assert data == {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    assert "UserData" not in requests.shown("CreateFleet", {"Type": "instant"})["arguments"]


def entry(zone: str, *, by_subnet: bool = False, **more: object) -> dict[str, object]:
    override = {"SubnetId": STACK.subnets[zone]} if by_subnet else {"AvailabilityZone": zone}
    kind = "g5.xlarge" if zone == "us-east-1a" else "g6.xlarge"
    return {
        "LaunchTemplateAndOverrides": {"Overrides": {"InstanceType": kind, **override}},
        **more,
    }


@pytest.mark.parametrize("by_subnet", [False, True])
def test_instances_and_errors_of_a_fleet_are_told_by_pool(by_subnet: bool) -> None:
    given = entry("us-east-1a", by_subnet=by_subnet, InstanceIds=["i-1", "i-2"])
    failed = entry(
        "us-east-1b", by_subnet=by_subnet, ErrorCode="InsufficientInstanceCapacity", ErrorMessage=""
    )
    answer = fleet_answer({"Instances": [given], "Errors": [failed, failed]}, over_two(), STACK)
    assert [(one.instance, one.pool) for one in answer.launched] == [
        ("i-1", spec().pool),
        ("i-2", spec().pool),
    ]
    assert [(r.pool, r.kind, r.missing) for r in answer.refusals] == [
        (ALTERNATIVE, RefusalKind.POOL_OUT, 2)
    ]


def test_a_fleet_that_came_short_without_a_word_blames_each_pool_and_a_full_one_none() -> None:
    short = fleet_answer({"Instances": []}, over_two(), STACK)
    assert {r.pool for r in short.refusals} == {spec().pool, ALTERNATIVE}
    full = entry("us-east-1a", InstanceIds=["i-1", "i-2", "i-3", "i-4"])
    tried = entry("us-east-1b", ErrorCode="InsufficientInstanceCapacity")
    assert fleet_answer({"Instances": [full], "Errors": [tried]}, over_two(), STACK).refusals == ()
