"""The store's URL by reference: a private file, a secret of AWS; what is told is the reference."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from bamboo import wiring
from bamboo.errors import StoreNotReached, StoreRefused
from bamboo.ids import RunId
from bamboo.wiring.store_reference import named_store, store_url_of
from cloud.ec2 import secrets
from cloud.ec2.secrets import RunSecrets

PASSWORD = "Zq7-of-this-test"
URL = f"rediss://bamboo-r:{PASSWORD}@store.test:6379/0"


def private(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return f"file:{path}"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in (
        ("ACCESS_KEY_ID", "x"),
        ("SECRET_ACCESS_KEY", "x"),
        ("REGION", "eu-west-3"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield


def test_a_url_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BAMBOO_REDIS_CA", raising=False)
    for url in (URL, "unix:///a.sock", "", "nonsense"):
        assert store_url_of(url) == url
        monkeypatch.setenv("BAMBOO_REDIS_URL", f" {url}\n")
        assert named_store() == url


def test_the_authority_of_the_environment_goes_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BAMBOO_REDIS_CA", "/etc/ca.pem")
    monkeypatch.setenv("BAMBOO_REDIS_URL", URL)
    assert named_store() == f"{URL}?ssl_ca_certs=/etc/ca.pem"
    reference = private(tmp_path / "url", URL)
    assert store_url_of(reference) == f"{URL}?ssl_ca_certs=/etc/ca.pem"
    monkeypatch.setenv("BAMBOO_REDIS_URL", reference)
    assert named_store() == reference


def test_a_private_file_leads_to_it(tmp_path: Path) -> None:
    assert store_url_of(private(tmp_path / "url", f"\n{URL}\n")) == URL
    assert store_url_of(private(tmp_path / "url", URL, 0o400)) == URL


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    for mode in (0o644, 0o640, 0o604):
        with pytest.raises(StoreRefused, match=r"may be read by others .*chmod 600"):
            store_url_of(private(tmp_path / "url", URL, mode))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "leads to no URL"),
        (PASSWORD, "leads to no URL"),
        (f"file:/{PASSWORD}", "leads to no URL"),
        (URL + "x" * 5000, "more than 4096 bytes"),
        ("\0" * 10, "leads to no URL"),
    ],
)
def test_a_file_with_something_else_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(StoreRefused, match=says) as caught:
        store_url_of(private(tmp_path / "url", text))
    assert PASSWORD not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    private(tmp_path / "url", URL)
    (tmp_path / "link").symlink_to(tmp_path / "url")
    for name in ("pipe", "link", "missing", ".", "x\0y", "x" * 5000):
        with pytest.raises(StoreRefused, match=r"no file|cannot be read") as caught:
            store_url_of(f"file:{tmp_path / name}")
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("aws")
def test_a_secret_leads_to_it() -> None:
    for region in ("eu-west-3", "us-west-2"):
        client = boto3.client("secretsmanager", region_name=region)
        made = client.create_secret(Name=f"run/{region}", SecretString=f"{URL}?db={len(region)}")
        assert store_url_of(f"secret:{made['ARN']}") == f"{URL}?db={len(region)}"
    assert store_url_of("secret:run/eu-west-3") == f"{URL}?db=9"


AUTHORITY = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.mark.usefixtures("aws")
def test_what_the_stack_says_of_its_store_leads_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "config" / "cloud.toml"))
    monkeypatch.delenv("BAMBOO_REDIS_CA", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        near, gone = server.getsockname()[1], 1
        client = boto3.client("secretsmanager", region_name="eu-west-3")
        for name, port, public, host in (
            ("near", near, "203.0.113.9", "127.0.0.1"),
            ("far", gone, "203.0.113.9", "203.0.113.9"),
            ("alone", gone, "", "127.0.0.1"),
        ):
            url = f"rediss://admin:{PASSWORD}@127.0.0.1:{port}/0"
            said = {"url": url, "public_host": public, "password": PASSWORD, "ca_pem": AUTHORITY}
            client.create_secret(Name=name, SecretString=json.dumps(said))
            found = store_url_of(f"secret:{name}")
            login, _, kept = found.partition("?ssl_ca_certs=")
            assert login == f"rediss://admin:{PASSWORD}@{host}:{port}/0"
            assert Path(kept).read_text() == AUTHORITY
            assert Path(kept).parent == tmp_path / "config"
    (kept_file,) = (tmp_path / "config").iterdir()
    kept_file.write_bytes(b"\xff")
    assert Path(store_url_of("secret:alone").partition("=")[2]).read_text() == AUTHORITY


@pytest.mark.usefixtures("aws")
def test_a_certificate_that_cannot_be_kept_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "file" / "cloud.toml"))
    monkeypatch.delenv("BAMBOO_REDIS_CA", raising=False)
    said = {"url": URL, "ca_pem": AUTHORITY}
    client = boto3.client("secretsmanager", region_name="eu-west-3")
    client.create_secret(Name="kept", SecretString=json.dumps(said))
    with pytest.raises(StoreNotReached, match="name another folder by BAMBOO_CONFIG") as caught:
        store_url_of("secret:kept")
    assert PASSWORD not in str(caught.value)


@pytest.mark.usefixtures("aws")
def test_a_secret_of_another_form_leads_nowhere_and_is_not_shown() -> None:
    client = boto3.client("secretsmanager", region_name="eu-west-3")
    for number, text in enumerate(
        ('{"url": 3}', f'{{"password": "{PASSWORD}"}}', "{" * 50_000, f'{{"url": "{PASSWORD}"}}')
    ):
        client.create_secret(Name=f"odd-{number}", SecretString=text)
        with pytest.raises(StoreRefused, match="leads to no URL") as caught:
            store_url_of(f"secret:odd-{number}")
        assert PASSWORD not in str(caught.value)


@pytest.mark.usefixtures("aws")
def test_a_secret_that_is_not_there_or_no_url_is_one_line() -> None:
    client = boto3.client("secretsmanager", region_name="eu-west-3")
    client.create_secret(Name="bytes", SecretBinary=PASSWORD.encode())
    client.create_secret(Name="word", SecretString=PASSWORD)
    for name, says in (
        ("missing", "ResourceNotFoundException.*check the secret's name"),
        ("bytes", "holds no text"),
        ("word", "leads to no URL"),
        ("x" * 5000, "check the secret's name|leads to no URL"),
        ("", "check the secret's name"),
    ):
        with pytest.raises(StoreRefused, match=says) as caught:
            store_url_of(f"secret:{name}")
        assert PASSWORD not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_service_that_does_not_answer_may_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(secrets, "ATTEMPTS", 1)
    with pytest.raises(StoreNotReached, match="got no answer"):
        store_url_of("secret:any")


def test_a_command_that_is_refused_shows_the_reference_alone(tmp_path: Path) -> None:
    """`bamboo launch` itself: one line, exit 2, nothing of what the file held."""
    (tmp_path / "job.toml").write_text("")
    reference = private(tmp_path / "url", f"redis://u:{PASSWORD}@store.test/0")
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "launch", "job.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd(), "BAMBOO_HOME": str(tmp_path / "runs")}
        | {"BAMBOO_REDIS_URL": reference},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "in the clear; use rediss://" in done.stderr
    assert len([line for line in done.stderr.splitlines() if "looking at" not in line]) == 1
    assert PASSWORD not in done.stdout + done.stderr


def test_an_agent_reads_its_run_s_secret_once_and_hands_on_what_it_says(
    aws: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A worker that starts later depends on one service less."""
    of_stack, lives = RunSecrets(region="eu-west-3", stack="bamboo"), []
    authority = tmp_path / "ca.pem"
    monkeypatch.setenv("BAMBOO_REDIS_CA", str(authority))
    monkeypatch.setattr("bamboo.agent.main.run_agent", lambda **said: lives.append(said["config"]))
    looks = []

    def not_at_once(reference: str, **way: bool) -> str:
        looks.append(reference)
        if len(looks) == 2:
            of_stack.put(RunId("r1"), URL)
        return store_url_of(reference, **way)

    monkeypatch.setattr(wiring, "store_url_of", not_at_once)
    told = {
        "BAMBOO_RUN": "r1",
        "BAMBOO_REDIS_URL": "secret:bamboo/runs/r1",
        "BAMBOO_SOCKET_DIR": str(tmp_path),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1",
    }
    wiring.live_as_agent(told)
    assert looks == ["secret:bamboo/runs/r1"] * 2
    assert lives[0].store_url == f"{URL}?ssl_ca_certs={authority}"
