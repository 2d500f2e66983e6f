"""The log of starts and ends from what an account shows: once each, by whichever launcher."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo.errors import BooksUnwritable
from bamboo.ids import InstanceId, RunId, ZoneId
from cloud.ec2.provider import observed
from cloud.fake import FakeProvider
from cloud.log_records import end_record
from cloud.provider import InstanceState, LaunchSpec, Market, Observed, Offer, Pool
from cloud.recorder import FORGOTTEN_S, SEEN_EVERY_S, CloudLog, Recorded
from tests.full_disk import files_up_to

POOL = Pool(instance_type="g4dn.xlarge", zone=ZoneId("us-east-1a"), market=Market.SPOT)
ONE = Observed(
    instance=InstanceId("i-1"),
    pool=POOL,
    state=InstanceState.RUNNING,
    launched_at_s=100.0,
    token="t",
    interrupted=False,
)
OVER = replace(ONE, state=InstanceState.SHUTTING_DOWN, ended_at_s=180.0)


class Log:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "cloud.jsonl"
        self.notes: list[str] = []
        self.restart()

    def restart(self) -> None:
        self._log = CloudLog(self.path, note=self.notes.append)

    def look(self, *shown: Observed, now_s: float) -> list[tuple[Any, ...]]:
        self._log.look(shown, now_s=now_s, price=lambda pool: 0.2)
        records = map(json.loads, self.path.read_text().splitlines())
        return [(r["kind"], r["instance"], r["t"], r.get("cause")) for r in records]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


START, END = ("start", "i-1", 100.0, None), ("end", "i-1", 180.0, "terminated")


def test_a_start_and_an_end_stand_there_once_whoever_looks(log: Log) -> None:
    assert log.look(ONE, now_s=110.0) == [START]
    log.restart()
    assert log.look(ONE, now_s=120.0) == [START]
    assert log.look(OVER, now_s=190.0) == [START, END]
    log.restart()
    assert log.look(OVER, now_s=200.0) == [START, END]
    assert log.look(now_s=9999.0) == [START, END]


def test_what_a_start_says_is_what_bills_are_made_of(log: Log) -> None:
    log.look(ONE, now_s=110.0)
    assert json.loads(log.path.read_text()) == {
        "kind": "start",
        "t": 100.0,
        "instance": "i-1",
        "zone": "us-east-1a",
        "instance_type": "g4dn.xlarge",
        "market": "spot",
        "usd_per_hour": 0.2,
    }


def test_one_that_began_and_ended_between_two_looks_has_both(log: Log) -> None:
    taken = replace(OVER, interrupted=True)
    assert log.look(taken, now_s=500.0) == [START, ("end", "i-1", 180.0, "interrupted")]


def test_an_end_without_a_time_is_when_it_was_first_shown(log: Log) -> None:
    log.look(ONE, now_s=110.0)
    assert log.look(replace(OVER, ended_at_s=None), now_s=190.0)[-1][2] == 190.0


def test_an_end_is_never_before_its_start(log: Log) -> None:
    assert log.look(replace(OVER, ended_at_s=99.0), now_s=190.0)[-1][2] == 100.0


def test_a_forgotten_one_ended_when_it_was_seen_last(log: Log) -> None:
    log.look(ONE, now_s=150.0)
    assert log.look(now_s=150.0 + FORGOTTEN_S) == [START], "a list may lag behind"
    assert log.look(now_s=151.0 + FORGOTTEN_S)[-1] == ("end", "i-1", 150.0, "terminated")


def test_the_next_launcher_knows_when_it_was_seen_last(log: Log) -> None:
    log.look(ONE, now_s=150.0)
    log.look(ONE, now_s=100.0 + SEEN_EVERY_S)
    log.restart()
    assert log.look(now_s=9000.0)[-1] == ("end", "i-1", 100.0 + SEEN_EVERY_S, "terminated")


def test_one_that_a_list_had_left_out_for_long_goes_on_and_ends_when_it_ends(log: Log) -> None:
    log.look(ONE, now_s=150.0)
    log.look(now_s=151.0 + FORGOTTEN_S)  # a launcher that was stopped looks again, and sees none
    back = ("seen", "i-1", 240.0, None)
    assert log.look(ONE, now_s=240.0)[-1] == back
    assert log.look(ONE, now_s=241.0)[-1] == back
    over = replace(OVER, ended_at_s=400.0)
    assert log.look(over, now_s=410.0)[-2:] == [back, ("end", "i-1", 400.0, "terminated")]


@pytest.mark.parametrize("line", ["\0\0\0", "[]", '{"kind": "end"}', '{"t": 1}', "\udcff"])
def test_a_damaged_log_holds_up_no_look(tmp_path: Path, line: str) -> None:
    run, path = RunId("r"), tmp_path / "cloud.jsonl"
    path.write_bytes(line.encode(errors="surrogateescape") + b"\n")
    damaged = path.read_bytes()
    fake = FakeProvider(listed=(Offer(pool=POOL, usd_per_hour=0.3),))
    fake.launch([LaunchSpec(run=run, pool=POOL, count=1, token="t", expires_at_s=0)])
    notes: list[str] = []
    provider = Recorded(fake, path, note=notes.append, now=lambda: 1.0)
    assert len(provider.describe(run)) == len(provider.describe(run)) == 1
    assert path.read_bytes() == damaged
    (note,) = notes
    assert "cloud.jsonl: the bill cannot be gone on with" in note


def test_a_line_that_a_kill_has_torn_is_written_anew(log: Log) -> None:
    log.look(ONE, now_s=110.0)
    whole = log.path.read_text()
    log.path.write_text(whole + '{"kind": "end", "inst')
    log.restart()
    assert log.look(OVER, now_s=190.0) == [START, END]


def test_what_a_full_disk_does_not_take_is_written_when_there_is_room(log: Log) -> None:
    log.look(ONE, now_s=110.0)
    with files_up_to(log.path.stat().st_size + 5):
        assert log.look(OVER, now_s=190.0) == [START]
        assert log.notes
    assert log.look(OVER, now_s=191.0) == [START, END]


def test_a_log_that_is_closed_lacks_nothing_or_says_so(tmp_path: Path) -> None:
    run, path = RunId("r"), tmp_path / "cloud.jsonl"
    fake = FakeProvider(listed=())
    (one,) = fake.launch(
        [LaunchSpec(run=run, pool=POOL, count=1, token="t", expires_at_s=0)]
    ).launched
    provider = Recorded(fake, path, now=lambda: 1.0)
    provider.describe(run)
    fake.terminate([one.instance])
    begun = path.read_text()
    with files_up_to(len(begun) + 5):
        provider.describe(run)
        with pytest.raises(BooksUnwritable, match=r"cloud\.jsonl.*; make room there"):
            provider.close()
    assert path.read_text() == begun
    provider.describe(run)  # as of whoever takes up the run
    provider.close()
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["start", "end"]


def test_a_log_that_could_not_be_gone_on_with_is_not_closed_in_order(tmp_path: Path) -> None:
    path = tmp_path / "cloud.jsonl"
    path.write_text("[]\n")
    provider = Recorded(FakeProvider(listed=()), path, now=lambda: 1.0)
    provider.describe(RunId("r"))
    with pytest.raises(BooksUnwritable, match="the bill cannot be gone on with"):
        provider.close()
    path.unlink()
    provider.describe(RunId("r"))
    provider.close()


def test_each_look_of_a_provider_is_written_down_by_the_offered_price(tmp_path: Path) -> None:
    run, path = RunId("r"), tmp_path / "cloud.jsonl"
    fake = FakeProvider(listed=(Offer(pool=POOL, usd_per_hour=0.3),))
    provider = Recorded(fake, path, now=lambda: 1.0)
    provider.offers()
    spec = LaunchSpec(run=run, pool=POOL, count=2, token="t", expires_at_s=0)
    ids = [one.instance for one in provider.launch([spec]).launched]
    provider.describe(run)
    provider.terminate(ids)
    provider.describe(run)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((r["kind"], r["instance"]) for r in records) == sorted(
        (kind, one) for kind in ("start", "end") for one in ids
    )
    assert {r["usd_per_hour"] for r in records if r["kind"] == "start"} == {0.3}


@pytest.mark.parametrize(("asks", "usd"), [(True, 0.3), (False, None)])
def test_the_price_of_what_another_launcher_started_is_asked_for(
    tmp_path: Path, asks: bool, usd: float | None
) -> None:
    run, path = RunId("r"), tmp_path / "cloud.jsonl"
    fake = FakeProvider(listed=(Offer(pool=POOL, usd_per_hour=0.3),))
    fake.launch([LaunchSpec(run=run, pool=POOL, count=1, token="t", expires_at_s=0)])
    Recorded(fake, path, asks_prices=asks, now=lambda: 1.0).describe(run)
    assert json.loads(path.read_text())["usd_per_hour"] == usd


@pytest.mark.parametrize(
    ("reason", "at_s"),
    [
        ("User initiated (2026-11-22 05:00:01 GMT)", 1795323601.0),
        ("User initiated (2026-11-22 05:00:01 UTC)", 1795323601.0),
        ("User initiated (2026-99-22 05:00:01 UTC)", None),
        ("Server.SpotInstanceTermination", None),
        ("", None),
    ],
)
def test_the_account_says_when_an_instance_ended(reason: str, at_s: float | None) -> None:
    from datetime import UTC, datetime

    raw = {
        "InstanceId": "i-1",
        "State": {"Name": "terminated"},
        "InstanceType": "t3.micro",
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "LaunchTime": datetime(2026, 11, 22, tzinfo=UTC),
        "StateTransitionReason": reason,
    }
    assert observed(raw).ended_at_s == at_s


def test_a_record_of_an_end_is_that_of_a_local_cloud() -> None:
    assert end_record(InstanceId("i-1"), at_s=2.0, cause="end").keys() == {
        *("kind", "t", "instance", "cause")
    }
