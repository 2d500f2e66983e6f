"""A drill with stolen roles: two runs of one stack in a mock account that asks IAM, each role tries
everything at the other.

Of IAM the mock knows actions and, in S3, resources; it asks no conditions, no bounds, and of no
other service what an action is done to, so that there it refuses what a role may; and it breaks on
a role that a service takes on. Those, listing among them, are asked of the judge, in
test_instance_policies.
"""

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.core.authorization import enable_iam_authentication
from moto.iam.access_control import IAMPolicyStatement

from bamboo.ids import RunId
from cloud.ec2.requests import RUN_TAG, STACK_TAG
from cloud.ec2.run_role import RunRole
from cloud.ec2.run_roles import Ec2RunRoles
from tests.infra.iam import like

REGION, STACK, BUCKET = "us-east-1", "bamboo", "bamboo-1"
RUNS = (RunId("r1"), RunId("r1-2"))
REFUSED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"}


class Account:
    """Two runs with all that a run has there, and the credentials of their roles."""

    def __init__(self) -> None:
        self._admin = {name: boto3.client(name, region_name=REGION) for name in
                       ("ec2", "iam", "logs", "s3", "secretsmanager", "sts")}  # fmt: skip
        s3, ec2 = self._admin["s3"], self._admin["ec2"]
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="wheels/0/a.whl", Body=b"-")
        image = ec2.register_image(Name="worker", RootDeviceName="/dev/xvda")["ImageId"]
        ec2.create_launch_template(
            LaunchTemplateName="bamboo-worker", LaunchTemplateData={"ImageId": image}
        )
        self.roles = Ec2RunRoles(
            iam=self._admin["iam"],
            ec2=ec2,
            sts=self._admin["sts"],
            region=REGION,
            stack=STACK,
        )
        self.instances: dict[RunId, str] = {}
        self._keys: dict[RunId, dict[str, str]] = {}
        for run in RUNS:
            self.roles.make(run, bucket=BUCKET, template="bamboo-worker")
            self._fill(run, image)
            role = RunRole(region=REGION, stack=STACK, run=run)
            found = self._admin["sts"].assume_role(
                RoleArn=self._admin["iam"].get_role(RoleName=role.name)["Role"]["Arn"],
                RoleSessionName="i-1",
            )["Credentials"]
            self._keys[run] = {
                "aws_access_key_id": found["AccessKeyId"],
                "aws_secret_access_key": found["SecretAccessKey"],
                "aws_session_token": found["SessionToken"],
            }

    def _fill(self, run: RunId, image: str) -> None:
        for key in (f"starts/{run}/agent.env", f"runs/{run}/final/0", f"runs/{run}/logs/i-1/0"):
            self._admin["s3"].put_object(Bucket=BUCKET, Key=key, Body=b"mine")
        self._admin["secretsmanager"].create_secret(Name=f"{STACK}/runs/{run}", SecretString="-")
        self._admin["logs"].create_log_group(logGroupName=f"/{STACK}/{run}")
        tags = [{"Key": RUN_TAG, "Value": run}, {"Key": STACK_TAG, "Value": STACK}]
        started = self._admin["ec2"].run_instances(
            ImageId=image,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        self.instances[run] = started["Instances"][0]["InstanceId"]

    def of(self, run: RunId, service: str) -> Any:
        return boto3.client(service, region_name=REGION, **self._keys[run])

    def everything(self, run: RunId, at: RunId) -> dict[str, Callable[[], Any]]:
        """What a role may try at a run, by what it would be."""
        s3, ec2 = self.of(run, "s3"), self.of(run, "ec2")
        iam, logs = self.of(run, "iam"), self.of(run, "logs")
        secrets = self.of(run, "secretsmanager")
        role = RunRole(region=REGION, stack=STACK, run=at)
        secret, start = {"SecretId": f"{STACK}/runs/{at}"}, f"starts/{at}/agent.env"
        tries: dict[str, Callable[[], Any]] = {
            "secret": lambda: secrets.get_secret_value(**secret),
            "change the secret": lambda: secrets.put_secret_value(**secret, SecretString="x"),
            "secrets": secrets.list_secrets,
            "end instances": lambda: ec2.terminate_instances(InstanceIds=[self.instances[at]]),
            "see instances": ec2.describe_instances,
            "template": lambda: ec2.delete_launch_template(LaunchTemplateName=role.template),
            "widen": lambda: iam.put_role_policy(
                RoleName=role.name, PolicyName="run", PolicyDocument="{}"
            ),
            "roles": iam.list_roles,
            "logs": logs.describe_log_groups,
        }
        for key in (start, f"runs/{at}/final/0", f"runs/{at}/logs/i-1/0"):
            tries |= self._with_object(s3, key, source=f"runs/{run}/final/0")
        return tries

    def _with_object(self, s3: Any, key: str, *, source: str) -> dict[str, Callable[[], Any]]:
        where = {"Bucket": BUCKET, "Key": key}
        from_there = {"Bucket": BUCKET, "Key": source}
        return {
            f"get {key}": lambda: s3.get_object(**where),
            f"head {key}": lambda: s3.head_object(**where),
            f"put {key}": lambda: s3.put_object(**where, Body=b"x"),
            f"copy to {key}": lambda: s3.copy_object(**where, CopySource=from_there),
            f"upload {key}": lambda: s3.create_multipart_upload(**where),
            f"delete {key}": lambda: s3.delete_object(**where),
        }

    def intact(self, run: RunId) -> bool:
        """Asked as the administrator of the account."""
        s3, ec2 = self._admin["s3"], self._admin["ec2"]
        found = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"runs/{run}/")["Contents"]
        bodies = {s3.get_object(Bucket=BUCKET, Key=o["Key"])["Body"].read() for o in found}
        (there,) = ec2.describe_instances(InstanceIds=[self.instances[run]])["Reservations"]
        state = there["Instances"][0]["State"]["Name"]
        return (len(found), bodies, state) == (2, {b"mine"}, "running")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    # The mock takes a `?` for a sign of its own expressions.
    found = staticmethod(lambda pattern, text: True if like(pattern, text) else None)
    monkeypatch.setattr(IAMPolicyStatement, "_match", found)
    with mock_aws():
        yield Account()


