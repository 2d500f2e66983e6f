"""The local cloud with real processes: instances live and die as the mock says, and the reverse."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.errors import InputError
from cloud.fleet import Fleet
from cloud.local.session import is_member, members
from cloud.local.start import LocalCloud
from testbed.waiting import wait_until
from tests.cloud.local.local_world import (
    ACTORS,
    alive,
    expect_nothing_left,
    fleet_of,
    lines,
    provider_of,
    running,
    said,
    start,
    told,
)

pytestmark = pytest.mark.e2e

OF_THE_USER = {
    "AWS_ACCESS_KEY_ID": "the-users-own",
    "AWS_PROFILE": "missing",
    "AWS_CONFIG_FILE": "/etc/passwd",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "REQUESTS_CA_BUNDLE": "/no/such/file",
}
"""What the cloud is started with: settings that would lead nowhere."""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def cloud(run_dir: Path) -> Iterator[LocalCloud]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ACTORS), prepend=os.pathsep)
        for name, value in OF_THE_USER.items():
            patch.setenv(name, value)
        cloud = start(run_dir)
    yield cloud
    cloud.stop()
    expect_nothing_left(cloud)


@pytest.fixture
def fleet(cloud: LocalCloud, run_dir: Path) -> Iterator[Fleet]:
    provider = provider_of(cloud)
    fleet = fleet_of(provider, run_dir)
    yield fleet
    fleet.terminate_all()
    provider.close()
    (run_dir / "order").unlink(missing_ok=True)


def journal(run_dir: Path, instance: str) -> dict[str, dict]:
    records = [line for line in lines(run_dir / "cloud.jsonl") if line["instance"] == instance]
    return {record["kind"]: record for record in records}


def test_an_instance_is_one_process_group_in_the_clouds_session(cloud, fleet) -> None:
    for instance in running(fleet, cloud, 2):
        agent, worker = said(cloud, instance, "agent"), said(cloud, instance, "worker")
        assert told(cloud, instance)["pid"] == agent["agent"] == worker["group"]
        assert agent["sees"] == worker["worker"]
        assert os.getsid(worker["worker"]) == os.getsid(agent["agent"]) == cloud.pid
        assert worker["config"]["instance"] == instance
        assert worker["config"]["zone"] == "us-east-1a"


def test_nodes_do_not_get_the_users_own_settings(cloud, fleet) -> None:
    (instance,) = running(fleet, cloud, 1)
    assert said(cloud, instance, "agent")["aws"] == [
        "AWS_CONFIG_FILE",
        "AWS_DEFAULT_REGION",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT",
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "AWS_SHARED_CREDENTIALS_FILE",
    ]


def test_workers_keep_them_for_the_users_bucket_and_model(cloud, fleet) -> None:
    (instance,) = running(fleet, cloud, 1)
    theirs = said(cloud, instance, "worker")["environment"]
    assert OF_THE_USER.items() <= theirs.items()


def test_the_runs_directory_for_sockets_is_private_and_short(cloud) -> None:
    assert cloud.socket_dir.stat().st_mode & 0o777 == 0o700
    assert all(len(str(path)) < 100 for path in cloud.socket_dir.iterdir())


def test_a_preemption_without_notice_kills_the_group_and_is_stamped_before(
    cloud, fleet, run_dir
) -> None:
    (instance,) = running(fleet, cloud, 1)
    pids = [said(cloud, instance, "agent")["agent"], said(cloud, instance, "worker")["worker"]]
    before_ns = time.monotonic_ns()
    cloud.control.preempt(instance, cause="by hand")
    wait_until(lambda: not any(alive(pid) for pid in pids), what="the group is dead")
    (stamp,) = [k for k in lines(run_dir / "kills.jsonl") if k["instance"] == instance]
    assert before_ns < stamp["t_monotonic_ns"] < time.monotonic_ns()
    assert (stamp["cause"], stamp["notice_s"]) == ("by hand", 0.0)
    assert told(cloud, instance)["state"] == "terminated"
    written = journal(run_dir, instance)
    assert written["start"]["usd_per_hour"] == 0.2
    assert written["end"]["cause"] == "interrupted"
    (shown,) = [o for o in fleet._provider.describe("test-run") if o.instance == instance]
    assert shown.interrupted
    assert fleet.ensure(1).live == 1


def test_a_notice_is_seen_through_the_metadata_service_and_kept(cloud, fleet, run_dir) -> None:
    (instance,) = running(fleet, cloud, 1)
    worker = said(cloud, instance, "worker")["worker"]
    asked_s = time.time()
    cloud.control.preempt(instance, notice_s=1.5)
    assert abs(said(cloud, instance, "notice_at_s")["notice_at_s"] - (asked_s + 1.5)) < 1.5
    assert alive(worker)
    wait_until(lambda: not alive(worker), what="the worker is taken after its notice")
    (stamp,) = [k for k in lines(run_dir / "kills.jsonl") if k["instance"] == instance]
    assert stamp["t"] - asked_s >= 1.5
    assert stamp["notice_s"] == 1.5


def test_what_the_fleet_terminates_is_killed_at_once(cloud, fleet, run_dir) -> None:
    (instance,) = running(fleet, cloud, 1)
    worker = said(cloud, instance, "worker")["worker"]
    fleet.terminate(instance, reason="fenced")
    wait_until(lambda: not alive(worker), what="the worker is dead", timeout_s=3.0)
    wait_until(lambda: "end" in journal(run_dir, instance), what="the end is written")
    assert journal(run_dir, instance)["end"]["cause"] == "terminated"
    assert not any(k["instance"] == instance for k in lines(run_dir / "kills.jsonl"))


def test_a_group_that_kills_itself_is_an_interruption(cloud, fleet, run_dir) -> None:
    (instance,) = running(fleet, cloud, 1)
    (run_dir / "order").write_text(f"vanish {instance}")
    wait_until(
        lambda: told(cloud, instance)["state"] == "terminated", what=f"{instance} is interrupted"
    )
    assert told(cloud, instance)["agent_status"] == -9
    assert journal(run_dir, instance)["end"]["cause"] == "interrupted"
    assert fleet.ensure(1).live == 1


def test_an_agent_that_leaves_by_itself_leaves_a_running_instance(cloud, fleet, run_dir) -> None:
    (instance,) = running(fleet, cloud, 1)
    (run_dir / "order").write_text(f"leave {instance}")
    wait_until(lambda: told(cloud, instance)["agent_status"] is not None, what="the agent has left")
    now = told(cloud, instance)
    assert (now["state"], now["pid"], now["agent_status"]) == ("running", None, 5)
    assert fleet.ensure(1).launched == ()
    fleet.terminate(instance, reason="its agent left")
    wait_until(lambda: told(cloud, instance)["state"] == "terminated", what="it is terminated")
    assert journal(run_dir, instance)["agent-end"]["status"] == 5


def test_capacity_that_is_missing_in_one_zone_is_found_in_the_next(cloud, fleet) -> None:
    cloud.control.refuse(code="InsufficientInstanceCapacity", zone="us-east-1a", grant=1)
    report = fleet.ensure(3)
    assert sorted(one.pool.zone for one in report.launched) == ["us-east-1a"] + ["us-east-1b"] * 2


def test_capacity_that_was_withheld_is_given_again(cloud, fleet) -> None:
    fleet._pool_out_s = 0.0
    cloud.control.refuse(code="InsufficientInstanceCapacity", count=1_000_000)
    assert fleet.ensure(1).launched == ()
    cloud.control.relent()
    assert len(fleet.ensure(1).launched) == 1


def test_a_notice_that_is_not_kept(cloud, fleet) -> None:
    (instance,) = running(fleet, cloud, 1)
    asked_s = time.time()
    cloud.control.notice(instance, notice_s=1.0)
    seen_s = said(cloud, instance, "notice_at_s")["notice_at_s"]
    assert abs(seen_s - (asked_s + 1.0)) < 1.0
    wait_until(lambda: time.time() > seen_s + 1.0, what="the deadline is past")
    assert told(cloud, instance)["state"] == "running"


def test_the_helpers_can_be_found(cloud) -> None:
    services = cloud.control.services()
    assert set(services) == {"store", "fork-server"}
    assert all(is_member(pid, cloud.pid) for pid in services.values())


def test_no_secret_of_the_mock_is_shown(cloud, fleet, run_dir) -> None:
    """Its session token is in no file, no process list and no environment; the key of an instance
    in that instance's environment alone."""
    (instance,) = running(fleet, cloud, 1)
    processes = [Path(f"/proc/{pid}") for pid in members(cloud.pid)]
    environments = [(process / "environ").read_bytes() for process in processes]
    shown = [(process / "cmdline").read_bytes() for process in processes]
    shown += [file.read_bytes() for file in run_dir.rglob("*") if file.is_file()]
    shown += [repr(cloud.ready).encode(), json.dumps(cloud.record()).encode()]
    assert not [text for text in shown + environments if cloud.token.encode() in text]
    keys = {key for text in environments for key in re.findall(rb"/imds/i-\w+-(\w{32})", text)}
    assert len(keys) >= 1
    assert not [text for text in shown for key in keys if key in text]
    own = Path(f"/proc/{told(cloud, instance)['pid']}/environ").read_bytes()
    assert sum(key in own for key in keys) == 1


def test_preempting_what_does_not_run_is_refused_and_names_what_does(cloud, fleet) -> None:
    (instance,) = running(fleet, cloud, 1)
    with pytest.raises(InputError, match=f"'i-none' does not run.*{instance}"):
        cloud.control.preempt("i-none")
    with pytest.raises(InputError, match="unknown op"):
        cloud.control._call({"op": "dance"})
