"""The laptop's cluster of infra/compose.yaml: read as YAML, for no container is run here, and what
its store starts from, played with the real redis-server."""

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from bamboo.coord.acl import COMMANDS
from bamboo.coord.open import check_store
from bamboo.errors import StoreRefused
from bamboo.ids import RunId
from testbed.waiting import wait_until
from tests.infra.fakes import Machine

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "infra" / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def test_each_waits_for_the_one_before() -> None:
    waits = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    assert waits == {
        "store-files": {},
        "store": {"store-files": {"condition": "service_completed_successfully"}},
        "run": {"store": {"condition": "service_healthy"}},
    }


def test_nothing_is_reached_from_outside() -> None:
    assert COMPOSE["networks"] == {"cluster": {"internal": True}}
    for service in SERVICES.values():
        assert not {"ports", "privileged", "cap_add", "pid"} & service.keys()
        assert service.get("network_mode", "none") == "none"
        assert service.get("networks", ["cluster"]) == ["cluster"]


def test_no_secret_stands_in_an_environment_or_a_command_line() -> None:
    assert SERVICES["run"]["environment"] == {"JOB": "${JOB:-examples/gpt-local.toml}"}
    assert all("environment" not in SERVICES[name] for name in ("store", "store-files"))
    text = (ROOT / "infra" / "compose.yaml").read_text()
    assert "rediss://" not in text
    assert "requirepass" not in text


def test_every_file_and_volume_it_names_is_there() -> None:
    assert (ROOT / "infra" / SERVICES["run"]["build"]["context"] / "infra" / "Dockerfile").exists()
    assert (ROOT / "examples" / "gpt-local.toml").exists()
    for service in SERVICES.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / "infra" / source).exists(), source


def test_its_login_has_the_commands_of_a_run_and_no_others() -> None:
    script = (ROOT / "infra" / "compose-store.sh").read_text()
    may = " ".join(re.findall(r"^may=['\"](?:\$may )?(.*)['\"]$", script, re.MULTILINE)).split()
    assert may == [f"+{name}" for name in COMMANDS]
    assert re.findall(r"^user .*$", script, re.MULTILINE) == [
        "user default off",
        "user bamboo on #$digest resetkeys resetchannels -@all ~bamboo:* $may",
    ]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    for name in ("openssl", "redis-server"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not on the path")
    return Machine(tmp_path, real=("openssl", "sha256sum", "cut", "cat", "mv"))


def test_its_store_serves_runs_by_tls(machine: Machine) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    to = machine.folder / "store"
    to.mkdir()
    settings = {"STORE_DIR": str(to), "STORE_HOST": "localhost", "STORE_PORT": str(port)}
    assert machine.run("compose-store.sh", **settings).returncode == 0
    url = (to / "url").read_text()
    assert machine.run("compose-store.sh", **settings).returncode == 0
    assert (to / "url").read_text() == url, "a second start makes no other password"
    assert all(path.stat().st_mode & 0o077 == 0 for path in to.iterdir())
    server = shutil.which("redis-server")
    assert server is not None
    log = machine.folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([server, to / "store.conf"], stdout=output, stderr=output)
    try:
        wait_until(lambda: b"Ready to accept" in log.read_bytes(), what="the store is up")
        check_store(url.strip(), run=RunId("r1"))
        with pytest.raises(StoreRefused):
            check_store(url.strip().replace("bamboo:", "default:"), run=RunId("r1"))
    finally:
        process.kill()
        process.wait(timeout=10)
