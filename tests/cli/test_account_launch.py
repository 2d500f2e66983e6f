"""A run in an account: the account is a mock on loopback whose instances are processes, and the
launcher has nothing of it but AWS_ENDPOINT_URL, a bucket, and a store over TLS."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from bamboo.coord.acl import user_name
from bamboo.ids import InstanceId, RunId
from cli.account_ready import BOOT_FILES
from cli.planning import LAUNCH_TEMPLATE
from cloud.local.start import LocalCloud, start_local_cloud
from tests.cli.boots import BUCKET
from tests.cli.stack import Stack
from tests.exposed import files_with
from tests.jobs import SMALL, TEXT
from tests.store_server import AdminStore, start_admin_store
from tests.support import wait_until
from tests.tls_store import MUST_BE_THERE, SERVER, TlsStore, free_port, start_tls_store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

LONGEST_S = 200.0
REGION, ZONE = "us-east-1", "us-east-1a"
ROOT = Path(__file__).resolve().parents[2]
JOB = f"""{SMALL}[train]
steps = 120
batch = 8
microbatch = 2
[cluster]
stages = 2
redundancy = "eager"
transport = "tcp"
device = "virtual"
virtual_forward_ms = [5.0]
virtual_backward_ms = [10.0]
forming_timeout_s = 600.0
[cloud]
provider = "ec2"
zones = ["{ZONE}"]
image = "ami-00000000"
[checkpoint]
every_steps = 50
"""


class Account:
    """The account, its store, and a folder from which it is used."""

    def __init__(self, folder: Path, cloud: LocalCloud, store: TlsStore | AdminStore) -> None:
        self.folder, self.cloud, self.store = folder, cloud, store
        self.home = folder / "runs"
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        self.s3, self.ec2 = (
            boto3.client(
                service,
                region_name=REGION,
                endpoint_url=cloud.endpoint_url,
                aws_access_key_id="test",
                aws_secret_access_key="test",
            )
            for service in ("s3", "ec2")
        )
        self.s3.create_bucket(Bucket=BUCKET)
        for name in BOOT_FILES:
            self.s3.put_object(Bucket=BUCKET, Key=f"boot/{name}", Body=b"-")
        (folder / "text.txt").write_text(TEXT)
        (folder / "job.toml").write_text(JOB)
        (folder / "cloud.toml").write_text(f'[cloud]\nregion = "{REGION}"\nbucket = "{BUCKET}"\n')
        url = folder / "store-url"
        url.touch(mode=0o600)
        url.write_text(store.admin_url)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BAMBOO_"))},
            **keys,
            "AWS_ENDPOINT_URL": cloud.endpoint_url,
            "BAMBOO_HOME": str(self.home),
            "BAMBOO_CONFIG": str(folder / "cloud.toml"),
            "BAMBOO_REDIS_URL": f"file:{url}",
            "PYTHONPATH": str(ROOT),
        }
        if isinstance(store, TlsStore):
            self.environment["BAMBOO_REDIS_CA"] = str(store.authority)

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def stack(self) -> None:
        """What `terraform apply` makes and says, as far as a mock needs it."""
        image = self.ec2.register_image(Name="worker", RootDeviceName="/dev/xvda")["ImageId"]
        data = {"ImageId": image}
        self.ec2.create_launch_template(LaunchTemplateName=LAUNCH_TEMPLATE, LaunchTemplateData=data)
        asked = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
        subnets = self.ec2.describe_subnets(**asked)["Subnets"]
        outputs = {
            "region": REGION,
            "launch_template": LAUNCH_TEMPLATE,
            "bucket": BUCKET,
            "store_secret": f"arn:aws:secretsmanager:{REGION}:123456789012:secret:store",
            "subnets": {
                one["AvailabilityZone"]: one["SubnetId"]
                for one in subnets
                if one["AvailabilityZone"] == ZONE
            },
        }
        (self.folder / "cloud.toml").unlink()
        terraform = Stack(self.folder)
        body = {name: {"value": value} for name, value in outputs.items()}
        (self.folder / "outputs.json").write_text(json.dumps(body))
        self.environment["PATH"] = f"{terraform.bin}{os.pathsep}{os.environ['PATH']}"

    def without_disks(self) -> None:
        """The mock keeps the disks of its instances, whatever they were started with."""
        for volume in self.ec2.describe_volumes()["Volumes"]:
            self.ec2.delete_volume(VolumeId=volume["VolumeId"])

    def run(self, *arguments: str, code: int = 0) -> str:
        process = self.begin(*arguments)
        try:
            said, _ = process.communicate(timeout=LONGEST_S)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == code, said
        return said

    def live(self) -> list[str]:
        found = self.ec2.describe_instances()["Reservations"]
        return [
            one["InstanceId"]
            for reservation in found
            for one in reservation["Instances"]
            if one["State"]["Name"] in ("pending", "running")
        ]

    def objects(self, run: str) -> set[str]:
        found = self.s3.list_objects_v2(Bucket=BUCKET, Prefix=f"runs/{run}/")
        return {one["Key"].removeprefix(f"runs/{run}/") for one in found.get("Contents", ())}

    def password(self, run: str) -> str:
        """Of the run's login, while it has one."""
        text = self.s3.get_object(Bucket=BUCKET, Key=f"runs/{run}/agent.env")["Body"].read()
        found = re.search(r"://bamboo-[\w-]+:(\w+)@", text.decode())
        assert found is not None, text
        return found[1]

    def under_way(self, process: "subprocess.Popen[str]", run: str) -> bool:
        assert process.poll() is None, process.communicate()[0]
        return self.steps(run) > 5

    def steps(self, run: str) -> int:
        path = self.home / run / "metrics.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def nothing_left(self, run: str) -> None:
        assert self.live() == []
        assert user_name(RunId(run)) not in self.store.users()
        assert not {"agent.env", "store-ca.pem"} & self.objects(run)
        assert not [name for name in self.objects(run) if name.startswith("data/")]


