"""Nodes that come to a run in training and cannot take part: they leave by name, and the run ends
as a calm one does."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.config.tree import DataConfig, Kill
from bamboo.core.events import StopRequested
from bamboo.core.state import Outcome
from testbed.calm import difference
from testbed.cluster import cluster, protected
from tests.e2e.jobs import job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def test_newcomers_that_meet_an_error_leave_and_the_next_one_is_taken_in(tmp_path: Path) -> None:
    settings = job(Kill(step=5, stage=2, phase="backward", microbatch=5), steps=100_000)
    text = tmp_path / "text.txt"
    shutil.copy(settings.data.path, text)
    settings = replace(settings, data=DataConfig(source="path", path=str(text)))
    with cluster(settings) as run:
        run.start()
        run.wait_step(3)
        text.write_bytes(text.read_bytes() + b"and more")
        run.wait_lost("i-02.1")
        other_data = run.start_one()
        run.wait_lost(other_data)
        shutil.copy(job().data.path, text)
        breaks = run.start_one(fault="broken_receiver")
        run.wait_lost(breaks)
        taken_in = run.start_one()
        run.wait(lambda s: protected(s) and taken_in in s.assignment.members(), 60, "its replicas")
        run.append(StopRequested(reason="enough", outcome=Outcome.STOPPED))
        state = run.finish()
        assert state.outcome == "stopped", run.report()
        assert state.stop_at_step is not None
        assert not difference(run, steps=state.stop_at_step + 1), run.report()
        said = [d.reason for d in run.decisions()]
        (refused,) = [r for r in said if f"{other_data} cannot take part and leaves" in r]
        assert f"data.path = '{text}'" in refused
        assert any(f"{breaks} is gone: it failed, RuntimeError" in r for r in said)
