"""What a resume looks for before it starts anything, and what it puts aside."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.checkpoint.catalogue import steps
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.config.tree import CheckpointConfig, JobConfig
from bamboo.controller import resuming
from bamboo.controller.launching import Prepared
from bamboo.controller.resuming import (
    _as_counted,
    _newest,
    forget_passed_over,
    refuse_other_numerics,
)
from bamboo.controller.searching import with_newest
from bamboo.controller.terms import Terms, job_to_plan, save_terms
from bamboo.coord.attested import FILE, attested_in, body_of
from bamboo.core.events import CheckpointDamaged, Quiesced
from bamboo.core.machine import transition
from bamboo.core.numerics import facts_of
from bamboo.core.saving import KEPT
from bamboo.core.state import Attestation, Policy, initial_state
from bamboo.errors import InputError
from bamboo.ids import NodeId, RunId
from bamboo.runs import lock
from bamboo.runs.run_folder import RunFolder, job_of, write_json
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REPLICA_MODES, Semantics
from bamboo.topology.sync import Sync, SyncRule
from cli.screen import PlainScreen
from tests.checkpoint.test_manifest import manifest
from tests.controller.world import job
from tests.core.build import joined
from tests.study.test_planning import JOB, plan

pytestmark = pytest.mark.timeout(30)
OURS = manifest().semantic_hash


def put(objects: DirectoryStore, *kept: int) -> None:
    for step in kept:
        one = manifest(step=step)
        objects.put_new(one.shards[0].name, b"x")
        objects.put_new(one.name, one.to_json().encode())


def test_newer_checkpoints_go_unless_they_are_of_other_semantics(tmp_path: Path) -> None:
    objects = DirectoryStore(tmp_path)
    for step in (100, 200, 300, 400):
        one = manifest(step=step)
        if step == 300:
            one = replace(one, semantic_hash="another")
        objects.put_new(one.shards[0].name, b"x")
        if step != 400:  # torn
            objects.put_new(one.name, one.to_json().encode())
    objects.put_new("step-00000500/manifest.json", b"{")
    forget_passed_over(objects, after=100, semantic_hash=OURS)
    assert steps(objects) == [300, 100]
    assert len(objects.sizes("step-00000300/")) == 2


def test_a_file_in_the_place_of_the_checkpoints_is_no_new_beginning(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("hi")
    folder = RunFolder(id=RunId("r"), path=tmp_path)
    written = replace(job(), checkpoint=CheckpointConfig(every_steps=5))
    with pytest.raises(InputError, match=r"checkpoints is no directory.*move that away"):
        _newest(folder, written, OURS, layers=())


def test_a_machine_that_computes_otherwise_is_refused_by_the_fact_that_differs(
    tmp_path: Path,
) -> None:
    folder, semantics, config = RunFolder(id=RunId("r"), path=tmp_path), planned_semantics(), job()
    here = {"torch": "2.13.0+cpu", "device": "cpu", "threads": 1}
    refuse_other_numerics(folder, config, semantics, here={"torch": "0"})  # nobody has attested
    known = Attestation(node=NodeId("a.1"), numerics=facts_of(here))
    write_json(tmp_path / FILE, body_of(known))
    refuse_other_numerics(folder, config, semantics, here=here)
    with pytest.raises(
        InputError, match=r"torch is 2\.12\.1 here and 2\.13\.0\+cpu in the run; res"
    ):
        refuse_other_numerics(folder, config, semantics, here=here | {"torch": "2.12.1"})
    there = replace(config, cloud=replace(config.cloud, provider="ec2"))
    refuse_other_numerics(folder, there, semantics, here={"torch": "of a laptop"})
    threads = replace(there, cluster=replace(there.cluster, threads=2))
    with pytest.raises(InputError, match=r"threads is 2 here and 1 in the run"):
        refuse_other_numerics(folder, threads, semantics, here={})


def test_a_run_of_an_older_release_goes_on_with_its_hash_and_its_numerics(tmp_path: Path) -> None:
    folder, today = RunFolder(id=RunId("r"), path=tmp_path), planned_semantics()
    here = {"torch": "2.13.0+cpu", "threads": 1}
    older = replace(today, numerics=here)
    assert older.hash() != today.hash()
    prepared = Prepared(run=folder.id, job=job(), planned=plan(), trace=None)
    assert _as_counted(prepared, older).planned.strategy.semantics.numerics == here
    refuse_other_numerics(folder, job(), older, here=here)
    with pytest.raises(InputError, match=r"threads is 2 here and 1 in the run"):
        refuse_other_numerics(folder, job(), older, here=here | {"threads": 2})
    assert attested_in(tmp_path, older) == Attestation(node=NodeId(""), numerics=facts_of(here))


@pytest.mark.parametrize(
    ("redundancy", "said", "settled"),
    [
        ("stash", ("auto", "auto"), ("off", "device")),
        ("stash", ("layer", "host"), ("layer", "host")),
        ("peer", ("auto", "host"), ("off", "device")),
    ],
)
def test_what_saves_memory_is_settled_for_one_grid_and_for_another_as_the_job_said(
    tmp_path: Path, redundancy: str, said: tuple[str, str], settled: tuple[str, str]
) -> None:
    recompute, moments = said
    cluster = replace(
        JOB.cluster,
        pipelines=2,
        redundancy=redundancy,
        recompute=recompute,
        replica_moments=moments,
        device="cuda",
    )
    planned = plan(replace(JOB, cluster=cluster))
    folder = RunFolder(id=RunId("r"), path=tmp_path)
    save_terms(folder, planned.job, planned, started_s=0.0, detached=False)
    assert keys(planned.job) == keys(job_of(folder)) == settled
    assert keys(job_to_plan(folder)) == said
    assert planned.workload.saving.host_moments == (settled[1] == "host")


@pytest.mark.parametrize("said", ["auto", "stash"])
def test_redundancy_that_was_left_open_is_settled_again_for_what_a_resume_changes(
    tmp_path: Path, said: str
) -> None:
    train = replace(JOB.train, virtual_nodes=2)
    planned = plan(replace(JOB, train=train, cluster=replace(JOB.cluster, redundancy=said)))
    assert planned.job.cluster.redundancy in REPLICA_MODES
    folder = RunFolder(id=RunId("r"), path=tmp_path)
    save_terms(folder, planned.job, planned, started_s=0.0, detached=False)
    assert job_of(folder).cluster.redundancy == planned.job.cluster.redundancy
    assert job_to_plan(folder).cluster.redundancy == said
    one_stage = ("cluster.stages=1", "cluster.pipelines=2")
    if said == "auto":
        again = plan(resuming._asked(folder, one_stage, steps=None).job)
        assert again.job.cluster.redundancy == "peer"
    else:
        with pytest.raises(InputError, match="stash"):
            resuming._asked(folder, one_stage, steps=None)


def keys(job: JobConfig) -> tuple[str, str]:
    return job.cluster.recompute, job.cluster.replica_moments


def planned_semantics() -> Semantics:
    return plan().strategy.semantics


def begun(from_step: int, older: tuple[int, ...]) -> Terms:
    """Terms of which only the checkpoints are looked at."""
    made = object.__new__(Terms)
    object.__setattr__(made, "from_step", from_step)
    object.__setattr__(made, "older", older)
    return made


def test_the_one_before_is_taken_where_the_newest_cannot_be_read_after_all() -> None:
    assert begun(0, ()).checkpoints == ()
    assert [c.step for c in begun(99, tuple(range(20))).checkpoints][-2:] == [19, 99]
    assert len(begun(99, tuple(range(20))).checkpoints) == KEPT
    policy = Policy(cuts=((0, 2, 4),), virtual_nodes=1, pipelines=1, stages=2, checkpoint_every=4)
    state = initial_state(
        run=RunId("r"),
        grid=Grid(pipelines=1, stages=2),
        redundancy="off",
        checkpoints=begun(8, (4,)).checkpoints,
    )
    nodes = [NodeId("a.1"), NodeId("b.1")]
    bases = []
    for event in (
        *(joined(node) for node in nodes),
        *(Quiesced(node=node, since=2, holdings=(), norms=()) for node in nodes),
        CheckpointDamaged(node=nodes[0], step=8, reason="a bit was turned"),
        *(Quiesced(node=node, since=5, holdings=(), norms=()) for node in nodes),
    ):
        state = transition(state, event, now_s=0.0, policy=policy).state
        bases.append(None if state.reconfiguration is None else state.reconfiguration.base)
    assert bases == [None, None, None, 8, None, None, 4]


def test_an_interrupt_while_the_last_part_is_settled_ends_the_resume_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receipt is written whole; nothing is started after it."""
    folder = RunFolder(id=RunId("r"), path=tmp_path)
    monkeypatch.setattr(resuming, "_refuse_unless_over", lambda folder: None)
    monkeypatch.setattr(resuming.parts, "ended_at_s", lambda folder: 1.0)
    write_json(folder.endpoint, {"cloud": {}})

    def settled(*arguments: object, **more: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        folder.receipt.write_text("{}")

    monkeypatch.setattr(resuming.attempt, "take_up", settled)
    with pytest.raises(KeyboardInterrupt):
        resuming.settle(folder, PlainScreen())
    assert folder.receipt.exists()
    held = lock.take(folder)
    assert held is not None, "the run's lock is free again"
    held.close()


def test_what_a_search_chose_last_is_what_a_resume_begins_with(tmp_path: Path) -> None:
    """On the grid for which it was chosen; on another one the planned rules count."""
    folder, planned = RunFolder(id=RunId("r"), path=tmp_path), plan()
    save_terms(folder, planned.job, planned, started_s=0.0, detached=False)
    assert with_newest(folder, planned) is planned, "none was chosen"
    chosen = Sync(rules=(SyncRule(match="0.tokens.weight", ship="rows"),), bucket=0)
    write_json(folder.newest_sync, {"sync": chosen.body()})
    newest = with_newest(folder, planned)
    assert newest.strategy.placement.sync == newest.synced.sync == chosen
    live = replace(planned, job=replace(JOB, cluster=replace(JOB.cluster, search="live")))
    assert resuming._with_newest(folder, live, ["train.steps=9"]).synced.sync == chosen
    assert resuming._with_newest(folder, live, ["cluster.sync=tree"]) is live, "it is named"
    assert resuming._with_newest(folder, planned, []) is planned, "none is searched for"
    other = plan(replace(JOB, cluster=replace(JOB.cluster, stages=2)))
    assert with_newest(folder, other) is other
    linear = next(one.name for one in planned.synced.facts if one.rows_k)
    heavy = Sync(rules=(SyncRule(match=linear, exchange="factors", ship="factors"),))
    write_json(folder.newest_sync, {"sync": heavy.body()})
    assert with_newest(folder, planned).synced.sync == heavy
    situation = planned.synced.situation
    full = replace(situation, spare_bytes=(0,) * situation.stages)
    without = replace(planned, synced=replace(planned.synced, situation=full))
    assert with_newest(folder, without) is without, "no node has the memory for its factors"
    unknown = Sync(rules=(SyncRule(match="9.nothing"),))
    for body in ({"sync": unknown.body()}, {"sync": {"rules": 3}}):
        write_json(folder.newest_sync, body)
        with pytest.raises(InputError, match=r"sync\.json is damaged: .*; remove it"):
            with_newest(folder, planned)
