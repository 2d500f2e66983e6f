"""A node whose disk gives other data leaves, and the run goes on; where all see the same, the run
ends with file and chunk."""

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.config.tree import DataConfig, JobConfig
from bamboo.core.events import NodeFailed
from bamboo.token_files import CHUNK_BYTES
from testbed.calm import difference
from testbed.cluster import cluster
from tests.e2e.jobs import job
from tests.token_folder import VOCABULARY, prepared, some_ids, write_tokens

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def of_tokens(path: Path) -> JobConfig:
    """A job on two chunks of tokens."""
    prepared(write_tokens(path, some_ids(CHUNK_BYTES)))
    made = job(steps=8, stages=2)
    model = replace(made.model, vocabulary=VOCABULARY)
    data = DataConfig(source="tokens", path=str(path))
    return replace(made, model=model, data=data, tokens=str(path))


def test_a_node_with_a_damaged_chunk_leaves_and_the_bits_are_those_of_a_calm_run(
    tmp_path: Path,
) -> None:
    with cluster(of_tokens(tmp_path / "x.ids")) as run:
        run.start(faults={0: "damaged_chunk"})
        assert run.finish().outcome == "done", run.report()
        assert not difference(run)
        (failed,) = [d.event for d in run.decisions() if isinstance(d.event, NodeFailed)]
        assert failed.node == "i-00.1"
        assert "x.ids is damaged: chunk 1 of 2, from byte 1,048,576" in failed.reason


def test_damage_that_all_see_ends_the_run_by_name(tmp_path: Path) -> None:
    with cluster(of_tokens(tmp_path / "x.ids")) as run:
        run.start(faults=dict.fromkeys(range(2), "damaged_chunk"))
        state = run.finish(timeout_s=60)
        assert state.outcome == "fault"
        assert "x.ids is damaged: chunk 1 of 2" in state.sentence
