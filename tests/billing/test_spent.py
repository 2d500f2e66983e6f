"""`bamboo cost RUN`: the same from ledger, events and decisions, and a real run's folder."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bamboo.billing.run_cost import cost_of_run, spent_on
from bamboo.coord.codec import STREAM, decode_record
from bamboo.coord.follow import all_records
from bamboo.errors import BambooError, InputError, StoreNotReached, StoreUnavailable
from bamboo.planner.duties import DutyChange
from bamboo.runs import lock, run_folder
from bamboo.runs.books import FileBooks, read_booked
from bamboo.runs.decisions import save_decisions
from bamboo.runs.run_status import status_by_books
from bamboo.study.report import report_of
from cli import main
from tests.controller.world import (
    START_S,
    World,
    caught_up,
    finished,
    job,
    joined,
    left,
    lost,
    node,
    step,
)
from tests.runs.test_reading import folder_of, live

HERE = Path(__file__).parent
KEPT, GOLDEN = HERE / "kept", HERE / "golden"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    monkeypatch.setattr("bamboo.controller.launcher.TURN_S", 0.0)
    return tmp_path


def beat(world: World, number: int, *, forwards: int, busy_s: float) -> None:
    """What a lease of a node that computes ahead says."""
    ops = {"F": forwards, "B": forwards, "FR": forwards, "BR": 0}
    payload = {"progress": 1, "step": 1, "ops": ops, "tensor_bytes": 1, "busy_s": busy_s}
    world.store.beat(node(number), json.dumps(payload))


def cloud_log(folder: run_folder.RunFolder, ends: Mapping[int, tuple[float, str]]) -> None:
    """Four instances from 10 s before the run on, and the ends of some."""
    lines = [
        {
            "kind": "start", "t": START_S - 10, "instance": f"i-{n}", "zone": "a",
            "instance_type": "g4dn.xlarge", "market": "spot", "usd_per_hour": 0.36,
        }
        for n in range(4)
    ]  # fmt: skip
    ended = [
        {"kind": "end", "t": START_S + at_s, "instance": f"i-{n}", "cause": cause}
        for n, (at_s, cause) in ends.items()
    ]
    folder.cloud.write_text("".join(json.dumps(line) + "\n" for line in (*lines, *ended)))


def played(home: Path) -> tuple[run_folder.RunFolder, World]:
    """A run of 8 s that loses a node, led to its end with real books."""
    folder = folder_of(home)
    folder.events.mkdir()
    world = World(job())
    world.books = FileBooks(folder)  # type: ignore[assignment]
    world.launcher = world.new_launcher()
    world._script = [
        joined(),
        [lambda: beat(world, 0, forwards=8, busy_s=0.5), step(0, at_s=2.0)],
        lost(2, 1),
        [lambda: beat(world, 1, forwards=8, busy_s=0.5), caught_up(1, 2)],
        [step(1, at_s=5.0), lambda: beat(world, 0, forwards=16, busy_s=1.5)],
        [step(2, at_s=6.0), finished(2, 0, 1, 3)],
        left(0, 1, 3),
    ]
    world.launcher.run()
    world.books.close()  # type: ignore[attr-defined]
    ends = {2: (2.5, "interrupted"), 0: (9.0, "terminated"), 1: (9.0, "end"), 3: (80.0, "end")}
    cloud_log(folder, ends)
    return folder, world


def uses(body: Mapping[str, Any]) -> dict[str, float]:
    return {one["use"]: round(one["seconds"], 3) for one in body["uses"] if one["seconds"]}


def test_ledger_events_and_decisions_tell_the_same(home: Path) -> None:
    folder, world = played(home)
    by_ledger = spent_on(folder, store=world.store, steps=3, now_s=world.clock_s)
    by_events = spent_on(folder, store=None, steps=3, now_s=world.clock_s)
    assert by_ledger is not None
    assert by_events is not None
    assert (by_ledger["sources"], by_events["sources"]) == (["ledger"], ["events"])
    assert by_ledger["uses"] == by_events["uses"]
    # 11 s until all had joined; i-2 was taken at 2.5 s, and caught up with at 4 s by the others.
    told = uses(by_events)
    assert told["booting"] == 44
    assert told["recovery"] == 3 * 1.5
    assert told["useful"] > 0 < told["redundancy"]
    save_decisions(folder, world.store)
    (folder.events / "launcher.jsonl").unlink()
    by_decisions = spent_on(folder, store=None, steps=3, now_s=world.clock_s)
    assert by_decisions is not None
    assert by_decisions["sources"] == ["decisions"]
    split = ("useful", "redundancy", "bubble", "steps")
    rest = {use: part for use, part in told.items() if use not in split}
    plain = uses(by_decisions)
    assert rest == {use: part for use, part in plain.items() if use not in split}
    assert sum(plain.values()) == pytest.approx(sum(told.values()), abs=0.01)


def test_a_ledger_that_was_lost_is_written_again_and_the_events_have_it_meanwhile(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, world = played(home)
    whole = spent_on(folder, store=world.store, steps=3, now_s=world.clock_s)
    kept = list(all_records(world.store, STREAM))
    duties = [n for n, text in enumerate(kept) if isinstance(decode_record(text), DutyChange)]
    monkeypatch.setattr(
        "bamboo.billing.run_cost.all_records",
        lambda store, stream: [text for n, text in enumerate(kept) if n != duties[1]],
    )
    without = spent_on(folder, store=world.store, steps=3, now_s=world.clock_s)
    assert whole is not None
    assert without is not None
    assert without["sources"] == ["events"]
    assert without["uses"] == whole["uses"]


def test_a_new_launcher_writes_the_duties_that_are_missing(home: Path) -> None:
    folder, world = played(home)
    numbers = [
        record.number
        for record in map(decode_record, all_records(world.store, STREAM))
        if isinstance(record, DutyChange)
    ]
    assert numbers == list(range(len(numbers)))
    path = folder.events / "launcher.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    duty = [n for n, line in enumerate(lines) if '"kind":"Duty"' in line]
    path.write_text("".join(line for n, line in enumerate(lines) if n not in duty[2:]))
    booked = read_booked(folder)
    assert booked.duties == 2
    world.books = FileBooks(folder)  # type: ignore[assignment]
    launcher = world.new_launcher(booked)
    launcher.catch_up()
    world.books.close()  # type: ignore[attr-defined]
    again = [json.loads(line) for line in path.read_text().splitlines()]
    found = [line["data"]["number"] for line in again if line["kind"] == "Duty"]
    assert found == numbers


def test_who_is_tagged_and_no_member_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, world = folder_of(home), World(job())
    live(folder, world, monkeypatch)
    cloud_log(folder, {})
    world.do([joined(2)])
    world.launcher.catch_up()
    world.launcher._records.to_ledger()
    body = cost_of_run(folder, now_s=world.clock_s)
    spent = body["spent"]
    assert body["usd"] == spent["bill_micro_usd"] / 1e6
    assert [one["instance"] for one in spent["not_members"]] == ["i-2", "i-3"]
    assert {one["duty"] for one in spent["not_members"]} == {"booting"}
    assert spent["usd_per_hour"] == pytest.approx(4 * 0.36)
    assert sum(one["micro_usd"] for one in spent["uses"]) == spent["bill_micro_usd"]


def test_a_ledger_that_nobody_writes_to_any_more_costs_on(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, world = folder_of(home), World(job())
    live(folder, world, monkeypatch)
    cloud_log(folder, {})
    world.do([joined(), step(0)])
    world.launcher.catch_up()
    world.launcher._records.to_ledger()
    soon = cost_of_run(folder, now_s=world.clock_s + 10)
    late = cost_of_run(folder, now_s=world.clock_s + 3590)
    assert soon["usd"] == pytest.approx(4 * 60 / 3600 * 0.36)
    assert late["usd"] == pytest.approx(4 * 0.36)
    batch = job().train.batch
    for body in (soon, late):
        assert body["samples_per_usd"] == pytest.approx(body["step"] * batch / body["usd"])
    assert late["step"] == 1
    assert late["tokens_per_usd"] == pytest.approx(batch * job().model.context / late["usd"])


def test_a_run_that_was_killed_without_a_receipt_is_read_from_its_files(home: Path) -> None:
    folder, world = played(home)
    with_end = spent_on(folder, store=None, steps=3, now_s=world.clock_s)
    assert with_end is not None
    body = cost_of_run(folder)
    assert (body["ended"], body["step"]) == (True, 3)
    assert body["usd"] == with_end["bill_micro_usd"] / 1e6
    assert body["spent"]["uses"] == with_end["uses"]
    assert main.run(["cost", "r"]) == 0


@pytest.mark.parametrize("error", [StoreUnavailable, StoreNotReached])
def test_a_live_run_whose_store_does_not_answer_is_read_from_its_books(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: type[BambooError],
) -> None:
    folder, _ = played(home)
    cloud_log(folder, {2: (2.5, "interrupted")})
    run_folder.write_json(folder.endpoint, {"store_url": "redis://there/0"})

    def away(run: str, url: str) -> NoReturn:
        raise error(f"the store at {url} cannot be reached")

    monkeypatch.setattr("bamboo.wiring.store_of", away)
    held = lock.take(folder)
    assert held is not None
    body = cost_of_run(folder, now_s=START_S + 3590)
    assert (body["ended"], body["step"]) == (False, 3)
    assert body["usd"] == pytest.approx(3 * 0.36 + 0.006), (
        "three instances for an hour, one for a minute"
    )
    assert body["spent"]["usd_per_hour"] == pytest.approx(3 * 0.36)
    assert sum(one["micro_usd"] for one in body["spent"]["uses"]) == round((3 * 0.36 + 0.006) * 1e6)
    assert main.run(["cost", "r"]) == 0
    assert "its store does not answer and its launcher lives" in " ".join(
        capsys.readouterr().out.split()
    )
    folder.cloud.unlink()
    assert cost_of_run(folder)["usd"] == status_by_books(folder)["usd"] > 0, (
        "as noted with the last step"
    )
    folder.metrics.unlink()
    with pytest.raises(InputError, match="has written nothing down yet; ask again"):
        cost_of_run(folder)
    held.close()


def test_the_budget_that_is_left(home: Path) -> None:
    folder, world = played(home)
    body = folder.read_json(folder.resolved)
    changed = {**body, "job": {**body["job"], "budget": {"max_usd": 1.0, "max_hours": 2.0}}}
    run_folder.write_json(
        folder.resolved, {k: v for k, v in changed.items() if k != "schema_version"}
    )
    spent = spent_on(folder, store=world.store, steps=3, now_s=START_S + 100)
    assert spent is not None
    budget = spent["budget"]
    whole = spent["bill_micro_usd"] + spent["beside"]["micro_usd"]
    assert spent["beside"]["micro_usd"] > 0
    assert budget["left_usd"] == pytest.approx(1.0 - whole / 1e6)
    assert budget["left_s"] == 7100.0


def test_without_any_word_of_the_instances_the_bill_is_there(home: Path) -> None:
    folder, world = played(home)
    (folder.events / "launcher.jsonl").unlink()
    spent = spent_on(folder, store=None, steps=3, now_s=world.clock_s)
    assert spent is not None
    assert spent["uses"] == []
    # 60 s of three, also of that which was interrupted, 90 s of one.
    assert spent["bill_micro_usd"] == 3 * 6000 + 9000
    assert "neither events nor decisions" in spent["unknown"]


def test_a_real_run_as_it_was_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a virtual device: three stages, a kill, a notice. The parts are the receipt's bill."""
    shutil.copytree(KEPT / "spent", home / "spent")
    assert main.run(["cost", "spent"]) == 0
    check_golden("spent.txt", capsys.readouterr().out)
    assert main.run(["cost", "spent", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    check_golden("spent.json", json.dumps(body, indent=1) + "\n")
    receipt = json.loads((home / "spent" / "receipt.json").read_text())
    spent = body["spent"]
    assert spent["bill_micro_usd"] == round(receipt["bill"]["usd"] * 1e6)
    assert spent["on_demand_micro_usd"] == round(receipt["bill"]["on_demand_usd"] * 1e6)
    assert sum(one["micro_usd"] for one in spent["uses"]) == spent["bill_micro_usd"]
    whole_s = sum(one["seconds"] for one in spent["uses"])
    assert whole_s == pytest.approx(receipt["bill"]["instance_seconds"], abs=0.01)


@pytest.mark.parametrize(
    ("kept_lines", "said"),
    [
        (2, "where the money went is not shown: .*cloud.jsonl comes to .* and the receipt to "),
        (0, "the cloud's log nor a ledger says where the money went"),
    ],
)
def test_a_log_that_lost_its_end_does_not_stand_beside_the_receipt(
    kept_lines: int, said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(KEPT / "spent", home / "spent")
    log = home / "spent" / "cloud.jsonl"
    lines = log.read_text().splitlines(keepends=True)[:kept_lines]
    log.write_text("".join(lines)) if lines else log.unlink()
    assert main.run(["cost", "spent", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["spent"] is None
    assert re.search(said, body["unspent"])
    assert main.run(["cost", "spent"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(said, text)
    assert "the bill" not in text
    report = report_of(run_folder.find(home, "spent"), now_s=START_S)
    assert re.search(said, " ".join(report.missing))
    assert not report.dollars


def check_golden(name: str, text: str) -> None:
    """`BAMBOO_WRITE_GOLDEN=1` writes it instead; read it then."""
    path = GOLDEN / name
    if os.environ.get("BAMBOO_WRITE_GOLDEN") == "1":
        path.write_text(text)
    assert path.read_text() == text, f"{path} differs; look why before you rewrite it"


def test_the_mean_rate_of_a_run_counts_no_time_in_which_nothing_ran(home: Path) -> None:
    folder, _ = played(home)

    def rate() -> float:
        spent = spent_on(folder, store=None, steps=3, now_s=START_S + 5000)
        assert spent is not None
        return float(spent["usd_per_hour"])

    # For 12.5, 19, 19 and 90 s: 140.5 instance-seconds in 90 s.
    cloud_log(folder, {2: (2.5, "end"), 0: (9.0, "end"), 1: (9.0, "end"), 3: (80.0, "end")})
    before = rate()
    assert before == pytest.approx(0.36 * 140.5 / 90)
    again = {
        "kind": "start", "t": START_S + 4000, "instance": "i-9", "zone": "a",
        "instance_type": "g4dn.xlarge", "market": "spot", "usd_per_hour": 0.36,
    }  # fmt: skip
    with folder.cloud.open("a") as file:
        file.write(json.dumps(again) + "\n")
        file.write(
            json.dumps({"kind": "end", "t": START_S + 4090, "instance": "i-9", "cause": "end"})
        )
        file.write("\n")
    assert rate() == pytest.approx(0.36 * (140.5 + 90) / 180)
