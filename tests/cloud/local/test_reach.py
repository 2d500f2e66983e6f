"""A mock that cannot be reached is named, with the cause, within seconds."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.errors import BambooError
from cloud.local import reach
from cloud.local.config import Ready
from cloud.local.faults import Market
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from cloud.local.reach import loopback_trouble, mock_trouble
from cloud.local.start import LocalCloud
from testbed.waiting import wait_until

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def url_of(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_one_that_answers_is_no_trouble_whatever_proxies_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    mock = MockAws(metadata=MetadataService(), market=Market({}), on_change=lambda: None)
    mock.start()
    try:
        assert mock_trouble(mock.url, pid=os.getpid()) == ""
    finally:
        mock.stop()


def test_a_closed_port_is_named(listener: socket.socket) -> None:
    url = url_of(listener)
    listener.close()
    said = mock_trouble(url, pid=4711)
    assert "process 4711, cannot be reached at " + url in said
    assert "(connection refused)" in said
    assert "see logs/cloud.log in the run's folder" in said


def test_silence_has_an_end(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "REACH_DEADLINE_S", 0.1)
    assert "(no answer within 0.1 s)" in mock_trouble(url_of(listener), pid=os.getpid())


def test_a_stopped_process_is_known_as_such(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "REACH_DEADLINE_S", 0.1)
    stopped = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stopped.send_signal(signal.SIGSTOP)
        wait_until(
            lambda: "(it is stopped)" in mock_trouble(url_of(listener), pid=stopped.pid),
            what="the kernel shows it stopped",
        )
        assert f"`kill -CONT {stopped.pid}`" in mock_trouble(url_of(listener), pid=stopped.pid)
    finally:
        stopped.kill()
        stopped.communicate()


def test_a_run_does_not_begin_with_a_mock_that_cannot_be_reached(
    listener: socket.socket, tmp_path: Path
) -> None:
    url = url_of(listener)
    listener.close()
    ready = Ready(
        pid=os.getpid(),
        endpoint_url=url,
        store_url="unix://none",
        control_path=str(tmp_path / "none"),
        socket_dir=str(tmp_path),
    )
    with pytest.raises(BambooError, match="the mock of AWS of this run's local cloud"):
        LocalCloud(ready).prepare()


def test_this_machine_reaches_itself() -> None:
    assert loopback_trouble() == ""


def in_a_network_of_its_own(command: str) -> str:
    """What a command prints where there is no network but a loopback interface, which is down."""
    done = subprocess.run(
        ["unshare", "-n", "/bin/sh", "-c", command],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no network namespace may be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ASKED = f"{sys.executable} -c 'from cloud.local import reach; print(reach.loopback_trouble())'"


def test_a_loopback_interface_that_is_down_is_said() -> None:
    said = in_a_network_of_its_own(ASKED)
    assert said.startswith("127.0.0.1 cannot be reached on this machine (network is unreachable)")
    assert said.endswith("`ip link set lo up`")


def test_no_other_network_is_needed() -> None:
    assert in_a_network_of_its_own(f"ip link set lo up && {ASKED}") == ""
