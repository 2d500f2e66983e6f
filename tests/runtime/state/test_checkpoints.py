"""A node's part in checkpoints over a store that fails: that is said, and the next one is tried."""

import errno
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from bamboo.checkpoint.catalogue import newest_good, steps
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.manifest import MANIFEST, Manifest, folder_of
from bamboo.checkpoint.shards import save_shard
from bamboo.config.tree import CheckpointConfig
from bamboo.core.events import CheckpointDone, CheckpointFailed, Event, ShardSaved
from bamboo.errors import NotAsWritten, StorageFull, StorageUnavailable
from bamboo.ids import NodeId, RunId
from bamboo.runtime.state.checkpoints import Checkpoints, Complete, Save
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from testbed.waiting import wait_until
from tests.full_disk import files_up_to

pytestmark = pytest.mark.timeout(60)
HASH = "88a126d5201019a4"
ME = NodeId("i-00.1")
STAGES = 2


def state(step: int, stage: int) -> dict[str, Tensor]:
    """A stage of one layer before `step`, 120 kB."""
    return {
        f"{kind}/{stage}.weight": torch.full((100, 100), float(step + stage))
        for kind in ("param", "exp_avg", "exp_avg_sq")
    }


class Said:
    """An outbox that keeps what was said."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, event: Event) -> None:
        self.events.append(event)

    def metric(self, record: Mapping[str, Any]) -> None:
        raise AssertionError(f"nobody asked for {record}")

    def kinds(self) -> list[tuple[str, int]]:
        """(kind, step) of each event."""
        kept = (ShardSaved, CheckpointDone, CheckpointFailed)
        return [(type(e).__name__, e.step) for e in self.events if isinstance(e, kept)]

    def reason(self) -> str:
        """Of the one failure that was said."""
        (failed,) = (e for e in self.events if isinstance(e, CheckpointFailed))
        return failed.reason


class FailingStore(DirectoryStore):
    """A directory of which single calls fail, as `failing[(call, part of the name)]` says."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.failing: dict[tuple[str, str], Exception] = {}

    def put_file(self, name: str, path: Path) -> None:
        self._fail("put_file", name)
        super().put_file(name, path)

    def put_new(self, name: str, data: bytes) -> bool:
        self._fail("put_new", name)
        return super().put_new(name, data)

    def get(self, name: str) -> bytes | None:
        self._fail("get", name)
        return super().get(name)

    def fetch(self, name: str, path: Path) -> bool:
        self._fail("fetch", name)
        return super().fetch(name, path)

    def delete(self, name: str) -> None:
        self._fail("delete", name)
        super().delete(name)

    def _fail(self, call: str, name: str) -> None:
        for (at, part), error in self.failing.items():
            if at == call and part in name:
                raise error


class Bench:
    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.store, self.said = FailingStore(folder / "checkpoints"), Said()
        self.scratch = folder / "scratch"
        self.checkpoints = Checkpoints(
            me=ME,
            run=RunId("r"),
            semantic_hash=HASH,
            objects=self.store,
            config=CheckpointConfig(every_steps=5, keep=keep),
            last_step=100,
            scratch=self.scratch,
            outbox=self.said,
            layers=range(STAGES),
        )

    def write(self, step: int, era: int = 1) -> None:
        """All stages and, if none of them failed, the manifest; then what the state's naming it
        does."""
        before = len(self.said.events)
        for stage in range(STAGES):
            tensors = state(step, stage)
            self.checkpoints.write(Save(step=step, era=era, stage=stage, tensors=tensors))
        if not any(isinstance(e, CheckpointFailed) for e in self.said.events[before:]):
            self.checkpoints.write(Complete(step=step, era=era, stages=STAGES))
            self.know(step)

    def know(self, *listed: int) -> None:
        """The state names the checkpoints of these steps."""
        stop = threading.Event()
        stop.set()
        self.checkpoints.known(listed, 1)
        self.checkpoints.backlog.work(self.checkpoints.write, stop)

    def good(self) -> int | None:
        found = newest_good(self.store, run=self.checkpoints._run, semantic_hash=HASH).manifest
        return None if found is None else found.step


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


