"""Steps that a restore takes back: they do not count until they are done again, and then once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from bamboo.billing.money import bill
from bamboo.billing.receipt import receipt_body
from bamboo.checkpoint.final import read_final, write_manifest, write_stage
from bamboo.core import events
from bamboo.core.state import Outcome, Policy
from bamboo.runs.final_state import save_manifest
from bamboo.runs.progress import Progress
from bamboo.runs.run_folder import RunFolder
from bamboo.runs.run_status import progress_from_store
from cli.views.receipt import summary_text
from tests.controller.world import World, finished, job, joined, left, lost, node, step
from tests.runs.test_reading import folder_of

EVERY = 4
POLICY = Policy(cuts=((0, 4), (0, 2, 4)), checkpoint_every=EVERY)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bamboo.controller.launcher.TURN_S", 0.0)


def world_of(script: list[Any]) -> World:
    return World(job(steps=100, stages=2), script, policy=POLICY)


def ten_steps() -> list[Any]:
    """A checkpoint after four of them, then both nodes are lost; 30 s later two others come."""
    saved = [events.ShardSaved(node=node(n), step=EVERY, era=1, stage=n) for n in (0, 1)]
    done = events.CheckpointDone(node=node(0), step=EVERY, era=1)
    gone = events.PeerLost(node=node(1), reporter="fleet", cause="exit")
    return [
        joined(2),
        [step(index) for index in range(EVERY)],
        [*saved, done],
        [step(index) for index in range(EVERY, 10)],
        [lost(0, 1), gone],
        *[[] for _ in range(30)],
        joined(4)[2:],
    ]


def built(world: World) -> None:
    """Both newcomers have what they are to hold: all go on from the checkpoint."""
    reconfiguration = world.driver.state().reconfiguration
    assert reconfiguration is not None
    assert (reconfiguration.base, reconfiguration.checkpoint) == (EVERY, True)
    for n in (2, 3):
        world.do(events.LayoutBuilt(node=node(n), since=reconfiguration.since, bytes=0))


def stopped(step_index: int) -> list[Any]:
    asked = events.StopRequested(reason="enough", outcome=Outcome.STOPPED)
    ready = [events.StopReady(node=node(n), step=step_index) for n in (2, 3)]
    return [asked, ready, finished(step_index, 2, 3), left(2, 3)]


def receipt_of(end: Progress) -> dict[str, Any]:
    total = bill([], now_s=end.now_s, modelled=True)
    return receipt_body(end, total, samples_per_step=16, unigram_entropy_nats=None, final_note="")


def test_a_restore_takes_steps_back_until_they_are_done_again() -> None:
    world = world_of(ten_steps())
    seen: list[tuple[int, int, float | None]] = []

    def look() -> None:
        now = world.launcher.progress
        seen.append((now.step, now.tokens, now.loss))

    again = [step(index, at_s=100 + index) for index in range(EVERY, 7)]
    late = step(9, at_s=10)
    world._script += [look, lambda: built(world), [], look, late, [], look, again, [], look]
    world._script += stopped(6)
    end = world.launcher.run()
    assert [steps for steps, _, _ in seen] == [10, 4, 4, 7]
    assert [tokens for _, tokens, _ in seen] == [2048 * steps for steps, _, _ in seen]
    assert world.screen.steps == [*range(1, 11), 5, 6, 7]
    assert [m.step for m in world.books.metrics] == list(range(10))  # once, as their bits are one
    assert (end.step, end.reconfigured[0].steps_again) == (7, 6)
    assert receipt_of(end)["samples"] == 7 * 16


def test_steps_that_are_seen_before_the_decision_to_go_on_were_not_taken_back() -> None:
    """The two are read one after the other, and the first steps may be quicker than that."""
    world = world_of(ten_steps())
    quick = [step(index, at_s=200 + index) for index in range(EVERY, 11)]
    world._script += [quick, lambda: built(world), [], *stopped(10)]
    end = world.launcher.run()
    assert (end.step, end.reconfigured[0].steps_again) == (11, 6)


def test_a_stop_before_any_step_is_done_again_keeps_the_final_state(tmp_path: Path) -> None:
    """Asked for in the middle of the restore: nodes write what the checkpoint has."""
    asked, *rest = stopped(EVERY - 1)
    world = world_of(ten_steps())
    world._script += [asked, lambda: built(world), *rest]
    end = world.launcher.run()
    folder = RunFolder(id=folder_of(tmp_path).id, path=tmp_path / "r")
    for stage in (0, 1):
        write_stage(folder.final, stage, {f"param/{stage}.w": torch.ones(2)}, EVERY)
    assert end.outcome is Outcome.STOPPED
    assert save_manifest(folder, end, job()) == ""
    body = receipt_of(end)
    assert (body["step"], body["tokens"], body["samples"]) == (4, 4 * 2048, 4 * 16)
    assert body["status"]["step"] == 4


def test_a_part_that_was_stopped_before_it_went_on_ends_as_the_part_before_it(
    tmp_path: Path,
) -> None:
    asked, *rest = stopped(EVERY - 1)
    world = world_of(ten_steps())
    world._script += [asked, lambda: built(world), *rest]
    end = world.launcher.run()
    folder = RunFolder(id=folder_of(tmp_path).id, path=tmp_path / "r")
    before = folder.path / "parts" / "1" / "final"
    for of_step, said in ((EVERY + 1, "before stage 0, stage 1 had"), (EVERY, "")):
        for stage in (0, 1, 2):  # on another grid
            write_stage(before, stage, {f"param/{stage}.w": torch.ones(2)}, of_step)
        write_manifest(before, stages=3, step=of_step)
        assert said in save_manifest(folder, end, job())
        assert folder.final_manifest.exists() == (of_step == EVERY)
    found = read_final(folder.final)
    assert (found.step, len(found.tensors), found.damaged) == (EVERY, 3, ())


def test_who_reads_all_decisions_before_the_metrics_counts_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(ten_steps())
    world._script += [lambda: built(world), *stopped(EVERY - 1)]
    end = world.launcher.run()
    after = world.new_launcher()
    after.catch_up()
    assert after.progress.step == end.step == EVERY
    folder = folder_of(tmp_path)
    assert progress_from_store(folder, world.store).step == EVERY


def test_a_receipt_without_a_last_loss_is_printed() -> None:
    """More steps were taken back than are remembered."""
    body: Mapping[str, Any] = receipt_of(world_of([]).launcher.progress) | {"first_loss": 5.0}
    assert "loss" not in summary_text(body)


def test_the_last_step_counts_though_its_report_was_lost() -> None:
    ready = [events.StopReady(node=node(n), step=3) for n in range(4)]
    asked = events.StopRequested(reason="enough", outcome=Outcome.STOPPED)
    script = [joined(), [step(index) for index in range(3)], asked, ready]
    world = World(job(steps=100), [*script, finished(3, 0, 1, 2, 3), left(0, 1, 2, 3)])
    assert receipt_of(world.launcher.run())["step"] == 4
