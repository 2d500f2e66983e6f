"""Runs in an account, through its launcher: from start to receipt, and what is left of one that was
killed."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bamboo.coord.acl import user_name
from bamboo.ids import InstanceId, RunId
from bamboo.token_files import beside
from testbed.waiting import wait_until
from tests.exposed import files_with
from tests.launches.boots import BUCKET
from tests.launches.own_account import LONGEST_S, REGION, Account, an_account
from tests.token_folder import prepared, some_ids, write_tokens

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
HELD = "data/mine/y.ids"
STAMPS_S = 3.0
"""A bill is of whole seconds at both ends, and its stamps are not those of the cloud's own log."""


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    yield from an_account(tmp_path)


@pytest.fixture
def real_account(tmp_path: Path) -> Iterator[Account]:
    yield from an_account(tmp_path, forks=False)


def told_by_the_cloud(account: Account) -> list[dict[str, Any]]:
    path = account.folder.parent / "account" / "cloud.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_from_the_account_to_the_receipt(real_account: Account) -> None:
    account, run = real_account, "afar"
    tokens = prepared(write_tokens(account.folder / "x.ids", some_ids(5000))).path
    held = prepared(write_tokens(account.folder / "y.ids", some_ids(300))).path
    for ending in (file.name.removeprefix("y.ids") for file in account.folder.glob("y.ids*")):
        body = beside(held, ending).read_bytes()
        account.s3.put_object(Bucket=BUCKET, Key=f"data/mine/y.ids{ending}", Body=body)
        beside(held, ending).unlink()
    evaluated = ("every_steps=30", "source=tokens", "samples=8", f"path=s3://{BUCKET}/{HELD}")
    named = ("data.source=tokens", "data.path=x.ids", *(f"eval.{one}" for one in evaluated))
    sets = [part for one in named for part in ("--set", one)]
    process = account.begin("launch", "job.toml", "--run", run, *sets)
    wait_until(lambda: account.under_way(process, run), what="some steps", timeout_s=60.0)
    (kept,) = json.loads(account.run("list", "--data", "--json"))
    assert (kept["whole"], kept["runs"]) == (True, [run])
    assert f"stay: {run} read them" in account.run("rm", "--data", kept["digest"], "--yes", code=2)
    password = account.password(run)
    victim = account.live()[0]
    (of_victim,) = account.ec2.describe_instances(InstanceIds=[victim])["Reservations"]
    profile = of_victim["Instances"][0]["IamInstanceProfile"]["Arn"]
    assert profile.endswith(f"/bamboo/{REGION}/bamboo/{run}/{account.role(run)}")
    away = tokens.rename(account.folder / "away")  # an instance has nothing of this folder
    account.cloud.control.preempt(InstanceId(victim), notice_s=0.0, cause="test")
    said, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, said

    folder = account.home / run
    receipt = json.loads((folder / "receipt.json").read_text())
    assert receipt["outcome"] == "done"
    assert receipt["final_note"] == ""
    assert receipt["troubles"] == []
    assert receipt["newest_checkpoint"] == 50
    assert receipt["status"]["evaluation"]["step"] == 60
    assert len(receipt["preemptions"]) == 1
    assert "modelled dollars" not in said
    assert "so far (modelled)" not in said
    bill = {line["instance"]: line for line in receipt["bill"]["instances"]}
    begun = {r["instance"]: r["t"] for r in told_by_the_cloud(account) if r["kind"] == "start"}
    ended = {r["instance"]: r for r in told_by_the_cloud(account) if r["kind"] == "end"}
    assert bill.keys() == begun.keys()
    assert receipt["bill"]["modelled"] is False
    for instance, line in bill.items():
        assert line["usd_per_hour"] == 0.2
        lasted_s = ended[instance]["t"] - begun[instance]
        assert line["seconds"] == pytest.approx(lasted_s, abs=STAMPS_S)
        assert line["billed_s"] > 0, "also of what the cloud took: budget.free_first_hour is off"

    away.rename(tokens)
    assert '"equal": true' in account.run("verify", run, "--json")
    segment = json.loads(account.run("verify", run, "--steps", "52:60", "--json"))
    assert (segment["equal"], segment["from_checkpoint"]) == (True, 50)
    assert '"modelled": false' in account.run("cost", run, "--json")
    account.nothing_left(run)
    assert "KiB go to the bucket" in said
    account.run("rm", "--data", kept["digest"][:12], "--yes")
    left = account.s3.list_objects_v2(Bucket=BUCKET, Prefix="data/")["Contents"]
    assert {one["Key"] for one in left} == {HELD, f"{HELD}.json", f"{HELD}.tree"}
    assert not files_with(password, account.folder)
    assert not files_with(password, account.folder.parent / "account")
    assert password not in said


