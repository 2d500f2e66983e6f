"""`bamboo doctor --orphans` and `bamboo stop --region` against the mock, through boto3 as it is."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo import wiring
from bamboo.config.load import job_to_json
from bamboo.doctor import checks
from bamboo.doctor import orphans as orphans_module
from bamboo.doctor.checks import Check, Examination, Finding, Result
from bamboo.doctor.leftovers import runs_in_any_stack
from bamboo.doctor.orphans import orphans_check
from bamboo.errors import InputError
from bamboo.ids import RunId, ZoneId
from bamboo.runs import lock
from bamboo.runs.run_folder import RunFolder
from bamboo.sites.account.ending import account_regions
from cli import main
from cloud.ec2.provider import Ec2Provider
from cloud.ec2.requests import Ec2Settings
from cloud.local.faults import Market as MockMarket
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from cloud.orphans import Known, orphans
from cloud.provider import Held, HeldKind, LaunchSpec, Market, Pool
from tests.jobs import tiny_job
from tests.mock_account import variables_of

REGION = "eu-west-1"
POOL = Pool(instance_type="g5.xlarge", zone=ZoneId("eu-west-1a"), market=Market.SPOT)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Ec2Provider]:
    market = MockMarket({"g5.xlarge": {"eu-west-1a": 0.4}})
    aws = MockAws(metadata=MetadataService(), market=market, on_change=lambda: None)
    aws.start()
    for name, value in variables_of(aws.url, aws.token).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    provider = Ec2Provider.connect(
        settings=Ec2Settings(region=REGION, image="ami-12345678"),
        instance_types=[],
        zones=[],
        markets=[Market.SPOT],
        on_demand_usd_per_hour={},
    )
    yield provider
    provider.release(provider.held(None))
    provider.close()
    aws.stop()


def launch(provider: Ec2Provider, run: str, *, token: str, expires_in_s: int = 3600) -> None:
    expires_at_s = int(time.time()) + expires_in_s
    wish = LaunchSpec(run=RunId(run), pool=POOL, count=1, token=token, expires_at_s=expires_at_s)
    assert len(provider.launch([wish]).launched) == 1


def asked(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict]:
    code = main.run(["doctor", "--orphans", "--region", REGION, "--json"])
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    return code, check


def test_what_bills_without_a_run_is_found_priced_and_ended_by_the_command_shown(
    provider, capsys
) -> None:
    code, check = asked(capsys)
    assert (code, check["result"], check["rows"]) == (0, "good", [])
    launch(provider, "ghost-1", token="orphans-1")
    launch(provider, "other-1", token="orphans-2", expires_in_s=-7200)
    code, check = asked(capsys)
    assert (code, check["result"]) == (1, "fault")
    instances = {row["run"]: row for row in check["rows"] if row["kind"] == "instance"}
    assert instances["ghost-1"]["usd_per_hour"] == 0.4
    assert "no run of this name" in instances["ghost-1"]["why"]
    assert instances["other-1"]["why"] == "expired 2.0 h ago"
    command = instances["ghost-1"]["command"]
    assert command == "bamboo stop ghost-1 --region eu-west-1"
    assert main.run(command.split()[1:]) == 0
    assert "1 instance" in capsys.readouterr().out
    code, check = asked(capsys)
    assert {row["run"] for row in check["rows"]} == {"other-1"}
    assert main.run(command.split()[1:]) == 0, "a second time does no harm"
    said = capsys.readouterr().out
    assert "nothing in eu-west-1 carries the tag bamboo:run=ghost-1" in said
    assert "`bamboo doctor --orphans` lists what bills" in said
    assert main.run(["stop", "--all", "--region", REGION]) == 0
    assert capsys.readouterr().out.startswith("other-1: 1 instance")
    assert asked(capsys)[0] == 0
    assert not provider.held(None)


def test_what_is_of_another_stack_is_shown_and_ended_by_its_own_account_file_alone(
    provider, capsys, tmp_path, monkeypatch
) -> None:
    launch(provider, "of-none", token="orphans-5")
    own, command = tmp_path / "own.toml", "bamboo stop of-none --region eu-west-1"
    own.write_text(f'[cloud]\nregion = "{REGION}"\nstack = "mine"\n')
    monkeypatch.setenv("BAMBOO_CONFIG", str(own))
    (row,) = [one for one in asked(capsys)[1]["rows"] if one["kind"] == "instance"]
    assert row["command"] == f"BAMBOO_CONFIG=none {command}"
    assert main.run(command.split()[1:]) == 0
    assert runs_in_any_stack(REGION) == (RunId("of-none"),), "it lives, whatever it may have left"
    assert provider.held(RunId("of-none")), "a launcher ends nothing of another stack"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAMBOO_CONFIG", "none")
    assert main.run(command.split()[1:]) == 0
    assert not provider.held(RunId("of-none"))


def test_for_a_person_each_orphan_is_a_line_with_its_remedy(provider, capsys) -> None:
    launch(provider, "ghost-2", token="orphans-3")
    assert main.run(["doctor", "--orphans", "--region", REGION]) == 1
    said = capsys.readouterr().out
    assert said.startswith("orphans: fault: ")
    assert "spot g5.xlarge in eu-west-1a, since " in said
    assert "$0.40/h" in said.replace("$0.4000/h", "$0.40/h")
    assert "bamboo stop ghost-2 --region eu-west-1" in said


def test_a_run_whose_launcher_lives_is_not_ended_under_its_hands(
    provider, capsys, tmp_path
) -> None:
    launch(provider, "held-1", token="orphans-4")
    folder = RunFolder(id=RunId("held-1"), path=tmp_path / "runs" / "held-1")
    folder.path.mkdir(parents=True)
    folder.resolved.write_text("{")  # half written
    held = lock.take(folder)
    assert held is not None
    assert main.run(["stop", "held-1", "--region", REGION]) == 1
    assert "has a launcher that lives" in capsys.readouterr().err
    assert provider.held(RunId("held-1"))
    held.close()
    assert main.run(["stop", "held-1", "--region", REGION]) == 0
    assert not provider.held(RunId("held-1"))


def test_an_account_that_cannot_be_asked_is_no_good_news(monkeypatch, tmp_path, capsys) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    assert main.run(["doctor", "--orphans", "--region", REGION]) == 1
    assert "orphans: unknown: " in capsys.readouterr().out


def test_stop_all_says_whom_it_asked(provider, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "no.toml"))
    assert main.run(["stop", "--all"]) == 0
    assert "no account was asked: none is named here; --region R" in capsys.readouterr().err
    assert main.run(["stop", "--all", "--region", REGION]) == 0
    assert f"nothing in {REGION} carries the tag of one" in capsys.readouterr().err


def test_a_run_is_not_ended_in_another_region_than_its_own(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    folder = RunFolder(id=RunId("held-2"), path=tmp_path / "runs" / "held-2")
    folder.path.mkdir(parents=True)
    here = ["cloud.provider=ec2", f"cloud.region={REGION}", f'cloud.zones=["{REGION}a"]']
    job = tiny_job(tmp_path, here)
    folder.resolved.write_text(job_to_json(job))
    assert main.run(["stop", "held-2", "--region", "us-west-2"]) == 2
    assert f"--region us-west-2: run held-2 is in {REGION}; leave it" in capsys.readouterr().err


def test_stop_wants_a_run_or_all(capsys) -> None:
    assert main.run(["stop"]) == 2
    assert main.run(["stop", "r", "--all"]) == 2
    assert "give the run to stop, or --all" in capsys.readouterr().err


def held(kind: HeldKind = HeldKind.INSTANCE, **facts) -> Held:
    values = {"id": "i-1", "run": RunId("r"), "state": "running", "since_s": 0.0}
    return Held(kind=kind, **{**values, **facts})


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (held(), ""),
        (held(id="i-2"), "it is no member of its run"),
        (held(id="i-2", since_s=990.0), ""),
        (held(expires_at_s=400.0), "expired 0.2 h ago"),
        (held(run=RunId("done")), "its run has ended"),
        (held(run=RunId("silent"), id="i-9"), ""),
        (held(run=RunId("check"), id="i-9"), ""),
        (held(run=RunId("check"), id="i-9", expires_at_s=400.0), "expired 0.2 h ago"),
        (held(run=RunId("cut"), id="i-9"), "nobody waits for this check any more"),
        (held(HeldKind.VOLUME, id="v", attached_to="i-1"), ""),
        (held(HeldKind.VOLUME, id="v"), "it is attached to nothing"),
        (held(HeldKind.FLEET, run=RunId("done")), ""),
        (held(HeldKind.FLEET, run=RunId("done"), standing=True), "its run has ended"),
        (held(HeldKind.SPOT_REQUEST, run=RunId("done"), standing=True), "its run has ended"),
    ],
)
def test_who_is_an_orphan(one: Held, why: str) -> None:
    known = Known(
        live={RunId("r"): ["i-1"], RunId("silent"): None},
        ended=[RunId("done")],
        checks={RunId("check"): True, RunId("cut"): False},
    )
    found = orphans([one], known, now_s=1000.0, join_s=100.0)
    assert [orphan.why for orphan in found] == ([why] if why else [])


def test_a_check_that_breaks_is_unknown_and_the_others_are_asked() -> None:
    def broken() -> Finding:
        raise InputError("no credentials; run `aws configure`")

    good = Finding(result=Result.GOOD, sentence="all is well")
    found = checks.examine([Check(name="a", ask=broken), Check(name="b", ask=lambda: good)])
    assert [finding.result for _, finding in found] == [Result.UNKNOWN, Result.GOOD]
    assert Examination(found=tuple(found)).exit_code == 1
    assert Examination(found=tuple(found[1:])).exit_code == 0
    warning = Finding(result=Result.WARNING, sentence="old", remedy="renew it")
    assert Examination(found=(("c", warning),)).exit_code == 0
    assert Examination(found=(("c", warning),)).text() == "c: warning: old\n  renew it"


def test_the_account_is_the_users_own(provider) -> None:
    assert wiring.account(REGION).held(RunId("nobody")) == ()


def test_the_region_of_the_account_file_is_looked_at_and_its_stack_named(
    provider: Ec2Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a home that has no run in an account."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "cloud.toml"))
    (tmp_path / "cloud.toml").write_text(f'[cloud]\nregion = "{REGION}"\nbucket = "bucket"\n')
    assert account_regions() == (REGION,)
    found = orphans_check((), account=lambda region, **_: provider).ask()
    assert found.result is Result.GOOD
    assert f"nothing bills in {REGION}" in found.sentence
    assert "its stack bills $" in found.sentence
    assert "a month, run or no run (modelled" in found.sentence
    elsewhere = orphans_check(("us-west-2",), account=lambda region, **_: provider).ask()
    assert "its stack" not in elsewhere.sentence


def test_an_instance_has_the_time_to_join_that_its_job_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "none"))
    assert orphans_module._join_s() == orphans_module.JOIN_S
    job = tiny_job(tmp_path, ["cluster.forming_timeout_s=1800", "cloud.boot_s=60"])
    monkeypatch.setattr(orphans_module.run_folder, "all_runs", lambda home: [None])
    monkeypatch.setattr(orphans_module, "job_of", lambda folder: job)
    assert orphans_module._join_s() == 1860