FULL = StorageFull("checkpoints/x: No space left on device; make room, or keep fewer checkpoints")
AWAY = StorageUnavailable(
    "checkpoints/x: Input/output error; see that the directory can be written"
)


@pytest.mark.parametrize("error", [FULL, AWAY, OSError(errno.EIO, "Input/output error")])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("put_file", "step-00000010/gen-000001/stage-00.safetensors"),
        ("put_file", "step-00000010/gen-000001/stage-01.safetensors"),
        ("put_new", "step-00000010/gen-000001/stage-01.json"),
        ("put_new", "step-00000010/manifest.json"),
    ],
)
def test_what_cannot_be_stored_is_said_and_the_next_is_written(
    bench: Bench, call: str, name: str, error: Exception
) -> None:
    bench.write(5)
    bench.store.failing[(call, name)] = error
    bench.write(10)
    assert bench.said.reason() == str(error)
    assert bench.said.kinds().count(("CheckpointFailed", 10)) == 1
    assert ("CheckpointDone", 10) not in bench.said.kinds()
    assert bench.good() == 5
    bench.store.failing.clear()
    bench.write(15)
    assert bench.said.kinds()[-1] == ("CheckpointDone", 15)
    assert bench.good() == 15
    assert steps(bench.store) == [15, 5], "what is left of the failed one is deleted"
    assert not list(bench.scratch.iterdir())


class Stands:
    """An owned slot that stands before a step, as far as `boundary` looks."""

    def __init__(self, stage: int, step: int) -> None:
        self.slot, self.step = Slot(pipeline=0, stage=stage), step
        self.plan = SimpleNamespace(grid=Grid(pipelines=1, stages=STAGES))
        self.stage = SimpleNamespace(untrained=SimpleNamespace(constant=()))

    def tensors(self) -> dict[str, Tensor]:
        return state(self.step, self.slot.stage)


def keep(bench: Bench, step: int, era: int = 1) -> None:
    """Both stages, owned by one node, stand before `step`."""
    for stage in range(STAGES):
        bench.checkpoints.boundary(cast("SlotRun", Stands(stage, step)), era)


def test_a_node_of_two_stages_keeps_both(bench: Bench) -> None:
    """Those of one step wait for each other; only what is of an earlier one is in their way."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: bench.checkpoints.work(stop))
    keep(bench, 5)
    keep(bench, 10)
    thread.start()
    try:
        wait_until(lambda: not bench.checkpoints.backlog.undone(), what="both are written")
        assert sorted(bench.said.kinds()) == sorted(
            [("ShardSaved", 5)] * 2 + [("CheckpointFailed", 10)] * 2
        )
        keep(bench, 15)
        wait_until(lambda: not bench.checkpoints.backlog.undone(), what="and two more")
    finally:
        stop.set()
        thread.join(10)
    assert bench.said.kinds()[-2:] == [("ShardSaved", 15)] * 2


def test_what_was_to_be_written_before_a_restore_is_in_the_way_too(bench: Bench) -> None:
    """Nobody waits for it any more, but it lies in memory still."""
    keep(bench, 10)
    keep(bench, 5, era=2)
    assert bench.said.kinds() == [("CheckpointFailed", 5)] * 2


def test_the_thread_goes_on_over_a_full_store(bench: Bench) -> None:
    bench.store.failing[("put_file", "step-00000005/")] = FULL
    stop = threading.Event()
    thread = threading.Thread(target=lambda: bench.checkpoints.work(stop))
    thread.start()
    try:
        for step in (5, 10):
            bench.checkpoints.backlog.put(Save(step=step, era=1, stage=0, tensors=state(step, 0)))
        wait_until(lambda: len(bench.said.events) == 2, what="two answers")
    finally:
        stop.set()
        thread.join(10)
    assert bench.said.kinds() == [("CheckpointFailed", 5), ("ShardSaved", 10)]


def test_a_full_disk_for_the_files_on_the_way_is_said_too(bench: Bench) -> None:
    """A shard is written to a file of this node's first, by a library with errors of its own."""
    with files_up_to(1 << 16):
        bench.checkpoints.write(Save(step=5, era=1, stage=0, tensors=state(5, 0)))
    assert "File too large" in bench.said.reason()
    assert bench.said.reason().startswith(str(bench.scratch))
    assert bench.said.reason().endswith("; make room where TMPDIR points to, or point it elsewhere")
    assert bench.said.reason().count("make room") == 1
    assert steps(bench.store) == []
    assert not list(bench.scratch.iterdir())
    bench.write(10)
    assert bench.good() == 10


