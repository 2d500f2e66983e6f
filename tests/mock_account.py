"""An account for tests: the local cloud's mock of AWS with more calls than a run makes, and the
credentials that it asks for."""

from typing import Any

import boto3

ACCOUNT_CALLS = tuple(
    f"{service}:*"
    for service in (
        "budgets",
        "ec2",
        "iam",
        "s3",
        "secretsmanager",
        "servicequotas",
        "ssm",
        "sts",
    )
)
"""What `terraform/` and the commands for an account ask for."""


def keys_of(token: str) -> dict[str, str]:
    """Credentials that the mock with this session token takes, as boto3 names them."""
    return {
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "aws_session_token": token,
    }


def variables_of(url: str, token: str) -> dict[str, str]:
    """What a shell has set that uses the mock as its account."""
    keys = {name.upper(): value for name, value in keys_of(token).items()}
    return {"AWS_ENDPOINT_URL": url, **keys}


def client_at(url: str, token: str, service: str = "ec2") -> Any:
    """A client of the mock."""
    return boto3.client(service, region_name="us-east-1", endpoint_url=url, **keys_of(token))
