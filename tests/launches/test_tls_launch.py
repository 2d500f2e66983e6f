"""Whole runs, with preemptions, in a store over TLS with a user per run: they are what they are
anywhere, and the password is where it was put and nowhere else."""

import json
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.ids import RunId
from cloud.local.session import members
from testbed.waiting import wait_until
from tests.exposed import files_with, processes_with
from tests.launches.test_launch import Bench
from tests.tls_store import TlsStore, start_tls_store

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(300)]

RUN = "sealed"
PASSWORD = secrets.token_hex(32)
KILLS = (
    '[{step=10, stage=1, phase="backward"}, {step=20, stage=3, notice_s=1}, '
    '{step=40, stage=0, phase="forward"}]'
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TlsStore]:
    store = start_tls_store(tmp_path / "redis", users=[(RunId(RUN), PASSWORD)])
    yield store
    store.stop()


@pytest.fixture
def bench(tmp_path: Path, server: TlsStore) -> Bench:
    folder = tmp_path / "bench"
    folder.mkdir()
    made = Bench(folder)
    made.environment["BAMBOO_REDIS_CA"] = str(server.authority)
    return made


def private(path: Path, text: str) -> str:
    path.touch(mode=0o600)
    path.write_text(f"{text}\n")
    return f"file:{path}"


def test_a_run_with_preemptions_verifies(bench: Bench, server: TlsStore, tmp_path: Path) -> None:
    url = server.url(RunId(RUN), PASSWORD)
    bench.environment["BAMBOO_REDIS_URL"] = private(tmp_path / "store-url", url)
    sets = ["--set", "train.steps=400", "--set", f"chaos.kill={KILLS}"]
    done = bench.run("launch", "job.toml", "--run", RUN, *sets)
    assert done.returncode == 0, done.stdout + done.stderr
    receipt = json.loads((bench.home / RUN / "receipt.json").read_text())
    assert [p["planned"] for p in receipt["preemptions"]] == [False, True, False]
    assert bench.json("verify", RUN)["equal"] is True
    assert bench.json("verify", RUN, "--decisions")["equal"] is True
    assert not files_with(PASSWORD, bench.folder)
    assert PASSWORD not in done.stdout + done.stderr
    with server.admin() as admin:
        assert admin.hget(f"bamboo:{RUN}:state", "store_id"), "the run was in this store"
        assert {key.split(":")[1] for key in admin.keys("*")} == {RUN}
        denied = [e["object"] for e in admin.execute_command("ACL", "LOG")]
        assert set(denied) <= {"client|setinfo"}, "the run asked for what it may not do"


@pytest.mark.parametrize("by", ["url", "file"])
def test_while_it_runs_the_password_is_nowhere_else(
    bench: Bench, server: TlsStore, tmp_path: Path, by: str
) -> None:
    url = server.url(RunId(RUN), PASSWORD)
    bench.environment["BAMBOO_REDIS_URL"] = (
        url if by == "url" else private(tmp_path / "store-url", url)
    )
    said = ""
    with bench.launched(RUN) as launched:
        expected = {"endpoint.json"} if by == "url" else set()
        assert files_with(PASSWORD, launched.folder) == expected
        assert not processes_with(PASSWORD, members(launched.cloud_pid))
        reference = launched.socket_dir / "store-url"
        assert reference.stat().st_mode & 0o777 == 0o600
        for command in ("status", "list", "logs", "cost"):
            line = (command,) if command == "list" else (command, RUN)
            done = bench.run(*line, *(["--json"] if command != "logs" else []))
            assert done.returncode == 0, done.stderr
            said += done.stdout + done.stderr
        taken = bench.run("preempt", RUN, "--stage", "2")
        assert taken.returncode == 0, taken.stderr
        wait_until(
            lambda: bench.json("status", RUN)["generation"] > 1, what="a failover", timeout_s=30.0
        )
        launched.process.send_signal(signal.SIGINT)
        assert launched.wait() == 130
        launched.assert_gone()
    assert not files_with(PASSWORD, launched.folder)
    assert PASSWORD not in said + launched.out.read_text()
