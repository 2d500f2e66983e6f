"""However a local cloud ends, nothing of it is left within 15 s; and what it can mend, it mends."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.errors import BambooError
from bamboo.ids import InstanceId
from cloud.local import services
from cloud.local.config import Ready
from cloud.local.directory import choose_directory
from cloud.local.host import Host
from cloud.local.session import members
from cloud.local.start import LocalCloud
from testbed.waiting import wait_until
from tests.cloud.local.local_world import (
    ACTORS,
    alive,
    expect_nothing_left,
    fleet_of,
    member,
    provider_of,
    running,
    said,
    start,
)

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _actors_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ACTORS}{os.pathsep}{ROOT}")


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    """A local cloud with one instance running."""
    cloud = start(tmp_path)
    provider = provider_of(cloud)
    try:
        running(fleet_of(provider, tmp_path), cloud, 1)
        yield cloud
    finally:
        provider.close()
        cloud.stop()
        expect_nothing_left(cloud)


def pinged(cloud: LocalCloud, words: str) -> str:
    """The first line of the store's answer, or nothing when it does not answer."""
    path = cloud.store_url.removeprefix("unix://").partition("?")[0]
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2.0)
            client.connect(path)
            client.sendall(words.encode() + b"\r\n")
            return client.recv(100).decode()
    except OSError:
        return ""


def test_a_terminated_host_ends_in_order(cloud) -> None:
    os.kill(cloud.pid, signal.SIGTERM)
    expect_nothing_left(cloud)


def test_without_its_reaper_the_rest_still_dies_with_the_host(cloud) -> None:
    reaper = member(cloud, "cloud.local.reaper")
    os.kill(cloud.pid, signal.SIGSTOP)  # so that it cannot start another
    os.kill(reaper, signal.SIGKILL)
    os.kill(cloud.pid, signal.SIGKILL)
    wait_until(lambda: not members(cloud.pid), what="all processes end", timeout_s=15.0)


def test_a_killed_reaper_store_or_fork_server_is_started_again(cloud, tmp_path) -> None:
    assert pinged(cloud, "SET kept yes").startswith("+OK")
    for part in ("cloud.local.reaper", "valkey-server", "cloud.local.zygote"):
        pid = member(cloud, part)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not alive(pid), what=f"{part} is dead")
        assert member(cloud, part) != pid
    wait_until(lambda: "yes" in pinged(cloud, "GET kept"), what="the store has its data again")
    provider = provider_of(cloud)
    running(fleet_of(provider, tmp_path), cloud, 2)
    provider.close()


LAUNCHER = """
import sys
from pathlib import Path
from tests.cloud.local.local_world import start, provider_of, fleet_of, running
cloud = start(Path(sys.argv[1]))
cloud.hold(alone_s=3.0)
provider = provider_of(cloud)
running(fleet_of(provider, Path(sys.argv[1])), cloud, 1)
sys.stdout.write(cloud.ready.line().decode())
sys.stdout.flush()
sys.stdin.read()
"""


