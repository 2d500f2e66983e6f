"""AWS Secrets Manager: a secret by its name or ARN, with the credentials of this process.

Rule: what it holds goes to the caller alone; no error and no log has it.
"""

import os
from collections.abc import Mapping

from cloud.ec2.calls import translated
from cloud.ec2.clients import client_of, session_of
from cloud.provider import CloudRefused

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 5
ATTEMPTS = 3
_DEFAULT_REGION = "us-east-1"


def read_secret(name: str, *, environment: Mapping[str, str] = os.environ) -> str:
    """The text of a secret. The region is that of an ARN, else the environment's.

    Raises CloudRefused when it is not there, not text, or not for us; CloudThrottled and
    CloudUnavailable when it may be had later.
    """
    asked = translated(
        f"reading the secret {name!r}",
        service="Secrets Manager",
        without_account="name a file: BAMBOO_REDIS_URL=file:/path",
    )
    with asked:
        client = client_of(
            session_of(_region(name, environment)),
            "secretsmanager",
            connect_timeout_s=CONNECT_TIMEOUT_S,
            read_timeout_s=READ_TIMEOUT_S,
            attempts=ATTEMPTS,
        )
        try:
            text = client.get_secret_value(SecretId=name).get("SecretString")
        finally:
            client.close()
    if not isinstance(text, str) or not text.strip():
        raise CloudRefused(f"the secret {name!r} holds no text; store it as a plain text secret")
    return text


def _region(name: str, environment: Mapping[str, str]) -> str:
    parts = name.split(":")
    if parts[0] == "arn" and len(parts) > 3 and parts[3]:
        return parts[3]
    return environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