def test_no_place_for_the_files_on_the_way_is_said_too(bench: Bench) -> None:
    bench.scratch.write_text("a file where the folder should be")
    bench.checkpoints.write(Save(step=5, era=1, stage=0, tensors=state(5, 0)))
    assert "File exists" in bench.said.reason()
    assert bench.said.reason().endswith("; make room where TMPDIR points to, or point it elsewhere")


def test_a_full_disk_on_the_way_is_told_from_a_full_store(bench: Bench) -> None:
    """Both are full; what is to be done is not the same."""
    bench.scratch.mkdir()
    with files_up_to(1 << 16), pytest.raises(StorageFull, match="where TMPDIR points to"):
        save_shard(bench.store, state(5, 0), step=5, generation=1, stage=0, scratch=bench.scratch)
    bench.store.failing[("put_file", "stage-00")] = FULL
    with pytest.raises(StorageFull, match="or keep fewer checkpoints"):
        save_shard(bench.store, state(5, 0), step=5, generation=1, stage=0, scratch=bench.scratch)


@pytest.mark.parametrize(
    "described",
    [
        b"{",
        b"null",
        b"{}",
        b'{"name": 1, "bytes": 1, "sha256": "", "tensors": []}',
        b'{"name": "a", "bytes": 1, "sha256": "", "tensors": 3}',
        b'{"name": "step-00000010/gen-000001/stage-00.safetensors", "bytes": 1, "sha256": "", '
        b'"tensors": ["a"]}',
    ],
)
def test_a_shard_that_is_described_wrongly_costs_the_checkpoint(
    bench: Bench, described: bytes
) -> None:
    for stage in range(STAGES):
        bench.checkpoints.write(Save(step=5, era=1, stage=stage, tensors=state(5, stage)))
    wrong = "step-00000005/gen-000001/stage-01"
    (bench.store._root / f"{wrong}.json").write_bytes(described)
    bench.checkpoints.write(Complete(step=5, era=1, stages=STAGES))
    assert wrong in bench.said.reason()
    assert bench.good() is None
    bench.write(10)
    assert bench.good() == 10


def test_shards_that_are_not_the_whole_model_complete_nothing(bench: Bench) -> None:
    """As many as there are stages, but of another cut."""
    bench.write(5)
    bench.checkpoints.write(Save(step=10, era=1, stage=0, tensors=state(10, 0)))
    bench.checkpoints.write(Complete(step=10, era=1, stages=1))
    assert bench.said.reason() == "what was stored before step 10 lacks layers [1]"
    assert bench.good() == 5


# ---------------------------------------------------------------- a step that has one already


def corrupted(bench: Bench, step: int) -> None:
    path = bench.store._root / manifest_of(bench, step).shards[1].name
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def truncated(bench: Bench, step: int) -> None:
    path = bench.store._root / manifest_of(bench, step).shards[0].name
    path.write_bytes(path.read_bytes()[:-1])


def garbled(bench: Bench, step: int) -> None:
    (bench.store._root / f"{folder_of(step)}/{MANIFEST}").write_text("{")


def torn(bench: Bench, step: int) -> None:
    (bench.store._root / f"{folder_of(step)}/{MANIFEST}").unlink()


