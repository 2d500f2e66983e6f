"""Clients of AWS services, each with its own deadlines and number of attempts.

Rule: what boto3 knows of the services is read once in a process, however many sessions there are:
the model of EC2 alone takes longer to read than most questions to answer.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.loaders import Loader, create_loader

CONNECT_TIMEOUT_S = 5


def session_of(region: str | None, *, key: str | None = None) -> boto3.session.Session:
    """A session of its own with the user's usual settings and credentials; `key`: with this one
    instead, as a mock takes it, id and secret alike. Raises BotoCoreError for settings that cannot
    be read."""
    core = botocore.session.Session()
    core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
    return boto3.session.Session(
        botocore_session=core,
        region_name=region,
        aws_access_key_id=key,
        aws_secret_access_key=key,
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
    """A client that gives up after so many attempts, each within its time. Makes no call yet."""
    config = Config(
        connect_timeout=connect_timeout_s,
        read_timeout=read_timeout_s,
        retries={"total_max_attempts": attempts, "mode": "standard"},
    )
    make: Any = session.client  # its type has a name for each service
    return make(service, endpoint_url=endpoint_url, config=config)


def clients_of(
    services: Sequence[str],
    *,
    region: str,
    read_timeout_s: float,
    attempts: int,
    endpoint_url: str | None = None,
) -> Iterator[Any]:
    """A client of each service in turn, all of one session. Raises BotoCoreError as `session_of`
    does."""
    session = session_of(region)
    for service in services:
        yield client_of(
            session,
            service,
            read_timeout_s=read_timeout_s,
            attempts=attempts,
            endpoint_url=endpoint_url,
        )


@cache
def _loader(data_path: str | None) -> Loader:
    """Where a user has models of their own, these go before those of the library."""
    return create_loader(data_path)
