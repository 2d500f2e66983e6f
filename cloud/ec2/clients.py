"""Clients of AWS services, each with its own deadlines and number of attempts.

Rules: boto3's models of the services are read once in a process, however many sessions there are,
because EC2's alone takes longer to read than most calls take. The user's settings for AWS (proxies,
profiles, endpoints, files) apply to AWS, and never to a mock of it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.configprovider import (
    BOTOCORE_DEFAUT_SESSION_VARIABLES,
    ConfigValueStore,
    ConstantProvider,
)
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader, create_loader

from cloud.provider import CloudUnavailable

CONNECT_TIMEOUT_S = 5
_MOCK_KEY = "local"
"""Id and secret alike. A mock accepts any, and knows its callers by their session token."""


def session_of(region: str | None) -> boto3.session.Session:
    """A session of its own with the user's usual settings and credentials. Raises CloudUnavailable
    for settings that cannot be read."""
    with _reading_settings():
        core = botocore.session.Session()
        core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
        return boto3.session.Session(botocore_session=core, region_name=region)


def mock_session(region: str, *, token: str) -> boto3.session.Session:
    """A session for a mock on this machine, with its session token. Every setting is the library's
    default, whatever the user's variables and files say, and no proxy is used."""
    core = botocore.session.Session()
    settings: dict[str, object] = {
        name: default for name, (_, _, default, _) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()
    }
    settings |= {"config_file": os.devnull, "credentials_file": os.devnull}
    settings |= {"s3": None, "proxies_config": None, "region": region}
    core.register_component(
        "config_store",
        ConfigValueStore(mapping={k: ConstantProvider(v) for k, v in settings.items()}),
    )
    core.register_component("data_loader", _loader(None))
    core.set_default_client_config(Config(proxies={}))
    return boto3.session.Session(
        botocore_session=core,
        region_name=region,
        aws_access_key_id=_MOCK_KEY,
        aws_secret_access_key=_MOCK_KEY,
        aws_session_token=token,
    )


def client_of(
    session: boto3.session.Session,
    service: str,
    *,
    read_timeout_s: float,
    attempts: int,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    endpoint_url: str | None = None,
) -> Any:
    """A client that gives up after so many attempts, each within its time. Makes no call yet.
    Raises CloudUnavailable for invalid settings."""
    config = Config(
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        retries={"total_max_attempts": attempts, "mode": "standard"},
    )
    make: Any = session.client  # its type has a name for each service
    with _reading_settings():
        return make(service, endpoint_url=endpoint_url, config=config)


def clients_of(
    services: Sequence[str],
    *,
    region: str,
    read_timeout_s: float,
    attempts: int,
    endpoint_url: str | None = None,
) -> Iterator[Any]:
    """A client of each service in turn, all from one session. Raises CloudUnavailable as
    `client_of` does."""
    session = session_of(region)
    for service in services:
        yield client_of(
            session,
            service,
            read_timeout_s=read_timeout_s,
            attempts=attempts,
            endpoint_url=endpoint_url,
        )


@contextmanager
def _reading_settings() -> Iterator[None]:
    """The library reads the user's variables and files as it goes, and raises many kinds of
    exceptions for what is wrong in them."""
    try:
        yield
    except (BotoCoreError, ValueError) as error:
        raise CloudUnavailable(
            f"reading the AWS settings: {error}; correct the AWS_ variables of this shell, or the "
            "file that AWS_CONFIG_FILE names (~/.aws/config)"
        ) from error


@cache
def _loader(data_path: str | None) -> Loader:
    """A user's own models come before those of the library."""
    return create_loader(data_path)