def manifest_of(bench: Bench, step: int) -> Manifest:
    text = bench.store.get(f"{folder_of(step)}/{MANIFEST}")
    assert text is not None
    return Manifest.from_json(text)


@pytest.mark.parametrize("spoil", [corrupted, truncated, garbled, torn])
def test_a_damaged_one_of_the_step_is_written_anew(
    bench: Bench, spoil: Callable[[Bench, int], None]
) -> None:
    """The run was restored from an earlier one and comes by again; what it then says is true."""
    bench.write(5)
    bench.write(10)
    spoil(bench, 10)
    assert bench.good() == 5
    bench.write(10, era=2)
    assert bench.said.kinds()[-1] == ("CheckpointDone", 10)
    assert bench.good() == 10
    assert manifest_of(bench, 10).generation == 2
    held = bench.checkpoints.load(10, frozenset({0, 1}))
    assert all(torch.equal(held[n], t) for s in range(STAGES) for n, t in state(10, s).items())


@pytest.mark.parametrize("spoil", [corrupted, truncated, garbled, torn])
def test_what_is_not_as_written_is_told_from_what_cannot_be_read(
    bench: Bench, spoil: Callable[[Bench, int], None]
) -> None:
    bench.write(10)
    layers = frozenset({0, 1})
    bench.store.failing[("get", MANIFEST)] = AWAY
    with pytest.raises(StorageUnavailable) as away:
        bench.checkpoints.load(10, layers)
    assert type(away.value) is StorageUnavailable
    bench.store.failing = {("fetch", "stage-01.safetensors"): FULL}
    with pytest.raises(StorageFull, match=f"{bench.scratch}: .* make room where TMPDIR points to"):
        bench.checkpoints.load(10, layers)
    bench.store.failing.clear()
    spoil(bench, 10)
    with pytest.raises(NotAsWritten):
        bench.checkpoints.load(10, layers)
    assert not list(bench.scratch.iterdir())


def test_a_scratch_that_is_of_no_use_is_no_damage(bench: Bench) -> None:
    bench.write(10)
    bench.scratch.rmdir()
    bench.scratch.write_text("a file where the folder should be")
    with pytest.raises(StorageFull, match=r"File exists.*; make room where TMPDIR points to"):
        bench.checkpoints.load(10, frozenset({0}))


def test_a_good_one_of_the_step_stands(bench: Bench) -> None:
    bench.write(10)
    bench.write(10, era=2)
    assert bench.said.kinds()[-1] == ("CheckpointDone", 10)
    assert manifest_of(bench, 10).generation == 1
    assert bench.good() == 10


@pytest.mark.parametrize(
    ("semantic_hash", "says"), [("0" * 16, "is of other semantics"), (HASH, "is of run other")]
)
def test_one_of_another_run_is_neither_touched_nor_restored(
    bench: Bench, semantic_hash: str, says: str
) -> None:
    bench.write(10)
    other = replace(manifest_of(bench, 10), semantic_hash=semantic_hash, run="other")
    (bench.store._root / other.name).write_text(other.to_json())
    bench.write(10, era=2)
    assert manifest_of(bench, 10) == other
    assert bench.said.reason().startswith(f"the checkpoint of step 10 that is there {says}")
    with pytest.raises(NotAsWritten, match=re.escape(f"the checkpoint of step 10 {says}")):
        bench.checkpoints.load(10, frozenset({0, 1}))
    assert "give each run a checkpoint.url of its own" in bench.said.reason()


# ---------------------------------------------------------------- what never changes


def with_constant(step: int, stage: int) -> Save:
    never = {f"param/{stage}.frozen": torch.ones(500, 100).bfloat16(), f"buffer/{stage}.b": ONE}
    tensors = state(step, stage) | never
    return Save(step=step, era=1, stage=stage, tensors=tensors, constant=frozenset(never))


ONE = torch.tensor(True)