def refusal(attempt: Callable[[], Any]) -> str:
    """The code of the error; "": it was done."""
    try:
        attempt()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def test_the_role_of_a_run_reaches_nothing_of_another(account: Account) -> None:
    for run, other in (RUNS, RUNS[::-1]):
        tries = account.everything(run, other)
        assert len(tries) == 27
        with enable_iam_authentication():
            said = {what: refusal(attempt) for what, attempt in tries.items()}
        assert {what: code for what, code in said.items() if code not in REFUSED} == {}
    assert all(account.intact(run) for run in RUNS)


def test_it_reaches_its_own(account: Account) -> None:
    """Else the drill above would show nothing."""
    for run in RUNS:
        tries = account.everything(run, run)
        with enable_iam_authentication():
            said = {what: refusal(attempt) for what, attempt in tries.items()}
            wheel = account.of(run, "s3").get_object(Bucket=BUCKET, Key="wheels/0/a.whl")
        assert wheel["Body"].read() == b"-"
        for key in (f"runs/{run}/final/0", f"runs/{run}/logs/i-1/0"):
            for verb in ("get", "head", "put", "delete"):
                assert said[f"{verb} {key}"] in ("", "404"), (verb, key)
        start = f"starts/{run}/agent.env"
        assert (said[f"get {start}"], said[f"head {start}"]) == ("", "")
        for verb in ("put", "delete", "copy to", "upload"):
            assert said[f"{verb} {start}"] in REFUSED, "who starts it writes that, and nobody else"
        for what in ("end instances", "widen", "roles", "template", "see instances"):
            assert said[what] in REFUSED
