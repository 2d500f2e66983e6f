"""What an account is asked for nothing for: each thing that cannot be on an instance, a store that
instances do not reach, a bucket without what they boot from; each with key, value, remedy."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo import wiring
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError, StoreRefused
from bamboo.ids import RunId
from bamboo.sites.account.account_ready import (
    BOOT_FILES,
    BOUNDS,
    check_account,
    check_bucket,
    check_job_for_account,
    check_reads,
    check_store_for_account,
)
from cli import main
from tests.infra.launcher_calls import document
from tests.jobs import tiny_job
from tests.token_folder import prepared, some_ids, write_tokens

RUN = RunId("r1")
IN_ACCOUNT = (
    *("cloud.provider=ec2", "cluster.transport=tcp", "cluster.forming_timeout_s=900"),
    "cloud.bucket=bucket",
)


@pytest.fixture(autouse=True)
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "cloud.toml"))
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    for name in ("BAMBOO_REDIS_URL", "BAMBOO_REDIS_CA"):
        monkeypatch.delenv(name, raising=False)


def job(folder: Path, *overrides: str) -> JobConfig:
    return tiny_job(folder, [*IN_ACCOUNT, *overrides])


def test_a_job_that_can_be_on_instances_is_let_through(tmp_path: Path) -> None:
    check_job_for_account(load_job(Path(__file__).parents[2] / "examples" / "account.toml"))
    check_job_for_account(job(tmp_path))
    check_job_for_account(job(tmp_path, "checkpoint.every_steps=5"))
    own = "cloud.instance_profile=mine"
    check_job_for_account(job(tmp_path, "checkpoint.url=s3://mine/prefix", own))
    check_job_for_account(job(tmp_path, "checkpoint.url=s3://b-1/runs/", "cloud.bucket=b-1"))


@pytest.mark.parametrize(
    ("override", "key", "remedy"),
    [
        ("chaos.kill=[{step=1, stage=0}]", "chaos.kill = ", "leave it out"),
        ("chaos.kills_per_hour=2.0", "chaos.kills_per_hour = 2.0", "take 0"),
        ("cluster.transport=ipc", "cluster.transport = 'ipc'", 'take "tcp"'),
        ("cluster.forming_timeout_s=120", "cluster.forming_timeout_s = 120", "at least 600"),
        ("checkpoint.url=/here", "checkpoint.url = '/here'", "the run's folder of cloud.bucket"),
        ("checkpoint.url=s3://mine/x", "out of reach of the run's instances", "instance_profile"),
    ],
)
def test_what_cannot_be_on_an_instance_is_refused(
    tmp_path: Path, override: str, key: str, remedy: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_job_for_account(job(tmp_path, override))
    assert key in str(caught.value)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["cluster.transport=ipc"], 'its sockets are of one machine; take "tcp" in an account'),
        (["cloud.bucket=b-1"], "no store is named, and instances do not reach one"),
        (["model.requirements=needs.txt"], "is of your own code, and there is none"),
    ],
)
def test_a_dry_run_refuses_what_a_launch_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sets: list[str], words: str
) -> None:
    job(tmp_path)
    (tmp_path / "needs.txt").touch()
    command = [str(tmp_path / "job.toml")]
    command += [part for one in (*IN_ACCOUNT, *sets) for part in ("--set", one)]
    said = []
    for dry in ([], ["--dry-run"]):
        assert main.run(["launch", *command, *dry]) == 2
        said.append(capsys.readouterr().err.splitlines()[-1])
    assert words in said[0]
    assert said[0] == said[1]


def test_a_store_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no store is named.*`bamboo init`"):
        check_store_for_account(job(tmp_path), RUN)


def test_a_password_is_named_by_a_file_and_shown_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_REDIS_URL", "rediss://u:Zq7-secret@host/0")
    with pytest.raises(InputError, match="put the URL into a private file") as caught:
        check_store_for_account(job(tmp_path), RUN)
    assert "Zq7-secret" not in str(caught.value)


def test_a_store_of_this_machine_is_none_for_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_REDIS_URL", "unix:///s.sock?db=0")
    with pytest.raises(StoreRefused, match="instances do not have"):
        check_store_for_account(job(tmp_path), RUN)


def test_the_secret_of_the_account_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(wiring, "check_external_store", lambda url, run: asked.append(url))
    monkeypatch.setattr(wiring, "check_separates_runs", asked.append)
    monkeypatch.setattr(
        "bamboo.sites.account.account_ready.store_url_of",
        lambda url, **_: "rediss://admin:pw@host/0",
    )
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:store-1"
    check_store_for_account(job(tmp_path, f"cloud.store_secret={arn}"), RUN)
    assert asked == [f"secret:{arn}"] * 2


def bucket(folder: Path, *names: str) -> DirectoryStore:
    folder.mkdir(exist_ok=True)
    objects = DirectoryStore(folder / "objects")
    (folder / "empty").touch()
    for name in names:
        objects.put_file(name, folder / "empty")
    return objects


def test_a_bucket_has_the_boot_files(tmp_path: Path) -> None:
    there = [f"boot/{name}" for name in BOOT_FILES]
    with pytest.raises(InputError, match=r"lacks ship-logs.sh in boot/.*`bamboo init --apply`"):
        check_bucket(job(tmp_path), bucket(tmp_path / "a", *there[:-1]))
    check_bucket(job(tmp_path), bucket(tmp_path / "b", *there))


def test_a_boot_of_an_older_release_is_refused(tmp_path: Path) -> None:
    """It would power each instance off, because it does not know what it is told."""
    (tmp_path / "mine.py").touch()
    (tmp_path / "needs.txt").touch()
    own = job(tmp_path, "train.optimizer=mine.py:make", "model.requirements=needs.txt")
    objects = bucket(tmp_path / "a", *(f"boot/{name}" for name in BOOT_FILES))
    with pytest.raises(InputError, match=r"knows no BAMBOO_PYTHON.*`bamboo init --apply`"):
        check_bucket(own, objects)
    names = Path(__file__).parents[2] / "cloud" / "ec2" / "agent_names.txt"
    objects.put_file("boot/agent_names.txt", names)
    check_bucket(own, objects)


def test_a_stack_whose_runs_may_read_no_shared_tokens_is_refused(tmp_path: Path) -> None:
    """Each instance would be paid for, and none could join."""
    prepared(write_tokens(tmp_path / "x.ids", some_ids(100)))
    with_tokens = job(tmp_path, "data.source=tokens", "data.path=x.ids")
    objects = bucket(tmp_path / "a", *(f"boot/{name}" for name in BOOT_FILES))
    bounds_now = json.dumps(document("run")).replace("bamboo-1", "bucket")
    own = replace(with_tokens, cloud=replace(with_tokens.cloud, instance_profile="mine"))
    refused = r"cloud.bucket = 'bucket': is of a stack whose runs may not read.*`bamboo init --app"
    for bounds in ("", "{", '{"Statement": []}', bounds_now.replace("data/", "runs/")):
        if bounds:
            (tmp_path / "bounds").write_text(bounds)
            objects.put_file(BOUNDS, tmp_path / "bounds")
        with pytest.raises(InputError, match=refused):
            check_reads(with_tokens, objects)
        check_reads(job(tmp_path), objects)
        check_reads(own, objects)
    (tmp_path / "bounds").write_text(bounds_now)
    objects.put_file(BOUNDS, tmp_path / "bounds")
    check_reads(with_tokens, objects)


def test_the_boot_files_are_those_of_the_boot_script() -> None:
    script = (Path(__file__).parents[2] / "infra" / "boot.sh").read_text()
    for name in BOOT_FILES:
        unit, _, kind = name.rpartition(".")
        by_pair = f"fetch_unit {unit} " in script and kind in ("service", "timer")
        assert by_pair or re.search(rf"(boot/|fetch_unit \S+ ){re.escape(name)}\b", script), name
    assert set(re.findall(r"fetch boot/(\S+) ", script)) <= set(BOOT_FILES)


def test_a_bucket_has_to_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "bamboo.sites.account.account_ready.check_store_for_account", lambda *_: None
    )
    with pytest.raises(InputError, match=r"cloud.bucket = '': is empty; `bamboo init --apply`"):
        check_account(job(tmp_path, "cloud.bucket="), RUN)


def test_the_bucket_of_a_boot_script_of_one_s_own_may_hold_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bamboo.sites.account.account_ready.check_store_for_account", lambda *_: None
    )
    monkeypatch.setattr(wiring, "bucket", lambda url, **_: bucket(tmp_path / "none"))

    (tmp_path / "mine.sh").touch()
    check_account(job(tmp_path, "cloud.boot_script=mine.sh"), RUN)
    with pytest.raises(InputError, match="lacks "):
        check_account(job(tmp_path), RUN)


def launched(folder: Path, *more: str) -> Mapping[str, Any]:
    tiny_job(folder)
    sets = [word for override in IN_ACCOUNT for word in ("--set", override)]
    return {"code": main.run(["launch", str(folder / "job.toml"), *sets, *more])}


def test_a_trace_is_not_played_in_an_account(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("0,add,node1\n0,add,node2\n")
    assert launched(tmp_path, "--trace", str(trace))["code"] == 2
    assert "--trace models a spot market on this machine" in capsys.readouterr().err


def test_a_launch_that_is_refused_leaves_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert launched(tmp_path, "--run", "r1")["code"] == 2
    assert "no store is named" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "r1").exists()