def save_with_constant(bench: Bench, step: int) -> None:
    for stage in range(STAGES):
        bench.checkpoints.write(with_constant(step, stage))
    bench.checkpoints.write(Complete(step=step, era=1, stages=STAGES))
    bench.know(step)


def constant_in(bench: Bench) -> dict[str, int]:
    return dict(bench.store.sizes("constant/"))


def test_what_never_changes_is_stored_once_for_all_checkpoints(bench: Bench) -> None:
    save_with_constant(bench, 5)
    first = constant_in(bench)
    assert len(first) == STAGES
    assert all(100_000 <= size < 101_000 for size in first.values())
    for step in (10, 15):
        save_with_constant(bench, step)
    assert constant_in(bench) == first
    assert steps(bench.store) == [15, 10], "and it stays when the oldest is deleted"
    assert bench.good() == 15
    shards = manifest_of(bench, 15).shards
    assert {shard.name for shard in shards} > first.keys()
    assert sum(shard.bytes for shard in shards if shard.name not in first) < 125_000 * STAGES
    found = bench.checkpoints.load(15, frozenset({1}))
    assert found.keys() == with_constant(15, 1).tensors.keys()
    assert all(torch.equal(found[n], x) for n, x in with_constant(15, 1).tensors.items())


@pytest.mark.parametrize("bend", [bytes.lower, lambda data: data[:-1]])
def test_what_lies_there_otherwise_is_written_again(
    bench: Bench, bend: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """A node that comes to it first compares it with its own."""
    save_with_constant(bench, 5)
    for name in constant_in(bench):
        path = bench.store._root / name
        path.write_bytes(bend(path.read_bytes().replace(b"BF16", b"F16 ")))
    assert bench.good() is None
    bench.checkpoints = Bench(tmp_path).checkpoints
    save_with_constant(bench, 10)
    assert bench.good() == 10


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("fetch", r"bamboo-\w+: .*make room where TMPDIR points to, or point it elsewhere$"),
        ("put_file", "^checkpoints/x: No space left on device; make room, or keep fewer checkpoi"),
    ],
)
def test_where_it_cannot_be_stored_that_is_said_and_the_next_is_whole(
    bench: Bench, call: str, says: str
) -> None:
    bench.store.failing[(call, "constant/")] = FULL
    bench.checkpoints.write(with_constant(5, 0))
    assert re.search(says, bench.said.reason())
    bench.store.failing.clear()
    save_with_constant(bench, 10)
    assert bench.good() == 10


@pytest.mark.parametrize("foreign", [False, True])
def test_what_a_killed_writer_left_of_it_goes_unless_another_run_may_write_there(
    bench: Bench, foreign: bool
) -> None:
    save_with_constant(bench, 5)
    if foreign:
        other = replace(manifest_of(bench, 5), semantic_hash="0" * 16, run="other")
        (bench.store._root / other.name).write_text(other.to_json())
    stray, kept = bench.store._root / "constant" / ".aside-1", constant_in(bench)
    stray.write_bytes(b"half")
    save_with_constant(bench, 10)
    assert stray.exists() is foreign
    assert constant_in(bench) == kept


@pytest.mark.parametrize("left", [0, 1000])
def test_what_is_lost_of_it_is_stored_again_by_the_node_that_stored_it(
    bench: Bench, left: int
) -> None:
    """Otherwise no later checkpoint would be good."""
    save_with_constant(bench, 5)
    for name in constant_in(bench):
        os.truncate(bench.store._root / name, left)
        if not left:
            bench.store.delete(name)
    assert bench.good() is None
    save_with_constant(bench, 10)
    assert bench.good() == 10
    assert len(constant_in(bench)) == STAGES


def test_a_checkpoint_without_it_is_no_good(bench: Bench) -> None:
    save_with_constant(bench, 5)
    bench.store.delete(min(constant_in(bench)))
    assert bench.good() is None
    with pytest.raises(NotAsWritten, match="is gone or not what was written"):
        bench.checkpoints.load(5, frozenset({0, 1}))
