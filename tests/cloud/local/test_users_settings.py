"""What a user has set for AWS and for the network never reaches the mock of a local run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bamboo import wiring
from bamboo.errors import BambooError
from cloud.ec2.account import Ec2Account
from cloud.ec2.clients import client_of, mock_session
from cloud.ec2.provider import Ec2Provider
from cloud.ec2.requests import Ec2Settings
from cloud.ec2.secrets import read_secret
from cloud.local.environment import without_settings
from cloud.local.faults import Market as MockMarket
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from cloud.provider import Market

pytestmark = pytest.mark.timeout(60)

NOWHERE = "http://127.0.0.1:9"
"""The discard port: nothing listens there."""
CONFIG = """[default]
region = nowhere-1
ca_bundle = /no/such/file
use_fips_endpoint = true
use_dualstack_endpoint = true
retry_mode = adaptive
max_attempts = 17
endpoint_url = http://127.0.0.1:9
services = odd
tcp_keepalive = maybe
defaults_mode = mobile
credential_process = /bin/false
[profile odd]
role_arn = arn:aws:iam::123456789012:role/none
source_profile = missing
[services odd]
ec2 =
  endpoint_url = http://127.0.0.1:9
"""
SETTINGS: dict[str, dict[str, str]] = {
    "no proxy but nowhere": {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "none"},
    "lower case": {"http_proxy": NOWHERE, "https_proxy": NOWHERE, "no_proxy": ""},
    "a proxy for all": {"ALL_PROXY": NOWHERE, "all_proxy": "socks5://127.0.0.1:9"},
    "a proxy that is none": {"HTTP_PROXY": "::no url::", "http_proxy": "::no url::"},
    "a profile that is not there": {"AWS_PROFILE": "missing"},
    "the older name of it": {"AWS_DEFAULT_PROFILE": "missing"},
    "a profile that leads nowhere": {"AWS_PROFILE": "odd", "AWS_CONFIG_FILE": "config"},
    "odd settings": {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "config"},
    "a file that cannot be parsed": {
        "AWS_CONFIG_FILE": "broken",
        "AWS_SHARED_CREDENTIALS_FILE": "broken",
    },
    "endpoints": {"AWS_ENDPOINT_URL": NOWHERE, "AWS_ENDPOINT_URL_EC2": NOWHERE},
    "an endpoint that is none": {"AWS_ENDPOINT_URL": "no url", "AWS_ENDPOINT_URL_EC2": "no url"},
    "endpoints that count for nothing": {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
    "metadata": {
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": NOWHERE,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "ipv6",
    },
    "bundles": {"AWS_CA_BUNDLE": "/no/such/file", "REQUESTS_CA_BUNDLE": "/no/such/file"},
    "repetitions": {"AWS_MAX_ATTEMPTS": "99", "AWS_RETRY_MODE": "adaptive"},
    "repetitions that are no number": {"AWS_MAX_ATTEMPTS": "many", "AWS_RETRY_MODE": "often"},
    "other endpoints": {"AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
    "modes": {"AWS_DEFAULTS_MODE": "none", "AWS_ACCOUNT_ID_ENDPOINT_MODE": "none"},
    "regions": {"AWS_REGION": "nowhere-1", "AWS_DEFAULT_REGION": "no region"},
    "models": {"AWS_DATA_PATH": "/no/such/folder"},
    "keys": {"AWS_ACCESS_KEY_ID": "theirs", "AWS_SECRET_ACCESS_KEY": "theirs"},
    "half a key": {"AWS_ACCESS_KEY_ID": "theirs", "AWS_SESSION_TOKEN": "theirs"},
    "a role": {"AWS_ROLE_ARN": "arn:aws:iam::1:role/x", "AWS_WEB_IDENTITY_TOKEN_FILE": "/no/file"},
    "monitoring": {"AWS_CSM_ENABLED": "true", "AWS_CSM_PORT": "no port"},
}
of_a_user = pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))


@pytest.fixture(scope="module")
def aws() -> Iterator[MockAws]:
    market = MockMarket({"t3.micro": {"us-east-1a": 0.2}})
    mock = MockAws(metadata=MetadataService(), market=market, on_change=lambda: None)
    mock.start()
    yield mock
    mock.stop()


@of_a_user
def test_the_launcher_reaches_the_mock_whatever_the_user_has_set(
    aws: MockAws, settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(CONFIG)
    (tmp_path / "broken").write_text("[default\nwithout an end")
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    provider = Ec2Provider.connect(
        settings=Ec2Settings(region="us-east-1", image="ami-12345678"),
        instance_types=["t3.micro"],
        zones=["us-east-1a"],
        markets=[Market.SPOT],
        on_demand_usd_per_hour={},
        endpoint_url=aws.url,
        token=aws.token,
    )
    try:
        (offer,) = provider.offers()
    finally:
        provider.close()
    assert offer.usd_per_hour == 0.2


CONNECTS: dict[str, Callable[[], Any]] = {
    "instances": lambda: wiring.account("us-east-1"),
    "prices": lambda: wiring.price_source("us-east-1"),
    "a bucket": lambda: wiring.bucket("s3://hers/x", region="us-east-1"),
    "a secret": lambda: read_secret("hers"),
    "an account": lambda: Ec2Account.connect(region="us-east-1").caller(),
}


@pytest.mark.parametrize(
    "settings",
    [
        "a profile that is not there",
        "a file that cannot be parsed",
        "an endpoint that is none",
        "modes",
        "monitoring",
    ],
)
@pytest.mark.parametrize("connect", CONNECTS.values(), ids=list(CONNECTS))
def test_in_an_account_settings_that_cannot_be_are_named(
    settings: str, connect: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the user's settings count; what is wrong with them is one line, and no traceback."""
    (tmp_path / "broken").write_text("[default\nwithout an end")
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name, value in SETTINGS[settings].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BambooError, match="reading the AWS settings: ") as caught:
        connect()
    assert "correct the AWS_ variables of this shell, or the file" in str(caught.value)


def test_what_the_library_lacks_of_a_users_settings_is_its_default() -> None:
    """A client of the mock is signed with the mock's key, and takes the deadlines that we give."""
    client = client_of(
        mock_session("us-east-1", token="t"),
        "ec2",
        read_timeout_s=3,
        attempts=1,
        endpoint_url=NOWHERE,
    )
    try:
        config = client.meta.config
        assert (config.read_timeout, config.proxies) == (3, {})
        assert config.retries["total_max_attempts"] == 1
    finally:
        client.close()


@of_a_user
def test_an_agent_finds_none_of_it(settings: dict[str, str]) -> None:
    kept = without_settings({"PATH": "/bin", "HOME": "/hers", **settings})
    files = {"AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"}
    assert kept.keys() == {"PATH", "HOME"} | files
    assert {kept[name] for name in files} == {"/dev/null"}