def test_a_launcher_that_comes_back_in_time_stops_the_clock(tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert launcher.stdout is not None
    cloud = LocalCloud(Ready.parse(launcher.stdout.readline()))
    launcher.kill()
    launcher.communicate(timeout=10)
    log = tmp_path / "logs" / "cloud.log"
    wait_until(lambda: "the launcher is gone" in log.read_text(), what="the clock to run")
    cloud.hold(alone_s=600.0)
    other, until_s = LocalCloud(cloud.ready), time.time() + 4.0
    other.hold(alone_s=600.0)
    cloud.release()
    wait_until(lambda: time.time() > until_s, what="the first clock to run down", timeout_s=10.0)
    assert other.alive()
    (instance,) = other.control.instances()
    assert instance["state"] == "running"
    other.hold(alone_s=600.0, until_s=1.0)  # a time long past: it ends as soon as it is alone
    other.release()
    expect_nothing_left(cloud)
    assert "no launcher came back in time" in log.read_text()


def test_an_old_endpoint_whose_number_is_anothers_by_now_ends_nobody(tmp_path) -> None:
    stranger = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    old = LocalCloud(
        Ready(
            pid=stranger.pid,
            endpoint_url="http://127.0.0.1:1",
            store_url="",
            control_path=str(tmp_path / "gone" / "control.sock"),
            socket_dir=str(tmp_path / "gone"),
        )
    )
    assert not old.alive()
    old.stop()
    assert stranger.poll() is None
    stranger.communicate(b"\n", timeout=10)
    assert stranger.returncode == 0


def half_written(cloud: LocalCloud, instance: str) -> Path:
    """What the worker of an instance has just begun to write where it was told to."""
    folder = Path(said(cloud, instance, "worker")["config"]["scratch_dir"])
    folder.mkdir()
    (folder / "stage-00").write_bytes(b"half")
    return folder


def test_what_an_instance_was_writing_goes_with_it(cloud: LocalCloud, tmp_path: Path) -> None:
    instances = [i["instance"] for i in cloud.control.instances()]
    provider = provider_of(cloud)
    try:
        instances += running(fleet_of(provider, tmp_path), cloud, 2)
    finally:
        provider.close()
    taken, stays = (half_written(cloud, instance) for instance in instances)
    assert taken != stays
    assert taken.resolve().is_relative_to(tempfile.gettempdir())
    cloud.control.preempt(InstanceId(instances[0]), notice_s=0.0, cause="test")
    wait_until(lambda: not taken.exists(), what="its scratch is removed")
    assert (stays / "stage-00").exists()


@pytest.mark.parametrize(
    ("how", "length"),
    [
        ("stop", 1),
        ("kill", 40),
        ("kill the reaper", 40),
        *(
            pytest.param(how, length, marks=pytest.mark.full)
            for how, length in (("stop", 40), ("kill", 1), ("kill the reaper", 1))
        ),
    ],
)
def test_scratch_lies_in_tmpdir_and_nothing_of_it_is_left(
    tmp_path: Path, temporary_root: Path, monkeypatch: pytest.MonkeyPatch, how: str, length: int
) -> None:
    """Also where sockets cannot, because its path is too long for them."""
    root = temporary_root / ("x" * length)
    root.mkdir()
    monkeypatch.setenv("TMPDIR", str(root))
    cloud = start(tmp_path)
    provider = provider_of(cloud)
    try:
        (instance,) = running(fleet_of(provider, tmp_path), cloud, 1)
        written = half_written(cloud, instance)
        assert written.resolve().is_relative_to(root)
        assert (cloud.socket_dir.parent == root) == (length == 1)
        if how == "stop":
            # Host, reaper, fork server, store, agent and worker.
            assert len(members(cloud.pid)) == 6
        else:
            if how == "kill the reaper":
                os.kill(member(cloud, "cloud.local.reaper"), signal.SIGSTOP)
            os.kill(cloud.pid, signal.SIGKILL)
        if how != "kill":
            cloud.stop()
        expect_nothing_left(cloud)
        assert not cloud.alive()
        assert not written.exists()
        assert list(root.iterdir()) == []
    finally:
        provider.close()
        cloud.stop()


def test_a_module_that_does_not_import_is_a_clear_error_and_leaves_nothing(
    tmp_path, temporary_root
) -> None:
    with pytest.raises(BambooError, match="No module named 'no_such_module'"):
        start(tmp_path, preload="no_such_module")
    assert list(temporary_root.iterdir()) == []


def made_in(root: Path) -> list[Path]:
    """The directories of local clouds there. Python's own trial of a temporary root, a file that is
    gone at once, is none: who is killed in the midst of it leaves it."""
    return list(root.glob("bb-*"))


def test_a_start_that_takes_too_long_is_given_up_and_leaves_nothing(
    tmp_path, temporary_root
) -> None:
    with pytest.raises(BambooError, match="did not start"):
        start(tmp_path, preload="slow_module", deadline_s=2.0)
    assert list(temporary_root.iterdir()) == []


def test_a_host_without_its_reaper_has_made_nothing_yet(
    temporary_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever kills it before there is somebody to clean up finds nothing to clean up."""

    def killed(**_: object) -> None:
        raise BambooError("killed")

    monkeypatch.setattr(services, "start_reaper", killed)
    lifeline, held = os.pipe()
    with pytest.raises(BambooError, match="killed"):
        Host(choose_directory(), (), lifeline=lifeline).begin()
    for end in (lifeline, held):
        os.close(end)
    assert list(temporary_root.iterdir()) == []


def test_an_interrupt_during_the_start_leaves_nothing(tmp_path, temporary_root) -> None:
    def interrupt() -> None:
        wait_until(lambda: made_in(temporary_root), what="its directory", timeout_s=20)
        os.kill(os.getpid(), signal.SIGINT)  # to the main thread, which waits

    # Whoever starts the tests in the background may have left the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path, preload="slow_module")
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(temporary_root.iterdir()) == []
