"""What a person is told who asked for what cannot be."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo import api
from bamboo.billing.money import bill
from bamboo.billing.receipt import receipt_body
from bamboo.controller import preempting, resuming
from bamboo.core.state import Checkpoint, Outcome
from bamboo.errors import InputError
from bamboo.runs import run_folder
from cli import main
from cli.views.receipt import summary_text
from tests.controller.world import START_S, World, job, joined
from tests.topology.test_strategy import SEMANTICS


def test_a_resume_with_other_numbers_names_keys_and_values() -> None:
    other = replace(
        SEMANTICS,
        steps=80,
        optimizer=SEMANTICS.optimizer | {"learning_rate": 0.5},
        data_digest="e" * 64,
    )
    assert resuming._differences(SEMANTICS, other) == (
        "the digest of the data was 'd1' and is 'eeeeeeeeeeee…', "
        "train.learning_rate was 0.001 and is 0.5, train.steps was 100 and is 80"
    )


def test_a_stage_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world = World(job(), [])
    for event in joined():
        world.do(event)
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    run_folder.write_json(
        run_folder.create(tmp_path, run_folder.run_id("r")).resolved, {"started_s": START_S}
    )
    monkeypatch.setattr(preempting, "live_store", lambda _folder: nullcontext(world.store))
    said = "r has no stage 1 in a pipeline 1: take --pipeline 0 and --stage 0 to 3"
    with pytest.raises(InputError, match=said):
        api.open_run("r").preempt(stage=1, pipeline=1)


def test_a_stopped_run_says_how_to_go_on() -> None:
    progress = World(job(), []).launcher.progress
    state = replace(
        progress.state,
        outcome=Outcome.STOPPED,
        checkpoints=(Checkpoint(step=5, era=1), Checkpoint(step=10, era=1)),
    )

    def summary(outcome: Outcome) -> str:
        body = receipt_body(
            replace(progress, state=replace(state, outcome=outcome)),
            bill([], now_s=START_S, modelled=True),
            samples_per_step=16,
            unigram_entropy_nats=None,
            final_note="",
        )
        return summary_text(body)

    line = "the newest checkpoint is of step 10: `bamboo resume r` goes on from there"
    assert line in summary(Outcome.STOPPED)
    assert line in summary(Outcome.UNRECOVERABLE)
    assert "bamboo resume" not in summary(Outcome.DONE)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rent", "--samples"], "ask for one at a time"),
        (["--rent", "--steps", "0:2"], "ask for one at a time"),
        (["--yes"], "--yes agrees to the price of --rent; leave it out"),
    ],
)
def test_options_of_verify_that_do_not_go_together(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["verify", "run", *arguments]) == 2
    assert says in capsys.readouterr().err
