"""`bamboo init`: from the outputs of a stack to the account file, and from there to the requests of
a launch."""

import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.account import account_defaults
from bamboo.controller import launching
from cli.main import run
from tests.jobs import tiny_job

SECRET = "arn:aws:secretsmanager:us-east-1:123456789012:secret:bamboo-store-admin-1"
VALUES: dict[str, Any] = {
    "region": "us-east-1",
    "stack": "bamboo",
    "launch_template": "bamboo-worker",
    "subnets": {"us-east-1b": "subnet-b", "us-east-1a": "subnet-a"},
    "security_group": "sg-1",
    "instance_profile": "bamboo-worker-1",
    "launcher_policy": "arn:aws:iam::123456789012:policy/bamboo-launcher-1",
    "bucket": "bamboo-1",
    "store_secret": SECRET,
    "store_address": "10.80.0.4:6379",
}


def text_of(**other: Any) -> str:
    values = {k: v for k, v in (VALUES | other).items() if v is not None}
    return json.dumps({k: {"sensitive": False, "type": "x", "value": v} for k, v in values.items()})


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config" / "bamboo" / "cloud.toml"
    monkeypatch.setenv("BAMBOO_CONFIG", str(path))
    return path


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    path = tmp_path / "outputs.json"
    path.write_text(text_of())
    return path


def test_what_stands_in_the_account_is_written_down(
    account: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(outputs)]) == 0
    text = capsys.readouterr().out
    assert f"{account}: written" in text
    assert "subnet-a, subnet-b" in text
    assert account_defaults() == {
        "region": "us-east-1",
        "stack": "bamboo",
        "launch_template": "bamboo-worker",
        "bucket": "bamboo-1",
        "store_secret": SECRET,
        "zones": ["us-east-1a", "us-east-1b"],
        "subnets": [
            {"zone": "us-east-1a", "id": "subnet-a"},
            {"zone": "us-east-1b", "id": "subnet-b"},
        ],
    }
    assert stat.S_IMODE(account.stat().st_mode) == 0o600
    assert stat.S_IMODE(account.parent.stat().st_mode) & 0o077 == 0


def test_from_standard_input_as_json(
    account: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text_of()))
    assert run(["init", "-", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["file"], body["written"]) == (str(account), True)
    assert body["cloud"] == account_defaults()


def test_the_same_again_changes_nothing(
    account: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(outputs)]) == 0
    account.write_text("# a note of mine\n" + account.read_text())
    before = account.read_text()
    assert run(["init", str(outputs)]) == 0
    assert "is up to date" in capsys.readouterr().out
    assert account.read_text() == before


def test_something_else_is_replaced_only_if_asked(
    account: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(outputs)]) == 0
    outputs.write_text(text_of(bucket="bamboo-2", launch_template="other"))
    assert run(["init", str(outputs)]) == 2
    assert "with another bucket, launch_template; --force replaces" in capsys.readouterr().err
    assert account_defaults()["bucket"] == "bamboo-1"
    assert run(["init", str(outputs), "--force"]) == 0
    assert account_defaults()["bucket"] == "bamboo-2"
    assert stat.S_IMODE(account.stat().st_mode) == 0o600


