"""The parts of a run: only time in which it went on counts, and only that is billed."""

import json
import os
from pathlib import Path

import pytest

from bamboo.billing import parts
from bamboo.billing.money import bill, rented_from_journal
from bamboo.billing.receipt import receipt_body
from bamboo.config.tree import BudgetConfig
from bamboo.controller.ending import stop_event
from bamboo.core.state import Outcome
from bamboo.runs import run_folder
from bamboo.runs.run_folder import Part, RunFolder, job_of
from bamboo.runs.run_status import empty_progress
from cli.views.receipt import summary_text
from tests.controller.world import START_S, World, finished, job, joined, left, step
from tests.runs.test_reading import folder_of

DAYS_S = 3 * 86400.0


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Of a run that was launched at START_S."""
    return folder_of(tmp_path)


def written(path: Path, at_s: float, text: str = "x\n") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, (at_s, at_s))


def start(instance: str, at_s: float) -> str:
    facts = {"zone": "a", "instance_type": "t", "market": "spot", "usd_per_hour": 3.6}
    return json.dumps({"kind": "start", "t": at_s, "instance": instance, **facts}) + "\n"


def resumed(folder: RunFolder, part: Part) -> None:
    """As `save_terms` leaves it."""
    body = folder.read_json(folder.resolved)
    more = {
        "part": part.number,
        "part_started_s": part.started_s,
        "led_before_s": part.led_before_s,
    }
    run_folder.write_json(folder.resolved, {**body, **more})


def test_a_part_that_nobody_ended_lasted_until_it_was_seen_last(folder: RunFolder) -> None:
    written(folder.cloud, START_S + 20.0)
    written(folder.events / "i-1.0.jsonl", START_S + 100.0)
    written(folder.path / "logs" / "launcher.log", START_S + DAYS_S)  # only tried to take it up
    assert parts.ended_at_s(folder) == START_S + 100.0
    run_folder.write_json(folder.receipt, {"ended_s": START_S + 70.0})
    assert parts.ended_at_s(folder) == START_S + 70.0


def test_days_between_two_parts_count_nowhere(folder: RunFolder) -> None:
    later_s = START_S + DAYS_S
    second = parts.part_after(folder, ended_s=START_S + 100.0, now_s=later_s)
    resumed(folder, second)
    third = parts.part_after(folder, ended_s=later_s + 50.0, now_s=later_s + DAYS_S)
    assert (second, third) == (
        Part(number=2, started_s=later_s, led_before_s=100.0),
        Part(number=3, started_s=later_s + DAYS_S, led_before_s=150.0),
    )
    assert run_folder.part_of(folder) == second
    assert run_folder.started_at_s(folder) == START_S


def test_the_hours_of_the_budget_are_those_of_this_part(folder: RunFolder) -> None:
    budget = BudgetConfig(max_hours=1.0)
    began_s = START_S + DAYS_S
    resumed(folder, Part(number=2, started_s=began_s, led_before_s=3500.0))
    progress = empty_progress(
        folder, job_of(folder), started_s=run_folder.part_of(folder).started_s
    )
    for passed_s, ends in ((3599.0, False), (3601.0, True)):
        now_s = began_s + passed_s
        event = stop_event(budget, progress, None, interrupted=False, now_s=now_s)
        assert (event is not None) is ends


def test_the_receipt_tells_of_the_parts_and_of_what_they_lasted() -> None:
    world = World(
        job(), [joined(), step(0), step(1), [step(2), finished(2, 0, 1, 2, 3)], left(0, 1, 2, 3)]
    )
    progress = world.launcher.run()
    assert progress.outcome is Outcome.DONE
    progress = progress.at(now_s=START_S + DAYS_S + 40.0, usd=1.0)
    body = receipt_body(
        progress,
        bill([], now_s=progress.now_s, modelled=True),
        samples_per_step=16,
        unigram_entropy_nats=None,
        final_note="",
        part=Part(number=2, started_s=START_S + DAYS_S, led_before_s=50.0),
        launched_s=START_S,
    )
    assert (body["parts"], body["wall_s"], body["started_s"]) == (2, 90.0, START_S)
    assert body["samples_per_s"] == 48 / 90.0
    assert summary_text(body).startswith("r: done after step 3/3 in 1 min 30 s in 2 parts: ")


def test_instances_that_ended_with_their_cloud_are_billed_until_then(folder: RunFolder) -> None:
    ended = json.dumps({"kind": "end", "t": START_S + 70.0, "instance": "i-1", "cause": "end"})
    text = start("i-1", START_S) + ended + "\n" + start("i-2", START_S) + start("i-3", START_S + 90)
    written(folder.cloud, START_S + 90.0, text + '{"kind":"sta')
    for _ in range(2):  # a resume that was killed is begun again
        parts.end_bill(folder, ended_s=START_S + 80.0)
    with folder.cloud.open("a") as file:
        file.write(start("i-4", START_S + DAYS_S))
    records = [json.loads(line) for line in folder.cloud.read_text().splitlines()]
    rented = rented_from_journal(records, on_demand_usd_per_hour={"t": 7.2})
    total = bill(rented, now_s=START_S + DAYS_S + 75.0, modelled=True)
    assert [line.seconds for line in total.lines] == [70.0, 80.0, 0.0, 75.0]
    assert not any(one.interrupted for one in rented)
    assert sum(record["kind"] == "end" for record in records) == 3


def test_what_the_next_part_writes_anew_is_kept(folder: RunFolder) -> None:
    for number in ("1", "2"):
        written(folder.receipt, START_S, number)
        written(folder.final / "manifest.json", START_S, number)
        written(folder.metrics, START_S, number)
        kept = parts.put_away(folder)
        assert kept == folder.path / "parts" / number
        assert (kept / "receipt.json").read_text() == number
        assert (kept / "final" / "manifest.json").read_text() == number
        assert not folder.final.exists()
        assert folder.metrics.read_text() == number
