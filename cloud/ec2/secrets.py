"""AWS Secrets Manager, with the credentials of this process: a secret by its name or ARN, and the
secrets that the runs of a stack have while they go on.

Rule: the content of a secret goes to the caller alone, and into no error and no log.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from botocore.exceptions import ClientError

from bamboo.errors import InputError
from bamboo.ids import RunId, run_id
from cloud.ec2.calls import code_and_message, translated
from cloud.ec2.clients import client_of, session_of
from cloud.ec2.requests import RUN_TAG, STACK_TAG
from cloud.provider import CloudRefused

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 5
ATTEMPTS = 3
DELETION_S = 30.0
"""The deletion of a secret may take so long to end when one of the same name has to be made."""
_DEFAULT_REGION = "us-east-1"
_POLL_S = 1.0
_THERE, _ABSENT = "ResourceExistsException", "ResourceNotFoundException"
_GOING = "InvalidRequestException"


def read_secret(name: str, *, environment: Mapping[str, str] = os.environ) -> str:
    """The text of a secret. The region is that of the ARN, or else the environment's.

    Raises CloudRefused when it does not exist, is not text, or is not for us; CloudThrottled and
    CloudUnavailable when it may be readable later.
    """
    asked = translated(
        f"reading the secret {name!r}",
        service="Secrets Manager",
        without_account="name a file: BAMBOO_REDIS_URL=file:/path",
    )
    with asked, _client(_region(name, environment)) as client:
        text = client.get_secret_value(SecretId=name).get("SecretString")
    if not isinstance(text, str) or not text.strip():
        raise CloudRefused(f"the secret {name!r} holds no text; store it as a plain text secret")
    return text


class RunSecrets:
    """The secrets of a stack's runs, one each: `<stack>/runs/<run>`, tagged with both. Each call
    raises CloudRefused, CloudThrottled or CloudUnavailable when it was not done."""

    def __init__(self, *, region: str, stack: str) -> None:
        self._region = region
        self._stack = stack

    def name(self, run: RunId) -> str:
        """The name of a run's secret. Raises InputError for an invalid id."""
        return f"{self._prefix}{run_id(run)}"

    def put(self, run: RunId, text: str) -> None:
        """Store this text in the run's secret, replacing what an earlier start has left."""
        name, tags = self.name(run), {STACK_TAG: self._stack, RUN_TAG: run}
        end_s = time.monotonic() + DELETION_S
        with self._asked(f"making the secret {name!r}") as client:
            while True:
                try:
                    client.create_secret(
                        Name=name,
                        Description=f"The login at the store of run {run}",
                        SecretString=text,
                        Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
                    )
                    return
                except ClientError as error:
                    code, _ = code_and_message(error)
                    if code == _THERE:
                        client.put_secret_value(SecretId=name, SecretString=text)
                        return
                    if code != _GOING or time.monotonic() > end_s:
                        raise
                    time.sleep(_POLL_S)

    def delete(self, run: RunId) -> None:
        """Delete the run's secret at once; safe when there is none."""
        name = self.name(run)
        with self._asked(f"deleting the secret {name!r}") as client:
            try:
                client.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)
            except ClientError as error:
                if code_and_message(error)[0] != _ABSENT:
                    raise

    def runs(self) -> tuple[RunId, ...]:
        """The runs that have a secret."""
        with self._asked(f"listing the secrets of {self._prefix}") as client:
            wanted = [{"Key": "name", "Values": [self._prefix]}]
            pages = client.get_paginator("list_secrets").paginate(Filters=wanted)
            names = [str(one["Name"]) for page in pages for one in page["SecretList"]]
        found = []
        for name in names:
            with suppress(InputError):  # not one of our names
                run = run_id(name.removeprefix(self._prefix))
                if self.name(run) == name:
                    found.append(run)
        return tuple(sorted(found))

    @property
    def _prefix(self) -> str:
        return f"{self._stack}/runs/"

    @contextmanager
    def _asked(self, what: str) -> Iterator[Any]:
        with translated(what, service="Secrets Manager"), _client(self._region) as client:
            yield client


@contextmanager
def _client(region: str) -> Iterator[Any]:
    client = client_of(
        session_of(region),
        "secretsmanager",
        connect_timeout_s=CONNECT_TIMEOUT_S,
        read_timeout_s=READ_TIMEOUT_S,
        attempts=ATTEMPTS,
    )
    try:
        yield client
    finally:
        client.close()


def _region(name: str, environment: Mapping[str, str]) -> str:
    parts = name.split(":")
    if parts[0] == "arn" and len(parts) > 3 and parts[3]:
        return parts[3]
    return environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