def test_a_launcher_that_is_killed_leaves_a_run_that_stop_ends(account: Account) -> None:
    run = "alone"
    process = account.begin("launch", "job.toml", "--run", run, "--set", "train.steps=100000")
    wait_until(lambda: account.under_way(process, run), what="a step", timeout_s=60.0)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    password = account.password(run)
    assert len(account.live()) == 2, "an account ends nothing for want of a launcher"
    # Nobody is left to be asked to stop.
    account.ec2.terminate_instances(InstanceIds=account.live())
    account.environment["BAMBOO_HOME"] = str(account.folder / "elsewhere")
    said = account.run("stop", run, "--region", REGION)
    assert "nothing of it is left" in said
    assert "stopped by" not in said
    account.nothing_left(run)
    assert not files_with(password, account.folder)

    account.environment["BAMBOO_HOME"] = str(account.home)
    assert "its instances are all gone" in account.run("attach", run, code=1)
    receipt = json.loads((account.home / run / "receipt.json").read_text())
    assert receipt["outcome"] == "fault"
    ended = {r["instance"]: r["t"] for r in told_by_the_cloud(account) if r["kind"] == "end"}
    begun = {r["instance"]: r["t"] for r in told_by_the_cloud(account) if r["kind"] == "start"}
    for line in receipt["bill"]["instances"]:
        lasted_s = ended[line["instance"]] - begun[line["instance"]]
        assert line["seconds"] == pytest.approx(lasted_s, abs=STAMPS_S)


def test_a_run_of_the_same_id_from_another_home_changes_nothing(account: Account) -> None:
    run = "twice"
    process = account.begin("launch", "job.toml", "--run", run, "--set", "train.steps=100000")
    wait_until(lambda: account.under_way(process, run), what="some steps", timeout_s=60.0)
    password = account.password(run)
    account.environment["BAMBOO_HOME"] = str(account.folder / "elsewhere")
    assert "run twice exists already in us-east-1: the store holds" in account.run(
        "launch", "job.toml", "--run", run, code=2
    )
    assert account.password(run) == password
    assert user_name(RunId(run)) in account.store.users()
    # Nor is it ended under its launcher, which would start again what lacks: it is asked to stop.
    stopped = account.run("stop", run, "--region", REGION)
    assert "stopped by `bamboo stop`" in stopped
    assert "nothing of it is left" in stopped
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 130, said
    receipt = json.loads((account.home / run / "receipt.json").read_text())
    assert receipt["outcome"] == "stopped"
    account.nothing_left(run)


def test_a_launcher_killed_before_its_first_instance_leaves_what_stop_all_takes(
    account: Account,
) -> None:
    run = "early"
    process = account.begin("launch", "job.toml", "--run", run, "--set", "train.steps=8")
    wait_until(lambda: "agent.env" in account.starts(run), what="a login", timeout_s=60.0)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (account.home / run / "endpoint.json").unlink(missing_ok=True)  # as if killed before it
    account.run("stop", "--all", "--region", REGION)
    account.nothing_left(run)
    assert "goes on from the beginning" in account.run("resume", run)
    account.nothing_left(run)


@pytest.mark.full
@pytest.mark.timeout(500)
def test_a_detached_run_is_taken_up_to_be_stopped_and_goes_on_from_there(account: Account) -> None:
    run = "parted"
    slow = ("--set", "train.steps=200")
    assert "bamboo attach parted" in account.run(
        "launch", "job.toml", "--run", run, "--detach", *slow
    )
    folder = account.home / run
    endpoint = json.loads((folder / "endpoint.json").read_text())
    assert endpoint["account"] == {"region": REGION, "bucket": BUCKET}
    assert endpoint["store_url"] == account.environment["BAMBOO_REDIS_URL"]
    wait_until(lambda: account.steps(run) > 5, what="some steps", timeout_s=60.0)
    assert "only the cloud gives notice" in account.run(
        "preempt", run, "--stage", "1", "--notice", "2", code=2
    )
    account.run("preempt", run, "--stage", "1")
    events = folder / "events" / "launcher.jsonl"
    wait_until(lambda: "PeerLost" in events.read_text(), what="a failover", timeout_s=30.0)
    os.kill(endpoint["launcher_pid"], signal.SIGKILL)
    said = account.run("stop", run)
    assert "nothing of it is left" in said, said
    receipt = json.loads((folder / "receipt.json").read_text())
    assert (receipt["outcome"], receipt["final_note"]) == ("stopped", "")
    assert all(line["billed_s"] > 0 for line in receipt["bill"]["instances"]), "we ended them all"
    account.nothing_left(run)
    step = receipt["step"]
    more = account.run("resume", run, "--set", "cluster.step_timeout_s=100", code=0)
    assert f"goes on from the checkpoint of step {step}" in more
    again = json.loads((folder / "receipt.json").read_text())
    assert (again["outcome"], again["step"], again["parts"]) == ("done", 200, 2)
    account.nothing_left(run)
