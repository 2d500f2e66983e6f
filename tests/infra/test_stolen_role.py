"""A drill with stolen roles: two runs of one stack in a mock account that asks IAM, each role tries
everything at the other.

Of IAM the mock knows actions and, in S3, resources; it asks no conditions, no bounds, and of no
other service what an action is done to, so that there it refuses what a role may. Those, listing
among them, are asked of the judge, in test_instance_policies.
"""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws
from moto.core.authorization import enable_iam_authentication
from moto.iam.access_control import IAMPolicyStatement

from bamboo.ids import RunId
from cloud.ec2.requests import RUN_TAG, STACK_TAG
from cloud.ec2.run_role import RunRole
from cloud.ec2.run_roles import Ec2RunRoles
from tests.infra.iam import like
from tests.security.stolen_role import LISTS, REFUSED, Target, answers, attempts

REGION, STACK, BUCKET, TEMPLATE = "us-east-1", "bamboo", "bamboo-1", "bamboo-worker"
RUNS = (RunId("r1"), RunId("r1-2"))


class Account:
    """Two runs with all that a run has there, and the credentials of their roles."""

    def __init__(self) -> None:
        self._of = {
            name: boto3.client(name, region_name=REGION)
            for name in ("ec2", "iam", "logs", "s3", "secretsmanager", "sts")
        }
        s3, ec2, sts = (self._of[name] for name in ("s3", "ec2", "sts"))
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="wheels/0/a.whl", Body=b"-")
        image = ec2.register_image(Name="worker", RootDeviceName="/dev/xvda")["ImageId"]
        data = {"ImageId": image}
        ec2.create_launch_template(LaunchTemplateName=TEMPLATE, LaunchTemplateData=data)
        roles = Ec2RunRoles(iam=self._of["iam"], ec2=ec2, sts=sts, region=REGION, stack=STACK)
        self.targets: dict[RunId, Target] = {}
        for run in RUNS:
            roles.make(run, bucket=BUCKET, template=TEMPLATE)
            role = RunRole(region=REGION, stack=STACK, run=run)
            self.targets[run] = Target(role=role, bucket=BUCKET, instance=self._begun(run, image))
            self._fill(self.targets[run])

    def _begun(self, run: RunId, image: str) -> str:
        tags = [{"Key": RUN_TAG, "Value": run}, {"Key": STACK_TAG, "Value": STACK}]
        started = self._of["ec2"].run_instances(
            ImageId=image,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        return str(started["Instances"][0]["InstanceId"])

    def _fill(self, target: Target) -> None:
        run = target.role.run
        for key in target.objects:
            self._of["s3"].put_object(Bucket=BUCKET, Key=key, Body=b"mine")
        self._of["secretsmanager"].create_secret(Name=f"{STACK}/runs/{run}", SecretString="-")
        self._of["logs"].create_log_group(logGroupName=f"/{STACK}/{run}")

    def tried(self, run: RunId, at: RunId) -> dict[str, str]:
        """What the account answers to all that is tried with the credentials of a run's role."""
        name = self.targets[run].role.name
        found = self._of["sts"].assume_role(
            RoleArn=self._of["iam"].get_role(RoleName=name)["Role"]["Arn"],
            RoleSessionName="thief",
        )["Credentials"]
        session = boto3.Session(
            aws_access_key_id=found["AccessKeyId"],
            aws_secret_access_key=found["SecretAccessKey"],
            aws_session_token=found["SessionToken"],
        )
        tries = attempts(session, self.targets[at], own=run)
        with enable_iam_authentication():
            return answers({what: one for what, one in tries.items() if what not in LISTS})

    def intact(self, run: RunId) -> bool:
        """Asked as the administrator of the account."""
        s3, target = self._of["s3"], self.targets[run]
        bodies = {s3.get_object(Bucket=BUCKET, Key=k)["Body"].read() for k in target.objects}
        there = self._of["ec2"].describe_instances(InstanceIds=[target.instance])
        state = there["Reservations"][0]["Instances"][0]["State"]["Name"]
        return (bodies, state) == ({b"mine"}, "running")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    # The mock takes a `?` for a sign of its own expressions.
    found = staticmethod(lambda pattern, text: True if like(pattern, text) else None)
    monkeypatch.setattr(IAMPolicyStatement, "_match", found)
    with mock_aws():
        yield Account()


def test_the_role_of_a_run_reaches_nothing_of_another(account: Account) -> None:
    for run, other in (RUNS, RUNS[::-1]):
        said = account.tried(run, other)
        assert len(said) == 29
        assert {what: code for what, code in said.items() if code not in REFUSED} == {}
    assert all(account.intact(run) for run in RUNS)


def test_it_reaches_its_own(account: Account) -> None:
    """Else the drill above would show nothing."""
    for run in RUNS:
        said = account.tried(run, run)
        start, *own = account.targets[run].objects
        for key in own:
            for verb in ("get", "head", "put", "upload", "delete"):
                assert said[f"{verb} {key}"] == "", (verb, key)
        assert (said[f"get {start}"], said[f"head {start}"]) == ("", "")
        for verb in ("put", "delete", "copy to", "upload"):
            assert said[f"{verb} {start}"] in REFUSED, "who starts it writes that, and nobody else"
        for what in ("end the instance", "widen its role", "roles", "template", "see instances"):
            assert said[what] in REFUSED
