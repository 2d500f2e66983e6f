"""The cloud's bill on a full disk: its lines wait, and none is torn."""

import json
from pathlib import Path

import pytest

from bamboo.ids import InstanceId, ZoneId
from cloud.local.journal import Journal
from tests.full_disk import files_up_to


def test_what_ends_on_a_full_disk_is_billed_once_there_is_room(tmp_path: Path) -> None:
    journal, path = Journal(tmp_path), tmp_path / "cloud.jsonl"
    journal.ended(instance=InstanceId("i-0"), cause="terminated")
    with files_up_to(path.stat().st_size + 5):
        for number in (1, 2):
            journal.ended(instance=InstanceId(f"i-{number}"), cause="interrupted")
            journal.kill_stamp(instance=InstanceId(f"i-{number}"), notice_s=0.0, cause="chaos")
        assert len(path.read_text().splitlines()) == 1
    journal.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["instance"] for line in lines] == ["i-0", "i-1", "i-2"]
    assert len((tmp_path / "kills.jsonl").read_text().splitlines()) == 2


def test_no_end_is_before_its_start_though_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, clock_s = Journal(tmp_path), iter((100.0, 40.0))
    monkeypatch.setattr("cloud.local.journal.time.time", lambda: next(clock_s))
    one = InstanceId("i-0")
    journal.started(
        instance=one, zone=ZoneId("a"), instance_type="t", market="spot", usd_per_hour=0.4
    )
    journal.ended(instance=one, cause="terminated")
    journal.close()
    lines = (tmp_path / "cloud.jsonl").read_text().splitlines()
    assert [json.loads(line)["t"] for line in lines] == [100.0, 100.0]