def test_what_a_stack_says_of_itself_since_an_update_is_added_unasked(
    account: Path, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", str(outputs)]) == 0
    written = account.read_text()
    account.write_text(written.replace('stack = "bamboo"\n', ""))
    assert run(["init", str(outputs)]) == 0
    assert f"{account}: written" in capsys.readouterr().out
    assert account.read_text() == written
    account.write_text("[cloud]\n")
    assert run(["init", str(outputs)]) == 2, "one that names no bucket may be of another stack"


def test_a_broken_account_is_replaced_only_if_asked(account: Path, outputs: Path) -> None:
    account.parent.mkdir(parents=True)
    account.write_text("[cloud")
    assert run(["init", str(outputs)]) == 2
    assert account.read_text() == "[cloud"
    assert run(["init", str(outputs), "--force"]) == 0
    assert account_defaults()["bucket"] == "bamboo-1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "there are no outputs; `bamboo init --apply`"),
        ("{}", "there are no outputs"),
        ('{"region": 3}', "there is no output region"),
        (text_of(bucket=None), "there is no output bucket"),
        (text_of(region='us-east-1"\nprovider = "x'), "the output region"),
        (text_of(bucket=["a"]), "the output bucket ['a'] is not what it should be"),
        (text_of(subnets={}), "is no table of zones"),
        (text_of(subnets={"us-east-1a": "x"}), "'x' in 'us-east-1a', which is no subnet"),
        (text_of(subnets={"eu-west-1a": "subnet-1"}), "which is no subnet of a zone of us-east-1"),
        (text_of(store_secret="hunter2"), "the output store_secret is not what it should be"),
    ],
    ids=range(12),
)
def test_outputs_that_are_none_write_nothing(
    account: Path, outputs: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    outputs.write_text(text)
    assert run(["init", str(outputs)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert "hunter2" not in said
    assert not account.exists()


def test_a_source_that_is_not_there(account: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", "nowhere"]) == 2
    assert "nowhere: No such file or directory; name the directory" in capsys.readouterr().err


def terraform(folder: Path, monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    (folder / "bin").mkdir()
    program = folder / "bin" / "terraform"
    program.write_text(f'#!/bin/sh\necho "$@" >"{folder}/asked"\n{does}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_terraform_is_asked_in_the_directory_of_the_stack(
    account: Path, outputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terraform(tmp_path, monkeypatch, f'cat "{outputs}"')
    (tmp_path / "terraform").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run(["init"]) == 0
    assert (tmp_path / "asked").read_text() == "-chdir=terraform output -json -no-color\n"
    assert account_defaults()["bucket"] == "bamboo-1"


def test_a_terraform_that_fails_or_is_not_there(
    account: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    terraform(tmp_path, monkeypatch, "echo 'no state' >&2; exit 1")
    assert run(["init", str(tmp_path)]) == 2
    assert "failed: no state; `bamboo init --apply` makes" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["init", str(tmp_path)]) == 2
    assert "terraform is not on the path; install it" in capsys.readouterr().err


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("warm_torch")
def test_a_dry_run_shows_what_comes_of_it(
    account: Path,
    outputs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    sets = ("cloud.provider=ec2", "cluster.transport=tcp", "cluster.forming_timeout_s=900")
    launch = ["launch", tiny_job(tmp_path, []).file, "--dry-run"]
    launch += [part for one in sets for part in ("--set", one)]
    assert run(launch) == 2
    assert "no store is named, and instances do not reach one" in capsys.readouterr().err
    on_paper = [*launch, "--gpu", "T4"]
    assert run(on_paper) == 0
    assert "account in us-east-1: no part is named; `bamboo init`" in capsys.readouterr().out
    monkeypatch.setattr(launching, "check_place", lambda *_: None)
    monkeypatch.setattr(launching, "check_free", lambda *_: None)
    assert run(["init", str(outputs)]) == 0
    assert run(launch) == 0
    text = capsys.readouterr().out
    assert "subnet-a (us-east-1a), subnet-b (us-east-1b)" in text
    assert SECRET in text
    assert run([*launch, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    (request,) = body["requests"]
    assert request["call"] == "RunInstances"
    asked = request["arguments"]
    assert asked["SubnetId"] == VALUES["subnets"][asked["Placement"]["AvailabilityZone"]]
    assert asked["LaunchTemplate"]["LaunchTemplateName"].startswith("bamboo/bamboo/runs/job-")
    assert not {"ImageId", "SecurityGroupIds", "IamInstanceProfile"} & asked.keys()
    assert body["account"]["bucket"] == "bamboo-1"
    # On demand both zones cost the same, and one call goes over both.
    assert run([*launch, "--json", "--set", "cloud.market=on-demand"]) == 0
    (request,) = json.loads(capsys.readouterr().out)["requests"]
    assert request["call"] == "CreateFleet"
    (config,) = request["arguments"]["LaunchTemplateConfigs"]
    assert config["LaunchTemplateSpecification"]["LaunchTemplateName"].startswith("bamboo/")
    subnets = {override["SubnetId"] for override in config["Overrides"]}
    assert subnets == set(VALUES["subnets"].values())
    assert not any("ImageId" in override for override in config["Overrides"])
