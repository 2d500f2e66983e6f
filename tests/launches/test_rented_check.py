"""`bamboo verify RUN --rent` in an account: the verdict of a machine that is rented for it, its
bill, and what is left of the check, also of one whose launcher was killed."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bamboo.ids import InstanceId
from testbed.waiting import wait_until
from tests.launches.boots import BUCKET
from tests.launches.own_account import LONGEST_S, REGION, Account, an_account

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    yield from an_account(tmp_path)


def answer(said: str) -> dict[str, Any]:
    (line,) = (line for line in said.splitlines() if line.startswith("{"))
    found: dict[str, Any] = json.loads(line)
    return found


def keys(account: Account, below: str) -> list[str]:
    found = account.s3.list_objects_v2(Bucket=BUCKET, Prefix=below).get("Contents", ())
    return [one["Key"] for one in found]


def check_of(account: Account, run: str) -> str:
    """The id of the newest check; "": there is none yet."""
    found = sorted((account.home / run / "checks").glob("*"), key=lambda path: path.stat().st_mtime)
    return found[-1].name if found else ""


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def whatever_ends_a_check_early_leaves_nothing_of_it(account: Account, run: str) -> None:
    def under_way() -> tuple[Any, str, str]:
        process = account.begin("verify", run, "--rent", "--yes")
        wait_until(lambda: account.live() != [], what="a machine", timeout_s=60.0)
        return process, check_of(account, run), account.live()[0]

    interrupted, check, _ = under_way()
    interrupted.send_signal(signal.SIGINT)
    said, _ = interrupted.communicate(timeout=LONGEST_S)
    assert interrupted.returncode == 130, said
    assert "s at $0.2000/h" in said, "a bill is for all that was rented"
    account.nothing_left(check)

    taken, check, instance = under_way()
    account.cloud.control.preempt(InstanceId(instance), notice_s=0.0, cause="test")
    said, _ = taken.communicate(timeout=LONGEST_S)
    assert taken.returncode == 1, said
    assert f"the cloud took the machine of {check}, and nothing was compared" in said
    account.nothing_left(check)

    killed, check, instance = under_way()
    (group,) = (
        one["pid"] for one in account.cloud.control.instances() if one["instance"] == instance
    )
    os.killpg(group, signal.SIGSTOP)  # so that the check goes on for as long as it is looked at
    looked = ("doctor", "--orphans", "--region", REGION)
    assert f"or of a check that goes on: {check}" in account.run(*looked)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert account.live() != [], "an account ends nothing for want of a launcher"
    said = account.run(*looked, code=1)
    os.killpg(group, signal.SIGCONT)
    assert f"nobody waits for this check any more: bamboo stop {check} --region {REGION}" in said
    wait_until(
        lambda: f"runs/{check}/verdict.json" in keys(account, f"runs/{check}/"),
        what="a verdict that nobody waits for",
        timeout_s=60.0,
    )
    account.run("stop", "--all", "--region", REGION)
    account.nothing_left(check)
    assert keys(account, f"runs/{check}/") == []


def test_a_run_is_verified_on_a_rented_machine(account: Account) -> None:
    run = "far"
    account.run("launch", "job.toml", "--run", run, "--set", "train.steps=20")
    whatever_ends_a_check_early_leaves_nothing_of_it(account, run)
    shutil.rmtree(account.home / run / "checks")

    asked = account.run("verify", run, "--rent", code=2)
    assert "spot g4dn.xlarge in us-east-1a at $0.2000/h" in asked
    assert "there is nobody to ask; --yes goes on without asking" in asked
    assert not (account.home / run / "checks").exists()

    said = account.run("verify", run, "--rent", "--yes", "--json")
    body = answer(said)
    assert body["equal"] is True
    assert (body["steps"], body["damaged_files"]) == (20, [])
    (line,) = body["rented"]["instances"]
    assert (line["instance_type"], line["usd_per_hour"]) == ("g4dn.xlarge", 0.2)
    assert line["usd"] == pytest.approx(0.2 * line["billed_s"] / 3600, abs=1e-6)
    assert body["rented"]["modelled"] is False
    assert f"{line['billed_s']} s at $0.2000/h" in said
    check = body["rented"]["check"]
    account.nothing_left(check)
    assert keys(account, f"runs/{check}/") == []
    assert keys(account, f"runs/{run}/") != [], "those of the run stay"

    flip_a_bit(account.home / run / "final" / "stage-00.safetensors")
    said = account.run("verify", run, "--rent", "--yes", "--json", code=5)
    body = answer(said)
    assert body["first_difference"]["step"] == 19
    assert body["damaged_files"] == ["stage-00.safetensors"]
    account.nothing_left(body["rented"]["check"])
