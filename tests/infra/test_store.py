"""The store's first boot: a server by TLS with one login, of which nothing shows but in its secret;
played on this machine with the real redis-server."""

import contextlib
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from bamboo.coord.logins import check_separates_runs, make_login
from bamboo.coord.open import check_store
from bamboo.errors import StoreRefused
from bamboo.ids import RunId
from testbed.waiting import wait_until
from tests.infra.fakes import Machine

REAL = ("cat", "sed", "tr", "cut", "awk", "sha256sum", "openssl", "mkdir", "chmod")
METADATA = """
case "${@: -1}" in
    */api/token) echo token ;;
    */placement/region) echo us-east-1 ;;
    */local-ipv4) echo 127.0.0.1 ;;
    *) exit 22 ;;
esac
"""
AWS = """
case "$2" in
    get-secret-value) cat "secret-$4" 2>/dev/null || exit 254 ;;
    put-secret-value) cat >"secret-$4" ;;
esac
"""
INSTALL = 'for word in "$@"; do case "$word" in /*) mkdir -p "$word" ;; esac; done'


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on the path")
    made = Machine(tmp_path, real=REAL)
    for name in ("systemctl", "useradd", "dnf", "chown", "sleep"):
        made.command(name)
    made.command("install", INSTALL)
    made.command("getent", "exit 2")
    made.command("curl", METADATA)
    made.command("aws", AWS)
    made.command("redis-server")
    (tmp_path / "units").mkdir()
    return made


def boot(machine: Machine, port: int) -> subprocess.CompletedProcess[str]:
    return machine.run(
        "store.sh",
        BAMBOO_ADMIN_SECRET="admin",
        BAMBOO_STORE_PORT=str(port),
        BAMBOO_STORE_ETC=str(machine.folder / "etc"),
        BAMBOO_STORE_DATA=str(machine.folder / "data"),
        BAMBOO_STORE_UNITS=str(machine.folder / "units"),
    )


def secret(machine: Machine) -> dict[str, str]:
    found = json.loads((machine.folder / "secret-admin").read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture
def served(machine: Machine, port: int) -> Iterator[Machine]:
    """A machine whose store runs, as the unit that was written says."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("redis-server is not on the path")
    done = boot(machine, port)
    assert done.returncode == 0, done.stderr
    log = machine.folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [server, machine.folder / "etc" / "store.conf"], stdout=output, stderr=output
        )
    try:
        wait_until(lambda: b"Ready to accept" in log.read_bytes(), what="the store is up")
        yield machine
    finally:
        process.kill()
        process.wait(timeout=10)


def url(machine: Machine) -> str:
    authority = machine.folder / "ca.pem"
    authority.write_text(secret(machine)["ca_pem"])
    return f"{secret(machine)['url']}?ssl_ca_certs={authority}"


def test_a_run_has_a_login_of_its_own_there(served: Machine) -> None:
    check_separates_runs(url(served))
    user, password = make_login(url(served), RunId("r1"))
    of_run = url(served).replace(f"admin:{secret(served)['password']}", f"{user}:{password}")
    check_store(of_run, run=RunId("r1"))
    with pytest.raises(StoreRefused, match="does not let this user"):
        check_store(of_run, run=RunId("r2"))
    users = (served.folder / "data" / "users.acl").read_text()
    assert "user bamboo-r1 on" in users, "a store that starts again knows it"
    assert password not in users


def test_nobody_comes_in_without_a_login_or_in_the_clear(served: Machine, port: int) -> None:
    authority = url(served).partition("?")[2]
    for address in (
        f"rediss://127.0.0.1:{port}/0?{authority}",
        f"rediss://admin:wrong@127.0.0.1:{port}/0?{authority}",
        f"redis://127.0.0.1:{port}/0",
        secret(served)["url"],  # without the certificate nobody is believed
    ):
        with pytest.raises(StoreRefused):
            check_store(address, run=RunId("r1"))


def test_the_launcher_has_the_one_login_and_the_store_forgets_nothing(served: Machine) -> None:
    asked = redis.Redis.from_url(url(served), socket_timeout=5, decode_responses=True)
    with contextlib.closing(asked) as admin:
        users = admin.execute_command("ACL", "LIST")
        assert [line.split()[1:3] for line in sorted(users)] == [
            ["admin", "on"],
            ["default", "off"],
        ]
        assert admin.config_get("appendfsync") == {"appendfsync": "always"}


def test_no_password_shows(served: Machine) -> None:
    """Not in an argument, not in what was printed, not in a file of the server."""
    password = secret(served)["password"]
    assert len(password) == 64
    seen = "".join(served.calls())
    for path in served.folder.rglob("*"):
        if path.is_file() and not path.name.startswith("secret-"):
            seen += path.read_bytes().decode(errors="replace")
    assert password not in seen
    for name in ("etc/key.pem", "data/users.acl"):
        assert (served.folder / name).stat().st_mode & 0o007 == 0


def test_a_replaced_store_keeps_its_password(machine: Machine, port: int) -> None:
    assert boot(machine, port).returncode == 0
    before = secret(machine)
    assert boot(machine, port).returncode == 0
    assert secret(machine)["password"] == before["password"]
    assert secret(machine)["ca_pem"] != before["ca_pem"]


def test_one_secret_is_said_once_the_store_is_on(machine: Machine, port: int) -> None:
    assert boot(machine, port).returncode == 0
    said = [c for c in machine.calls() if "put-secret" in c or "enable --now" in c]
    assert said[0] == "systemctl enable --now bamboo-store.service"
    assert len(said) == 2


@pytest.mark.parametrize("command", ["curl", "dnf", "systemctl", "openssl"])
def test_a_store_that_cannot_be_says_so_and_tells_nobody(
    machine: Machine, port: int, command: str
) -> None:
    (machine.bin / command).unlink()
    machine.command(command, "exit 1")
    done = boot(machine, port)
    assert done.returncode != 0
    assert "there is no store" in done.stderr
    assert not (machine.folder / "secret-admin").exists()


def test_the_unit_is_one_that_systemd_takes(machine: Machine, port: int) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not on the path")
    assert boot(machine, port).returncode == 0
    unit = machine.folder / "units" / "bamboo-store.service"
    said = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=30, check=False
    ).stderr
    assert [line for line in said.splitlines() if "is not executable" not in line] == []
