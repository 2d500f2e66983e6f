"""From an account with nothing to a trained run and back: `bamboo init --apply`, launch, no
changes, `bamboo init --destroy`.

The account is the local cloud's: the stack is applied to it before the first instance is asked for,
and destroyed when the run's last one has gone. What is launched there are real processes, through
the requests that an account would get.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.account import account_defaults
from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.runs import run_folder
from bamboo.runs.run_folder import RunFolder
from bamboo.sites import opened
from bamboo.sites.fleet import RunFleet
from cli import main
from cloud.ec2.requests import RUN_TAG
from cloud.local.start import LocalCloud, start_local_cloud
from tests.infra.terraform import (
    MOTO_OVERRIDE,
    STORE_IMAGE,
    copy_stack,
    plugin_dir,
    program,
    said_by,
)
from tests.jobs import tiny_job
from tests.mock_account import ACCOUNT_CALLS, client_at, variables_of

pytestmark = [pytest.mark.full, pytest.mark.e2e, pytest.mark.timeout(600)]
RUN = "on-the-stack"
LIVE = ("pending", "running")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Path]:
    program()
    yield copy_stack(tmp_path / "stack")
    shutil.rmtree(tmp_path / "stack")


class Account:
    """The local cloud of a run, with the stack in it."""

    def __init__(self, stack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stack, self._patch = stack, monkeypatch
        self.seen: list[Mapping[str, Any]] = []
        self.second_plan = ""
        self.left: dict[str, list[Any]] = {}

    def begin(self, cloud: LocalCloud) -> None:
        """Apply the stack, and write down what stands there."""
        self._at = (cloud.endpoint_url, cloud.token)
        self._ec2 = client_at(*self._at)
        # The local cloud has no images; the store's instance asks for its own.
        image = self._ec2.register_image(Name="store", RootDeviceName="/dev/xvda")["ImageId"]
        override = self._stack / "moto_override.tf"
        override.write_text(MOTO_OVERRIDE + STORE_IMAGE % image)
        assert self._init("--apply") == 0
        self.subnets = {subnet["id"] for subnet in account_defaults()["subnets"]}

    def end(self) -> None:
        """When the run has ended its instances: no changes, and nothing left after destroy."""
        self.seen = self._instances()
        self.second_plan = said_by(
            self._stack,
            "plan",
            "-detailed-exitcode",
            "-input=false",
            timeout_s=250,
            **variables_of(*self._at),
        )
        # The mock keeps the disk of an instance, whatever its launch template says.
        tagged = [{"Name": "tag-key", "Values": [RUN_TAG]}]
        for volume in self._ec2.describe_volumes(Filters=tagged)["Volumes"]:
            self._ec2.delete_volume(VolumeId=volume["VolumeId"])
        self._leave_files()
        assert self._init("--destroy") == 0
        self.left = {
            "instances": [i for i in self._instances() if i["State"]["Name"] in LIVE],
            "templates": self._ec2.describe_launch_templates()["LaunchTemplates"],
            "networks": [v for v in self._ec2.describe_vpcs()["Vpcs"] if not v["IsDefault"]],
        }

    def _leave_files(self) -> None:
        """As runs do: the bucket keeps what was replaced, and goes all the same. Nothing is
        deleted: the mock ends none of the marks that say so."""
        s3 = client_at(*self._at, "s3")
        bucket = account_defaults()["bucket"]
        for number in range(3):
            for name in ("wheels/0/bamboo.whl", "runs/r1/final/stage-00.safetensors"):
                s3.put_object(Bucket=bucket, Key=name, Body=b"%d" % number)

    def _init(self, what: str) -> int:
        """Against this account, whose credentials nobody else in this process is to have."""
        with self._patch.context() as patch:
            for name, value in variables_of(*self._at).items():
                patch.setenv(name, value)
            patch.setenv("TF_CLI_ARGS_init", f"-backend=false -plugin-dir={plugin_dir()}")
            patch.delenv("TF_CLI_CONFIG_FILE", raising=False)
            return main.run(["init", str(self._stack), what, "--yes"])

    def _instances(self) -> list[Mapping[str, Any]]:
        return [i for r in self._ec2.describe_instances()["Reservations"] for i in r["Instances"]]


def test_a_run_on_the_applied_stack(
    stack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "cloud.toml"))
    job_file = tiny_job(tmp_path, []).file
    account = Account(stack, monkeypatch)
    start_site, run_fleet = opened.start_site, opened.run_fleet

    def start_with_stack(folder: RunFolder, job: JobConfig, **more: Any) -> LocalCloud:
        cloud = start_site(folder, job, **more)
        assert isinstance(cloud, LocalCloud)
        account.begin(cloud)
        stop = cloud.stop

        def stop_without_stack(**how: Any) -> None:
            try:
                account.end()
            finally:
                stop(**how)

        monkeypatch.setattr(cloud, "stop", stop_without_stack)
        return cloud

    def fleet_on_stack(folder: RunFolder, job: JobConfig, *more: Any, **words: Any) -> RunFleet:
        there = load_job(job_file, ["cloud.provider=ec2"]).cloud
        on_stack = replace(job, cloud=replace(there, provider="local"))
        return run_fleet(folder, on_stack, *more, **words)

    # The account that the stack is applied to is this run's local cloud.
    monkeypatch.setattr(
        "cloud.local.start.start_local_cloud", partial(start_local_cloud, calls=ACCOUNT_CALLS)
    )
    monkeypatch.setattr(opened, "start_site", start_with_stack)
    monkeypatch.setattr(opened, "run_fleet", fleet_on_stack)
    assert main.run(["launch", job_file, "--run", RUN]) == 0

    receipt = run_folder.find(run_folder.home(), RUN).receipt.read_text()
    assert json.loads(receipt)["outcome"] == "done"
    nodes = [i for i in account.seen if any(tag["Key"] == RUN_TAG for tag in i["Tags"])]
    others = [i for i in account.seen if i not in nodes]
    assert len(nodes) == 2
    # Groups and profile stand in the template, of which the mock takes neither.
    for node in nodes:
        assert node["SubnetId"] in account.subnets
        assert node["MetadataOptions"]["HttpTokens"] == "required"
        assert node["State"]["Name"] == "terminated"
    assert [i["State"]["Name"] for i in others] == ["running"], "the store is no node of the run"
    assert "No changes" in account.second_plan
    assert not account_defaults(), "the account file goes with the stack"
    assert account.left == {"instances": [], "templates": [], "networks": []}
