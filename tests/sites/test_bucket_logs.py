"""Logs of instances in an account: fetched once, by names that cannot lead elsewhere."""

import json
from pathlib import Path

import pytest

from bamboo import wiring
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.sites.run_logs import bring_logs
from cli import main
from tests.jobs import tiny_job


def put(objects: DirectoryStore, folder: Path, name: str, text: str) -> None:
    path = folder / "part"
    path.write_text(text)
    objects.put_file(name, path)


def test_parts_are_fetched_once_and_others_not_at_all(tmp_path: Path) -> None:
    objects, logs = DirectoryStore(tmp_path / "bucket"), tmp_path / "logs"
    put(objects, tmp_path, "logs/i-0ab/20261122T050000-7-b.log", "one\n")
    put(objects, tmp_path, "logs/i-0ab/other.log", "no\n")
    put(objects, tmp_path, "logs/store/20261122T050000-7-b.log", "no\n")
    bring_logs(objects, logs)
    here = logs / "i-0ab.0" / "20261122T050000-7-b.log"
    assert [path for path in logs.rglob("*") if path.is_file()] == [here]
    here.write_text("kept\n")
    put(objects, tmp_path, "logs/i-0ab/20261122T050100-9-b.log", "two\n")
    bring_logs(objects, logs)
    assert [path.read_text() for path in sorted(logs.rglob("*.log"))] == ["kept\n", "two\n"]


def test_logs_of_a_run_in_an_account_are_shown_by_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "cloud.toml"))
    from bamboo.config.load import job_to_json

    job = tiny_job(tmp_path, ["cloud.provider=ec2", "cloud.bucket=bucket"])
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    body = {"schema_version": 1, "started_s": 1.0, "job": json.loads(job_to_json(job))["job"]}
    (folder / "resolved.json").write_text(json.dumps(body))
    objects = DirectoryStore(tmp_path / "bucket")
    asked: list[str] = []

    def bucket(url: str, **_: str) -> DirectoryStore:
        asked.append(url)
        return objects

    monkeypatch.setattr(wiring, "bucket", bucket)
    put(objects, tmp_path, "logs/i-0ab/20261122T050000-7-b.log", "worker 12\n")
    put(objects, tmp_path, "logs/i-0ac/20261122T050000-7-b.log", "worker 13\n")
    assert main.run(["logs", "r1", "--node", "i-0ab"]) == 0
    assert capsys.readouterr().out.split() == ["i-0ab.0", "worker", "12"]
    assert set(asked) == {"s3://bucket/runs/r1"}
    assert main.run(["status", "r1"]) == 0
    assert "its instances may run: `bamboo stop r1` ends them" in capsys.readouterr().out
    assert main.run(["logs", "r1", "--node", "i-9"]) == 2
    assert "it has: i-0ab.0, i-0ac.0" in capsys.readouterr().err
