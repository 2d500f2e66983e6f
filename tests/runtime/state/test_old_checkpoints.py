"""When old checkpoints are deleted: behind a complete one, and never at its cost."""

import random
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from bamboo.checkpoint.catalogue import examine, steps
from bamboo.checkpoint.manifest import shard_name
from bamboo.core.events import CheckpointFailed
from bamboo.core.state import Checkpoint, Reconfiguration
from bamboo.runtime.state.checkpoints import Checkpoints, Complete, Save, Tidy
from bamboo.runtime.state.decision import Decided
from testbed.simulated import World
from tests.runtime.state.test_checkpoints import (
    AWAY,
    HASH,
    STAGES,
    Bench,
    garbled,
    keep,
    manifest_of,
    state,
)
from tests.runtime.test_interleavings import job

pytestmark = pytest.mark.timeout(60)


def test_a_damaged_manifest_does_not_stop_the_tidying(tmp_path: Path) -> None:
    """Old ones are deleted still, and the damaged one, which nobody can restore, with them."""
    bench = Bench(tmp_path, keep=1)
    bench.write(5)
    garbled(bench, 5)
    for step in (10, 15):
        bench.write(step)
    assert bench.said.kinds().count(("CheckpointDone", 15)) == 1
    assert not [e for e in bench.said.events if isinstance(e, CheckpointFailed)]
    assert steps(bench.store) == [15]


@pytest.mark.parametrize("error", [AWAY, OSError("no such device"), ValueError("no such name")])
def test_what_cannot_be_deleted_takes_nothing_back(tmp_path: Path, error: Exception) -> None:
    """The checkpoint is complete, whatever becomes of the old ones."""
    bench = Bench(tmp_path, keep=1)
    bench.write(5)
    bench.store.failing[("delete", "step-00000005/")] = error
    bench.write(10)
    assert bench.said.kinds()[-1] == ("CheckpointDone", 10)
    assert examine(bench.store, 10, run="r", semantic_hash=HASH)[1] == ""
    bench.store.failing.clear()
    bench.write(15)
    assert steps(bench.store) == [15]


def test_who_deletes_old_ones_can_keep_the_next(tmp_path: Path) -> None:
    """A slow bucket may take long over it, and nothing is still to be written meanwhile."""
    bench = Bench(tmp_path)
    bench.checkpoints.backlog.put(Tidy(step=5, era=1))
    keep(bench, 10)
    assert bench.said.kinds() == []
    kept = [item for item in bench.checkpoints.backlog.undone() if isinstance(item, Save)]
    assert [item.step for item in kept] == [10] * STAGES
    keep(bench, 15)
    assert bench.said.kinds() == [("CheckpointFailed", 15)] * STAGES


def test_what_killed_writers_left_goes_with_the_next_complete_one(tmp_path: Path) -> None:
    """Also where a checkpoint stays, and where nothing else of one was ever written. What is as new
    as the complete one, or newer, may be written just now; what is another's is not touched."""
    bench = Bench(tmp_path, keep=2)
    for step in (5, 10, 15):
        bench.write(step)
    other = replace(manifest_of(bench, 10), semantic_hash="0" * 16)
    (bench.store._root / other.name).write_text(other.to_json())
    left = {step: strayed(bench, step) for step in (5, 8, 10, 15, 20, 25)}
    bench.write(20)
    assert [step for step, path in left.items() if path.exists()] == [10, 20, 25]
    assert not (tmp_path / "checkpoints/step-00000008").exists()
    assert steps(bench.store) == [20, 15, 10]
    assert not [e for e in bench.said.events if isinstance(e, CheckpointFailed)]


def strayed(bench: Bench, step: int) -> Path:
    """What a writer leaves behind that is killed while it stores a stage."""
    path = (bench.store._root / shard_name(step=step, generation=9, stage=0)).parent / ".aside-1"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half")
    return path


def test_none_is_deleted_before_the_state_names_a_newer_one(tmp_path: Path) -> None:
    """A restore that begins meanwhile reads what the state names: its base stays."""
    bench = Bench(tmp_path, keep=1)
    bench.write(5)
    for stage in range(STAGES):
        tensors = state(10, stage)
        bench.checkpoints.write(Save(step=10, era=1, stage=stage, tensors=tensors))
    bench.checkpoints.write(Complete(step=10, era=1, stages=STAGES))
    assert bench.said.kinds()[-1] == ("CheckpointDone", 10)
    bench.know(5)
    held = bench.checkpoints.load(5, frozenset({0}))
    assert torch.equal(held["param/0.weight"], state(5, 0)["param/0.weight"])
    bench.know(5, 10)
    assert steps(bench.store) == [10]


def test_none_is_deleted_while_all_is_laid_out_anew() -> None:
    """The state may name one that came too late to be the base: the base is read still."""
    world = World(job(stages=2, redundancy="off"), random.Random(1))
    trainer, told = next(iter(world.nodes.values())).trainer, Told()
    trainer._checkpoints = cast("Checkpoints", told)
    made = tuple(Checkpoint(step=step, era=1) for step in (4, 8))
    reconfiguration = Reconfiguration(since=99, why="a test", planned=False, intact=False, asked=())
    trainer._apply(
        Decided(
            state=replace(world.state, checkpoints=made, reconfiguration=reconfiguration),
            effects=(),
            read_s=0.0,
        )
    )
    assert told.listed == []
    trainer._apply(Decided(state=replace(world.state, checkpoints=made), effects=(), read_s=0.0))
    assert told.listed == [[4, 8]]


class Told:
    """A node's checkpoints, as far as they are told what the state names."""

    def __init__(self) -> None:
        self.listed: list[list[int]] = []

    def known(self, listed: list[int], era: int) -> None:
        del era
        self.listed.append(listed)
