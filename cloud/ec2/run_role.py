"""The role of one run: its names, and what its instances may do. Pure.

Credentials of an instance carry its role and none of its tags, so two runs are kept apart by two
roles. A role's path names its run; its name is made unique in the account.

Rule: each name is checked against its grammar, and a document is a value that the library writes as
JSON. No text is inserted into a document, so no text can break out of it.
"""

import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from bamboo.errors import InputError
from bamboo.ids import BUCKET, REGION, STACK, RunId, run_id

POLICY = "run"
"""The name of the one policy of a run's role."""
_PARTITION = re.compile(r"aws(-[a-z]+)*")
_ACCOUNT = re.compile(r"\d{12}")
SHARED_KEY = re.compile(r"data/[A-Za-z0-9_./=+@-]{1,900}")
"""Keys without a character that means something in a policy."""
_NAME_CHARACTERS, _DIGEST_CHARACTERS = 64, 24
"""IAM's limit for the name of a role, and the length of the digest that it ends with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRole:
    """The names for a run in a stack. Raises InputError for a name outside its grammar."""

    region: str
    stack: str
    run: RunId

    def __post_init__(self) -> None:
        _held(self.region, REGION, "cloud.region")
        _held(self.stack, STACK, "cloud.stack")
        run_id(self.run)

    @property
    def path(self) -> str:
        """Path of role and profile. Stacks with the same name may exist in several regions, and IAM
        has no regions."""
        return f"{stack_path(self.region, self.stack)}{self.run}/"

    @property
    def name(self) -> str:
        """Name of role and profile. IAM wants it unique in the account, whatever the path."""
        digest = hashlib.sha256(self.path.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        return f"{self.run[: _NAME_CHARACTERS - _DIGEST_CHARACTERS - 1]}-{digest}"

    @property
    def template(self) -> str:
        """Name of the launch template: a fleet can name a profile only in its template."""
        return f"bamboo/{self.stack}/runs/{self.run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The account of a stack."""

    partition: str
    account: str

    def __post_init__(self) -> None:
        _held(self.partition, _PARTITION, "the partition of the account")
        _held(self.account, _ACCOUNT, "the account")


def owner_of(caller_arn: str) -> Owner:
    """The account of the caller with this ARN. Raises InputError for a text that is not one."""
    parts = caller_arn.split(":")
    if len(parts) < 6 or parts[0] != "arn":
        raise InputError(f"AWS names its caller {caller_arn!r}, which is no ARN; check who asks")
    return Owner(partition=parts[1], account=parts[4])


def stack_path(region: str, stack: str) -> str:
    """The path of the roles of all runs of a stack, and of their boundary."""
    return f"/bamboo/{region}/{stack}/"


def boundary_arn(role: RunRole, owner: Owner) -> str:
    """The policy of the stack that bounds the role of each of its runs (terraform/roles.tf)."""
    path = stack_path(role.region, role.stack)
    name = f"bamboo-runs-{role.region}-{role.stack}"
    return f"arn:{owner.partition}:iam::{owner.account}:policy{path}{name}"


def who_has_it() -> str:
    """The document that says who may assume the role: instances."""
    return json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "ec2.amazonaws.com"},
                    "Action": "sts:AssumeRole",
                }
            ],
        }
    )


def rights(
    role: RunRole, owner: Owner, *, bucket: str, reads: Collection[str] = ()
) -> dict[str, Any]:
    """The document of what the run's instances may do: read what starts them, read and write the
    files of their run, read its secret. `reads`: the keys below `data/` that they may read, too.
    Raises InputError for an invalid name of a bucket or key."""
    _held(bucket, BUCKET, "cloud.bucket")
    for key in reads:
        _held(key, SHARED_KEY, "data")
    there = f"arn:{owner.partition}:s3:::{bucket}"
    secrets = f"arn:{owner.partition}:secretsmanager:{role.region}:{owner.account}:secret"
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "ReadWhatStartsIt",
                "Effect": "Allow",
                "Action": "s3:GetObject",
                "Resource": [
                    f"{there}/boot/*",
                    f"{there}/wheels/*",
                    f"{there}/starts/{role.run}/*",
                    *(f"{there}/{key}" for key in reads),
                ],
            },
            {
                "Sid": "FilesOfItsRun",
                "Effect": "Allow",
                "Action": [
                    "s3:GetObject",
                    "s3:PutObject",
                    "s3:DeleteObject",
                    "s3:AbortMultipartUpload",
                ],
                "Resource": f"{there}/runs/{role.run}/*",
            },
            {
                "Sid": "ListThose",
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": there,
                "Condition": {
                    "StringLike": {
                        "s3:prefix": [f"runs/{role.run}/*", f"starts/{role.run}/*", *reads]
                    }
                },
            },
            {
                "Sid": "SecretOfItsRun",
                "Effect": "Allow",
                "Action": "secretsmanager:GetSecretValue",
                # The service appends six random characters to the name of a secret.
                "Resource": f"{secrets}:{role.stack}/runs/{role.run}-??????",
            },
        ],
    }


def _held(value: str, grammar: re.Pattern[str], what: str) -> None:
    if not grammar.fullmatch(value):
        raise InputError(
            f"{what} {value!r} cannot stand in the rights of a run: it is not of the form "
            f"{grammar.pattern}; correct it"
        )
