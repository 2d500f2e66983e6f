"""What the role of one run's instances may do to another run of the same stack.

`python -m tests.security.stolen_role REGION STACK BUCKET OWN OTHER [INSTANCE]` with the credentials
of an instance of the run OWN, as they stand in its metadata service, tries everything at the run
OTHER, and at its INSTANCE. It lists what AWS did; its exit status is 1 if there is anything. What
it tries destroys what it can reach, so play it on runs of your own.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.exceptions import ClientError

from bamboo.ids import RunId, run_id
from cloud.ec2.run_role import RunRole

REFUSED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"})
LISTS = ("list all", "list the run", "list what starts it")
"""Attempts that are decided by a condition."""
Attempts = Mapping[str, Callable[[], Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A run, as whoever knows its stack can name it."""

    role: RunRole
    bucket: str
    instance: str

    @property
    def objects(self) -> tuple[str, ...]:
        """What a run may have in the bucket."""
        run = self.role.run
        return (f"starts/{run}/agent.env", f"runs/{run}/final/0", f"runs/{run}/logs/i-1/0")


def attempts(session: Any, target: Target, *, own: RunId) -> Attempts:
    """Everything that is tried with these credentials, by what it would be."""
    s3, ec2, iam, logs, secrets = (
        session.client(name, region_name=target.role.region)
        for name in ("s3", "ec2", "iam", "logs", "secretsmanager")
    )
    role, there = target.role, {"Bucket": target.bucket}
    secret = {"SecretId": f"{role.stack}/runs/{role.run}"}
    tries: dict[str, Callable[[], Any]] = {
        "list all": lambda: s3.list_objects_v2(**there),
        "list the run": lambda: s3.list_objects_v2(**there, Prefix=f"runs/{role.run}/"),
        "list what starts it": lambda: s3.list_objects_v2(**there, Prefix=f"starts/{role.run}/"),
        "secret": lambda: secrets.get_secret_value(**secret),
        "change the secret": lambda: secrets.put_secret_value(**secret, SecretString="x"),
        "secrets": secrets.list_secrets,
        "end the instance": lambda: ec2.terminate_instances(InstanceIds=[target.instance]),
        "see instances": ec2.describe_instances,
        "template": lambda: ec2.delete_launch_template(LaunchTemplateName=role.template),
        "widen its role": lambda: iam.put_role_policy(
            RoleName=role.name, PolicyName="run", PolicyDocument="{}"
        ),
        "roles": iam.list_roles,
        "logs": logs.describe_log_groups,
    }
    for key in target.objects:
        tries |= _at(s3, {**there, "Key": key}, source={**there, "Key": f"runs/{own}/final/0"})
    for key in ("boot/bamboo-agent.service", "wheels/0/a.whl"):
        replaced = {**there, "Key": key, "Body": b"x"}
        tries[f"put {key}"] = lambda replaced=replaced: s3.put_object(**replaced)
    return tries


def _at(s3: Any, where: Mapping[str, str], *, source: Mapping[str, str]) -> Attempts:
    key = where["Key"]
    return {
        f"get {key}": lambda: s3.get_object(**where),
        f"head {key}": lambda: s3.head_object(**where),
        f"put {key}": lambda: s3.put_object(**where, Body=b"x"),
        f"copy to {key}": lambda: s3.copy_object(**where, CopySource=source),
        f"upload {key}": lambda: s3.create_multipart_upload(**where),
        f"delete {key}": lambda: s3.delete_object(**where),
    }


def answers(tries: Attempts) -> dict[str, str]:
    """What -> the code with which it was answered; "": it was done."""
    said = {}
    for what, attempt in tries.items():
        try:
            attempt()
            said[what] = ""
        except ClientError as error:
            said[what] = str(error.response["Error"]["Code"])
    return said


def main(words: Sequence[str]) -> int:
    """Say what was not refused."""
    if not 5 <= len(words) <= 6:
        sys.stdout.write(__doc__ or "")
        return 2
    region, stack, bucket, own, other = words[:5]
    role = RunRole(region=region, stack=stack, run=run_id(other))
    instance = words[5] if len(words) == 6 else "i-00000000000000000"
    target = Target(role=role, bucket=bucket, instance=instance)
    said = answers(attempts(boto3.Session(), target, own=run_id(own)))
    reached = {what: code for what, code in said.items() if code not in REFUSED}
    lines = [f"{what}: {code or 'done'}" for what, code in reached.items()]
    lines.append(f"{len(reached)} of {len(said)} attempts were not refused")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if reached else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
