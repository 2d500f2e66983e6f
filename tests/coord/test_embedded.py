"""The embedded store: private, durable, and never longer-lived than its caller."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bamboo.coord.embedded import EmbeddedStore, start_embedded
from bamboo.coord.open import open_store
from bamboo.errors import BambooError, InputError
from bamboo.ids import run_id
from tests.support import wait_until

RUN = run_id("test")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[EmbeddedStore]:
    store = start_embedded(tmp_path / "store")
    yield store
    store.stop()


def gone(pid: int) -> bool:
    """Whether the process is no more, or is only waiting to be noticed by its parent."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_only_its_user_can_reach_it(tmp_path: Path, started: EmbeddedStore) -> None:
    directory = tmp_path / "store"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "valkey.conf").stat().st_mode) == 0o600
    assert stat.S_IMODE((directory / "valkey.sock").stat().st_mode) & 0o077 == 0
    assert started.url == f"unix://{directory}/valkey.sock?db=0"
    listening = psutil.Process(started.pid).net_connections(kind="inet")
    assert listening == []


def test_it_stops_in_order_and_twice(tmp_path: Path, started: EmbeddedStore) -> None:
    assert started.alive()
    started.stop()
    assert not started.alive()
    assert gone(started.pid)
    assert not (tmp_path / "store" / "valkey.sock").exists()
    started.stop()


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_what_was_committed_is_there_after_a_restart(tmp_path: Path, ending: str) -> None:
    first = start_embedded(tmp_path)
    store = open_store(first.url, RUN)
    store.create(state="s0", entry="e0", documents={"job": "{}"})
    for version in range(20):
        store.commit(expected_version=version, state=f"s{version + 1}", entry="e")
    store_id = store.read().store_id
    store.close()
    if ending == "kill":
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: not first.alive(), what="the guard ends with its server")
    else:
        first.stop()
    second = start_embedded(tmp_path)
    store = open_store(second.url, RUN)
    try:
        snapshot = store.read()
        assert (snapshot.version, snapshot.state, snapshot.store_id) == (20, "s20", store_id)
        assert len(store.entries(after_version=-1, timeout_s=0)) == 21
        assert store.document("job") == "{}"
    finally:
        store.close()
        second.stop()


CALLER = """
import sys, time
from pathlib import Path
from bamboo.coord.embedded import start_embedded
store = start_embedded(Path(sys.argv[1]))
print(store.pid, flush=True)
sys.stdin.read()
"""


def start_caller(directory: Path) -> tuple["subprocess.Popen[str]", int, int]:
    """A process that starts a store and waits; with the pids of server and guard."""
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert caller.stdout is not None
    server = int(caller.stdout.readline())
    return caller, server, psutil.Process(server).ppid()


def end_caller(caller: "subprocess.Popen[str]") -> None:
    caller.kill()
    caller.wait(timeout=10.0)
    assert caller.stdin is not None
    assert caller.stdout is not None
    caller.stdin.close()
    caller.stdout.close()


def test_it_dies_with_its_caller(tmp_path: Path) -> None:
    caller, server, guard = start_caller(tmp_path)
    end_caller(caller)
    wait_until(lambda: gone(server) and gone(guard), what="server and guard end", timeout_s=10.0)
    assert not (tmp_path / "valkey.sock").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal of Linux")
def test_it_dies_with_its_guard(tmp_path: Path) -> None:
    caller, server, guard = start_caller(tmp_path)
    try:
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: gone(server), what="the server ends with its guard")
    finally:
        end_caller(caller)


def test_a_socket_path_too_long_is_an_input_error(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 110)
    with pytest.raises(InputError, match="choose a shorter directory"):
        start_embedded(deep)
    assert not deep.exists()


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "appendonlydir").write_text("not a directory")
    with pytest.raises(BambooError, match=r"did not answer .*; the end of .*valkey.log: "):
        start_embedded(tmp_path)
    assert psutil.Process().children() == []


def test_a_password_works_and_is_not_printed(tmp_path: Path) -> None:
    server = start_embedded(tmp_path, password="a secret/@:")
    try:
        assert "secret" not in repr(server)
        store = open_store(server.url, RUN)
        assert store.create(state="s", entry="e", documents={})
        store.close()
    finally:
        server.stop()