def a_store(folder: Path) -> TlsStore | AdminStore:
    """Over TLS where there is a server that speaks it, else the embedded one, with a login."""
    if shutil.which(SERVER) or os.environ.get(MUST_BE_THERE):
        return start_tls_store(folder)
    return start_admin_store(port=free_port())


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    store = a_store(tmp_path / "store")
    (tmp_path / "account").mkdir()
    (tmp_path / "user").mkdir()
    try:
        cloud = start_local_cloud(
            run="account",
            run_dir=tmp_path / "account",
            preload=(),
            agent_command=(sys.executable, "-m", "tests.cli.boots"),
            agent_environment={"PYTHONPATH": str(ROOT)},
            spot_usd_per_hour={"g4dn.xlarge": {ZONE: 0.2}},
        )
        try:
            yield Account(tmp_path / "user", cloud, store)
        finally:
            cloud.stop()
    finally:
        store.stop()


def told_by_the_cloud(account: Account) -> list[dict[str, Any]]:
    path = account.folder.parent / "account" / "cloud.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_from_the_account_to_the_receipt(account: Account) -> None:
    run = "afar"
    process = account.begin("launch", "job.toml", "--run", run)
    wait_until(lambda: account.under_way(process, run), what="some steps", timeout_s=60.0)
    password = account.password(run)
    victim = account.live()[0]
    account.cloud.control.preempt(InstanceId(victim), notice_s=0.0, cause="test")
    said, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, said

    folder = account.home / run
    receipt = json.loads((folder / "receipt.json").read_text())
    assert receipt["outcome"] == "done"
    assert receipt["final_note"] == ""
    assert receipt["troubles"] == []
    assert receipt["newest_checkpoint"] == 100
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
        assert line["seconds"] == pytest.approx(lasted_s, abs=2.0)
        assert (line["billed_s"] == 0) == (instance == victim)

    assert '"equal": true' in account.run("verify", run, "--json")
    assert '"modelled": false' in account.run("cost", run, "--json")
    account.nothing_left(run)
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
    account.environment["BAMBOO_HOME"] = str(account.folder / "elsewhere")
    assert "nothing of it is left" in account.run("stop", run, "--region", REGION)
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
        assert line["seconds"] == pytest.approx(lasted_s, abs=2.0)


def test_a_run_of_the_same_id_from_another_home_changes_nothing(account: Account) -> None:
    run = "twice"
    process = account.begin("launch", "job.toml", "--run", run)
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


@pytest.mark.full
def test_of_two_launches_of_one_id_at_once_one_runs_and_the_other_changes_nothing(
    account: Account,
) -> None:
    """Both have looked whether the id is free before either has anything there."""
    run, homes = "race", [account.home, account.folder / "elsewhere"]
    processes = []
    for home in homes:
        account.environment["BAMBOO_HOME"] = str(home)
        processes.append(account.begin("launch", "job.toml", "--run", run))
    said = [process.communicate(timeout=LONGEST_S)[0] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 2], said
    (lost,) = (s for s, process in zip(said, processes, strict=True) if process.returncode)
    assert "run race exists already" in lost or "holds a run race already" in lost
    (won,) = (h for h, process in zip(homes, processes, strict=True) if not process.returncode)
    receipt = json.loads((won / run / "receipt.json").read_text())
    assert (receipt["outcome"], receipt["troubles"]) == ("done", [])
    account.nothing_left(run)


def test_a_launcher_killed_before_its_first_instance_leaves_what_stop_all_takes(
    account: Account,
) -> None:
    run = "early"
    process = account.begin("launch", "job.toml", "--run", run)
    wait_until(lambda: "agent.env" in account.objects(run), what="a login", timeout_s=60.0)
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


def commands_of_the_readme() -> list[list[str]]:
    """Those of Bamboo itself in the section on accounts, as they stand there."""
    text = (ROOT / "README.md").read_text()
    _, _, section = text.partition("## In your AWS account")
    lines = re.findall(
        r"^    \.venv/bin/bamboo ([^#\n]+)", section.partition("\n## ")[0], re.MULTILINE
    )
    return [line.split() for line in lines]


def test_each_command_of_the_readme_s_section_on_accounts(account: Account) -> None:
    account.stack()
    small = ("--set", "model.layers=2", "--set", "model.width=16", "--set", "model.heads=2")
    small += ("--set", "train.steps=20", "--set", "data.max_bytes=20000")
    ran = []
    for verb, *words in commands_of_the_readme():
        code = 0
        if verb == "init":
            # A machine on loopback has no address outside, and nobody to be asked.
            words = [word for word in words if word != "--here"] + ["--yes"]
        if "--destroy" in words:
            account.without_disks()
        if "examples/account.toml" in words:
            words = [str(ROOT / word) if word.endswith(".toml") else word for word in words]
            words += small
        if verb == "doctor" and "--orphans" not in words:
            code = 1  # the mock's account has the quotas of a new one: none
        said = account.run(verb, *words, code=code)
        ran.append(verb)
        if verb == "doctor" and code:
            faults = re.findall(r"^([\w -]+): (?:fault|unknown):", said, re.MULTILINE)
            assert faults == ["quotas"], said
    assert ran == ["init", "launch", "doctor", "launch", "cost", "verify", "doctor", "init"]
    assert not (account.folder / "cloud.toml").exists()
    receipt = json.loads((account.home / "first" / "receipt.json").read_text())
    assert (receipt["outcome"], receipt["final_note"]) == ("done", "")
    account.nothing_left("first")
    assert "first: it has ended; nothing of it is left" in account.run("stop", "first")
