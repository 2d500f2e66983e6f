"""Real runs that lose nodes: what their nodes recorded proves that each sample was used once."""

import json

import pytest

from bamboo.core.state import NodeStatus
from bamboo.data.dataset import load_data
from bamboo.runtime.check.verify_samples import verify_samples
from bamboo.telemetry.samples import SamplesRecord
from testbed.calm import assert_calm
from testbed.cluster import Cluster, cluster
from tests.e2e.jobs import job
from tests.runtime.check.test_verify_samples import write_facts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

STEPS = 54
"""The text has 709 windows and a step takes 16: a data epoch ends within step 44."""


def ledger(run: Cluster) -> list[SamplesRecord]:
    """What the nodes recorded, written down as a launcher does, beside what a run's folder has."""
    records = [SamplesRecord.of_step(r["step"], r["used"]) for r in run.metrics("step")]
    write_facts(run.directory, run.job, steps=run.job.train.steps)
    write(run, records)
    return records


def write(run: Cluster, records: list[SamplesRecord]) -> None:
    text = "".join(record.to_json() + "\n" for record in records)
    (run.directory / "samples.jsonl").write_text(text, encoding="utf-8")


def assert_each_once(run: Cluster) -> None:
    body = verify_samples(run.directory, lambda step, steps: None)
    assert body["first_difference"] is None, body
    each, used = load_data(run.job).samples, 16 * run.job.train.steps
    assert (body["steps"], body["samples"]) == (run.job.train.steps, used)
    assert (body["epochs"], body["samples_of_last_epoch"]) == divmod(used, each)


@pytest.mark.parametrize("mode", ["stash", pytest.param("full", marks=pytest.mark.full)])
def test_each_sample_once_though_the_last_stage_is_killed_twice(mode: str) -> None:
    """The last stage is where the losses are known: its successor goes on with the record."""
    with cluster(job(steps=STEPS, redundancy=mode)) as run:
        run.start()
        run.wait_step(5)
        for step in (20, 47):
            last = run.owner(run.grid.slots()[-1])
            run.kill(last)
            run.wait_step(step)
        assert_calm(run)
        gone = [n for n in run.state().nodes if n.status is NodeStatus.GONE]
        assert len(gone) == 2
        records = ledger(run)
        assert len(records) > STEPS, "a successor says again what its victim may not have said"
        assert_each_once(run)
        assert verify_samples(run.directory, lambda step, steps: None)["epochs"] >= 1

        # The evidence is not of the plan's making: without a part of it the proof fails.
        write(run, [r for r in records if r.step != 41])
        first = verify_samples(run.directory, lambda step, steps: None)["first_difference"]
        assert (first["step"], first["kind"]) == (41, "no record")


def test_each_sample_once_over_two_pipelines_of_which_the_other_loses_a_node() -> None:
    """Losses of the other pipeline's microbatches come with its partial sums."""
    settings = {"stages": 2, "pipelines": 2, "redundancy": "stash"}
    with cluster(job(steps=12, virtual_nodes=4, **settings)) as run:
        run.start()
        run.wait_step(3)
        run.kill(run.owner(run.grid.slots()[-1]))
        assert_calm(run)
        records = ledger(run)
        assert {len(r.microbatches) for r in records} == {8}
        assert_each_once(run)
        whole = (run.directory / "samples.jsonl").read_text()
        lines = map(json.loads, whole.splitlines())  # a new recorder repeats the first steps
        short = next(line for line in lines if line["step"] == 4) | {"microbatches": "0-3"}
        (run.directory / "samples.jsonl").write_text(f"{whole}{json.dumps(short)}\n")
        first = verify_samples(run.directory, lambda step, steps: None)["first_difference"]
        assert (first["step"], first["kind"], first["microbatch"]) == (4, "missing", 4)


def test_a_microbatch_in_the_place_of_another_is_found_in_what_was_used() -> None:
    """The plan is the true one: the losses that were summed are not, and the record says so."""
    with cluster(job(steps=6)) as run:
        run.start(faults=dict.fromkeys(range(4), "repeated_microbatch:3,5,2"))
        assert run.finish().outcome == "done", run.report()
        ledger(run)
        body = verify_samples(run.directory, lambda step, steps: None)
        first = body["first_difference"]
        assert body["equal"] is False
        assert (first["step"], first["kind"], first["microbatch"]) == (3, "missing", 5)
        assert first["sample"] == load_data(run.job).sample_indices(3, 5)[0]
        assert first["sentence"].endswith(" is missing: recorded 0-4,6-7 of 0-7")
