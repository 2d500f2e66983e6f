"""The role of a run with its profile and launch template: made, made again, taken back from
whatever a launcher that was killed has left, and named by nothing that could mean another."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.moto_api._internal import moto_api_backend

from bamboo.errors import InputError
from bamboo.ids import RunId
from cloud.ec2.requests import RUN_TAG, STACK_TAG
from cloud.ec2.run_role import Owner, RunRole, boundary_arn, owner_of, rights
from cloud.ec2.run_roles import VISIBLE_S, Ec2RunRoles
from cloud.local.faults import Market
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from cloud.provider import CloudRefused
from tests.cloud.ec2.aws_answers import answer, instead
from tests.mock_account import ACCOUNT_CALLS, client_at

REGION, STACK, BUCKET, TEMPLATE = "us-east-1", "bamboo", "bamboo-1", "bamboo-worker"
RUN = RunId("r1")
READS = ("data/0/tokens",)
ROLE = RunRole(region=REGION, stack=STACK, run=RUN)
OWNER = Owner(partition="aws", account="123456789012")
HOSTILE = ("", "a b", "a/b", "a\n", 'a"', "*", "a*", "${aws:username}", "../a", "A", "a" * 64)


class Account:
    """A stack's template in a mock account, and its runs' roles; time passes as they sleep."""

    def __init__(self, aws: MockAws) -> None:
        self.iam, self.ec2, self.sts = (
            client_at(aws.url, aws.token, name) for name in ("iam", "ec2", "sts")
        )
        self.ec2.create_launch_template(
            LaunchTemplateName=TEMPLATE,
            LaunchTemplateData={"ImageId": "ami-12345678", "UserData": "LQ=="},
        )
        self.slept_s = 0.0
        self.roles = Ec2RunRoles(
            iam=self.iam,
            ec2=self.ec2,
            sts=self.sts,
            region=REGION,
            stack=STACK,
            now=lambda: self.slept_s,
            sleep=self._sleep,
        )

    def _sleep(self, seconds: float) -> None:
        self.slept_s += seconds

    def make(self, run: RunId = RUN, template: str = TEMPLATE) -> None:
        self.roles.make(run, bucket=BUCKET, template=template, reads=READS)

    def left(self) -> dict[str, list[str]]:
        templates = self.ec2.describe_launch_templates()["LaunchTemplates"]
        names = [str(one["LaunchTemplateName"]) for one in templates]
        return {
            "roles": [str(one["RoleName"]) for one in self.iam.list_roles()["Roles"]],
            "profiles": [
                str(one["InstanceProfileName"])
                for one in self.iam.list_instance_profiles()["InstanceProfiles"]
            ],
            "templates": [name for name in names if name != TEMPLATE],
        }


NOTHING: dict[str, list[str]] = {"roles": [], "profiles": [], "templates": []}
ALL = {"roles": [ROLE.name], "profiles": [ROLE.name], "templates": [ROLE.template]}


@pytest.fixture
def account() -> Iterator[Account]:
    aws = MockAws(
        metadata=MetadataService(), market=Market({}), on_change=lambda: None, calls=ACCOUNT_CALLS
    )
    aws.start()
    moto_api_backend.reset()  # what earlier tests have left outlives their servers
    account = Account(aws)
    yield account
    account.roles.close()
    aws.stop()


def test_what_is_made_is_of_the_run_and_within_the_bounds_of_its_stack(account: Account) -> None:
    account.make()
    account.make()  # whoever begins again after a launcher that was killed
    assert account.left() == ALL
    assert account.roles.runs() == (RUN,)
    role = account.iam.get_role(RoleName=ROLE.name)["Role"]
    assert role["Path"] == f"/bamboo/{REGION}/{STACK}/{RUN}/"
    bounds = role["PermissionsBoundary"]["PermissionsBoundaryArn"]
    assert bounds == boundary_arn(ROLE, OWNER)
    (trusted,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trusted["Principal"] == {"Service": "ec2.amazonaws.com"}
    assert account.iam.list_role_policies(RoleName=ROLE.name)["PolicyNames"] == ["run"]
    written = account.iam.get_role_policy(RoleName=ROLE.name, PolicyName="run")["PolicyDocument"]
    assert written == rights(ROLE, OWNER, bucket=BUCKET, reads=READS)
    profile = account.iam.get_instance_profile(InstanceProfileName=ROLE.name)["InstanceProfile"]
    assert [one["RoleName"] for one in profile["Roles"]] == [ROLE.name]


def test_its_template_is_the_stacks_of_now_with_its_own_profile(account: Account) -> None:
    account.make()
    newer = {"ImageId": "ami-87654321", "MetadataOptions": {"HttpTokens": "required"}}
    account.ec2.create_launch_template_version(
        LaunchTemplateName=TEMPLATE, LaunchTemplateData=newer
    )
    account.ec2.modify_launch_template(LaunchTemplateName=TEMPLATE, DefaultVersion="2")
    account.make()
    (version,) = account.ec2.describe_launch_template_versions(
        LaunchTemplateName=ROLE.template, Versions=["$Default"]
    )["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
    assert data["ImageId"] == "ami-87654321"
    assert data["IamInstanceProfile"] == {"Name": ROLE.name}
    (template,) = account.ec2.describe_launch_templates(LaunchTemplateNames=[ROLE.template])[
        "LaunchTemplates"
    ]
    tags = {tag["Key"]: tag["Value"] for tag in template["Tags"]}
    assert tags == {RUN_TAG: RUN, STACK_TAG: STACK}


def test_of_a_template_only_what_may_be_asked_is_asked(account: Account) -> None:
    """EC2 tells of a state in it, which it takes from nobody."""
    told = (
        "<DescribeLaunchTemplateVersionsResponse><launchTemplateVersionSet><item>"
        "<launchTemplateData><imageId>ami-12345678</imageId><metadataOptions>"
        "<state>applied</state><httpTokens>required</httpTokens></metadataOptions>"
        "</launchTemplateData></item></launchTemplateVersionSet>"
        "</DescribeLaunchTemplateVersionsResponse>"
    )
    instead(account.ec2, "DescribeLaunchTemplateVersions", lambda: answer(told))
    account.make()
    assert account.left() == ALL


def test_without_a_template_none_is_made(account: Account) -> None:
    account.make(template="")
    assert account.left() == {**ALL, "templates": []}


def test_a_template_that_is_not_there_leaves_nothing(account: Account) -> None:
    with pytest.raises(CloudRefused, match="DescribeLaunchTemplateVersions"):
        account.make(template="bamboo-other")
    assert account.left() == NOTHING


def test_it_is_all_taken_back_and_twice(account: Account) -> None:
    account.make()
    account.make(RunId("r2"))
    account.roles.remove(RUN)
    account.roles.remove(RUN)
    assert account.roles.runs() == (RunId("r2"),)
    account.roles.remove(RunId("r2"))
    assert account.left() == NOTHING


@pytest.mark.parametrize(
    "last",
    ["CreateRole", "PutRolePolicy", "CreateInstanceProfile", "AddRoleToInstanceProfile"],
)
def test_what_a_killed_launcher_has_left_is_seen_and_taken_back(
    account: Account, last: str
) -> None:
    class Killed(BaseException):
        pass

    def kill(**_: Any) -> None:
        raise Killed

    account.iam.meta.events.register(f"after-call.iam.{last}", kill)
    account.roles.remove = lambda run: None  # type: ignore[method-assign]
    with pytest.raises(Killed):
        account.make()
    account.iam.meta.events.unregister(f"after-call.iam.{last}", kill)
    del account.roles.remove
    assert account.roles.runs() == (RUN,)
    account.roles.remove(RUN)
    assert account.left() == NOTHING


@pytest.mark.parametrize("code", ["NoSuchEntity", "AccessDenied"])
def test_what_was_made_a_moment_ago_is_waited_for(account: Account, code: str) -> None:
    late = [code] * 3
    instead(
        account.iam, "AddRoleToInstanceProfile", lambda: missing(code) if next_of(late) else None
    )
    account.make()
    assert account.slept_s == 3.0
    assert account.left() == ALL


def test_what_never_is_to_be_seen_is_refused_in_time_and_nothing_left(account: Account) -> None:
    instead(account.iam, "PutRolePolicy", missing)
    with pytest.raises(CloudRefused, match="IAM refuses PutRolePolicy: NoSuchEntity"):
        account.make()
    assert account.slept_s == VISIBLE_S
    assert account.left() == NOTHING


def test_a_role_of_somebody_elses_is_not_taken_for_ours(account: Account) -> None:
    account.iam.create_role(RoleName=ROLE.name, Path="/other/", AssumeRolePolicyDocument="{}")
    with pytest.raises(CloudRefused, match="is in the account already, below /other/"):
        account.make()
    account.roles.remove(RUN)
    assert account.iam.get_role(RoleName=ROLE.name)["Role"]["Path"] == "/other/"


def test_removing_goes_on_behind_a_refusal_and_tells_of_it(account: Account) -> None:
    account.make()
    instead(account.ec2, "DeleteLaunchTemplate", lambda: answer(REFUSED, status=403))
    with pytest.raises(CloudRefused, match="DeleteLaunchTemplate: UnauthorizedOperation"):
        account.roles.remove(RUN)
    assert account.left() == {**NOTHING, "roles": [ROLE.name], "templates": [ROLE.template]}
    assert account.iam.list_role_policies(RoleName=ROLE.name)["PolicyNames"] == []
    assert account.roles.runs() == (RUN,), "what is left of it is found again"


REFUSED = (
    "<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>no</Message></Error>"
    "</Errors><RequestID>r</RequestID></Response>"
)


def missing(code: str = "NoSuchEntity") -> Any:
    return answer(
        f"<ErrorResponse><Error><Code>{code}</Code><Message>not yet</Message></Error>"
        "</ErrorResponse>",
        status=404,
    )


def next_of(those: list[str]) -> str:
    return those.pop() if those else ""


def test_names_are_within_iams_limits_and_differ() -> None:
    of = {
        (role.name, role.path, role.template)
        for region in ("us-east-1", "us-gov-west-1")
        for stack in ("bamboo", "s" * 31)
        for run in ("r", "r-1", "r" * 63, "r" * 62 + "2")
        for role in [RunRole(region=region, stack=stack, run=RunId(run))]
    }
    assert len({name for name, _, _ in of}) == len({path for _, path, _ in of}) == len(of) == 16
    assert all(len(name) <= 64 and len(template) <= 128 for name, _, template in of)


@pytest.mark.parametrize("word", HOSTILE)
def test_a_name_out_of_its_grammar_comes_into_no_right(word: str) -> None:
    for field in ("region", "stack", "run"):
        with pytest.raises(InputError):
            RunRole(**{"region": REGION, "stack": STACK, "run": RUN, field: word})
    for field in ("partition", "account"):
        with pytest.raises(InputError):
            Owner(**{"partition": "aws", "account": "123456789012", field: word})
    with pytest.raises(InputError):
        rights(ROLE, OWNER, bucket=word)
    with pytest.raises(InputError):
        rights(ROLE, OWNER, bucket=BUCKET, reads=[f"data/{word}*"])


@pytest.mark.parametrize("arn", ["", "arn", "arn:aws:sts", "arn:aws:sts::12:user/x", "x" * 200])
def test_a_caller_that_has_no_account_is_refused(arn: str) -> None:
    with pytest.raises(InputError):
        owner_of(arn)


def test_the_rights_of_a_run_name_it_alone() -> None:
    text = json.dumps(rights(ROLE, OWNER, bucket=BUCKET, reads=READS))
    assert "data/*" not in text
    assert "runs/*" not in text
    assert "starts/*" not in text


def test_the_mock_is_as_strict_as_iam_about_what_is_in_use(account: Account) -> None:
    """Else the order in which it is taken back would be shown by nothing."""
    account.make()
    with pytest.raises(ClientError, match="DeleteConflict"):
        account.iam.delete_role(RoleName=ROLE.name)
