"""Of two stacks in one account a launcher sees and ends its own alone; and for its run's instance
profile and template, which are new to EC2, it waits."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from botocore.awsrequest import AWSResponse

from bamboo.ids import RunId, ZoneId
from cloud.ec2 import requests
from cloud.ec2.provider import KNOWN_WITHIN_S, Ec2Provider
from cloud.ec2.requests import Ec2Settings
from cloud.ec2.run_role import RunRole
from cloud.local.faults import Market as MockMarket
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from cloud.provider import HeldKind, LaunchSpec, Market, Pool, RefusalKind
from tests.cloud.ec2.aws_answers import answer, instead

RUN = RunId("of-two-stacks")
POOL = Pool(instance_type="g5.xlarge", zone=ZoneId("us-east-1a"), market=Market.SPOT)
WISH = LaunchSpec(run=RUN, pool=POOL, count=1, token="t", expires_at_s=1_800_000_000)
NEW = (
    "Value (r1-x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile "
    "name"
)


@pytest.fixture
def account() -> Iterator[MockAws]:
    aws = MockAws(metadata=MetadataService(), market=MockMarket({}), on_change=lambda: None)
    aws.start()
    yield aws
    aws.stop()


def of_stack(account: MockAws, stack: str) -> Ec2Provider:
    return Ec2Provider.connect(
        settings=Ec2Settings(region="us-east-1", stack=stack, image="ami-12345678"),
        instance_types=["g5.xlarge"],
        zones=["us-east-1a"],
        markets=[Market.SPOT],
        on_demand_usd_per_hour={},
        endpoint_url=account.url,
        token=account.token,
    )


def test_a_launcher_sees_the_runs_of_its_own_stack_alone(account: MockAws) -> None:
    one, other, any_stack = (of_stack(account, stack) for stack in ("one", "other", ""))
    (mine,) = one.launch([WISH]).launched
    (theirs,) = other.launch([replace(WISH, token="u")]).launched
    assert [seen.instance for seen in one.describe(RUN)] == [mine.instance]
    assert [seen.instance for seen in other.describe(RUN)] == [theirs.instance]
    held = [seen for seen in one.held(None) if seen.kind is HeldKind.INSTANCE]
    assert [(seen.id, seen.stack) for seen in held] == [(mine.instance, "one")]
    all_held = [seen for seen in any_stack.held(RUN) if seen.kind is HeldKind.INSTANCE]
    assert {seen.stack for seen in all_held} == {"one", "other"}
    one.release(one.held(RUN))
    assert [seen.state.live for seen in one.describe(RUN)] == [False]
    assert [seen.state.live for seen in other.describe(RUN)] == [True]
    other.release(other.held(RUN))
    for provider in (one, other, any_stack):
        provider.close()


def test_all_that_a_launch_makes_carries_the_stack() -> None:
    settings = Ec2Settings(region="us-east-1", stack="one", launch_template="t")
    several = replace(WISH, alternatives=(replace(POOL, instance_type="g6.xlarge"),))
    for wish in (WISH, several):
        _, asked = requests.launch_call(wish, settings)
        for kind in asked["TagSpecifications"]:
            assert {"Key": "bamboo:stack", "Value": "one"} in kind["Tags"], kind


def test_the_instances_of_a_run_get_its_own_profile() -> None:
    role = RunRole(region="us-east-1", stack="one", run=RUN)
    base = Ec2Settings(region="us-east-1", stack="one", launch_template="one-worker")
    by_template = requests.of_run(base, role)
    assert requests.asks_several(by_template), "a fleet names a profile in its template only"
    assert by_template.launch_template == role.template
    made = requests.run_template(role, {"ImageId": "ami-1", "IamInstanceProfile": {"Arn": "x"}})
    assert made["LaunchTemplateData"] == {
        "ImageId": "ami-1",
        "IamInstanceProfile": {"Name": role.name},
    }
    bare = requests.of_run(replace(base, launch_template="", image="ami-1"), role)
    assert requests.run_instances(WISH, bare)["IamInstanceProfile"] == {"Name": role.name}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("InvalidParameterValue", NEW),
        ("InvalidParameterValue", "IamInstanceProfile: r1-x has no associated IAM Roles"),
        ("InvalidLaunchTemplateName.NotFoundException", "there is no r1"),
    ],
)
def test_what_is_new_is_asked_with_again_for_a_while(
    account: MockAws, code: str, message: str
) -> None:
    now_s = 1000.0
    provider = of_stack(account, "one")
    provider._now = lambda: now_s
    instead(provider._launcher, "RunInstances", lambda: refused(message, code))
    kinds = []
    for after_s in (0.0, KNOWN_WITHIN_S - 1.0, KNOWN_WITHIN_S):
        now_s = 1000.0 + after_s
        (refusal,) = provider.launch([WISH]).refusals
        kinds.append(refusal.kind)
    assert kinds == [RefusalKind.THROTTLED, RefusalKind.THROTTLED, RefusalKind.REFUSED]
    provider.close()


def test_another_wrong_value_is_refused_at_once(account: MockAws) -> None:
    provider = of_stack(account, "one")
    instead(provider._launcher, "RunInstances", lambda: refused("Invalid subnet"))
    (refusal,) = provider.launch([WISH]).refusals
    assert refusal.kind is RefusalKind.REFUSED
    provider.close()


def refused(message: str, code: str = "InvalidParameterValue") -> AWSResponse:
    return answer(
        f"<Response><Errors><Error><Code>{code}</Code>"
        f"<Message>{message}</Message></Error></Errors><RequestID>r</RequestID></Response>",
        status=400,
    )
