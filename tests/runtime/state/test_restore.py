"""What a node does when a checkpoint cannot be read: wait, pass it over, leave, or end the run."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest
from torch import Tensor

from bamboo.core.events import CheckpointDamaged, FaultScope, LayoutBuilt, NodeFailed, RunFailed
from bamboo.core.state import Outcome, Reconfiguration, State
from bamboo.errors import NotAsWritten, StorageFull, StorageUnavailable
from bamboo.runtime.state.restore import Reading
from testbed.simulated import Node, World, builder_of
from testbed.waiting import wait_until
from tests.runtime.test_interleavings import job

pytestmark = pytest.mark.timeout(60)
BASE = 5
PATIENCE_S = 0.5
AWAY = StorageUnavailable("s3://bucket/test/step-00000005: no route to host")


class Shelf:
    """A vault whose door somebody holds shut, or that fails while there are `troubles`."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors, self.tries = tensors, 0
        self.troubles: list[StorageUnavailable] = []
        self.for_good: StorageUnavailable | None = None
        self.open = threading.Event()
        self.open.set()

    def load(self, step: int, layers: frozenset[int]) -> Mapping[str, Tensor]:
        self.tries += 1
        assert (step, bool(layers)) == (BASE, True)
        assert self.open.wait(30), "the test never opened it"
        if self.for_good is not None:
            raise self.for_good
        if self.troubles:
            raise self.troubles.pop()
        return self.tensors


class Bench:
    """One node of a run of two stages that is restored from step 5."""

    def __init__(self, patience_s: float) -> None:
        settings = job(stages=2, redundancy="off")
        cluster = replace(settings.cluster, step_timeout_s=patience_s)
        settings = replace(settings, cluster=cluster)
        self.world = World(settings, random.Random(1))
        self.node: Node = next(iter(self.world.nodes.values()))
        builder = builder_of(settings)
        slots = builder.strategy.placement.grid.slots()
        self.shelf = Shelf(
            {n: t for slot in slots for n, t in builder.build(slot, owner=True).tensors().items()}
        )
        self.trainer = self.node.trainer
        self.trainer.reconfiguration.layout._vault = self.shelf

    def state(self, since: int, base: int | None) -> State:
        reconfiguration = Reconfiguration(
            since=since,
            why="a test",
            planned=False,
            intact=False,
            asked=(),
            base=base,
            checkpoint=True,
        )
        return replace(self.world.state, reconfiguration=reconfiguration)

    def restore(self) -> None:
        self.trainer.reconfiguration.sync(self.state(100, BASE))

    def said(self) -> list[object]:
        """All that was said so far, after a turn of the trainer."""
        self.trainer.rest(0.0)
        return list(self.node.said)

    def first_said(self) -> object:
        wait_until(lambda: bool(self.said()), what="a word", timeout_s=30)
        (one,) = self.said()
        return one


@pytest.fixture
def patience_s() -> float:
    return PATIENCE_S


@pytest.fixture
def bench(patience_s: float) -> Iterator[Bench]:
    made = Bench(patience_s)
    yield made
    made.shelf.open.set()
    made.trainer.reconfiguration._clear()


@pytest.mark.parametrize("patience_s", [60.0])
def test_a_short_outage_passes_no_checkpoint_over(bench: Bench) -> None:
    bench.shelf.troubles = [AWAY, StorageFull("/tmp: No space left on device")]
    bench.restore()
    assert isinstance(bench.first_said(), LayoutBuilt)
    assert bench.shelf.tries == 3
    assert all(run.step == BASE for run in bench.trainer.reconfiguration.layout.runs if run.owner)


def test_the_trainer_goes_round_while_it_is_read(bench: Bench) -> None:
    """Longer than its patience: what does not fail may take its time."""
    bench.shelf.open.clear()
    bench.restore()
    began_s = time.monotonic()
    while time.monotonic() < began_s + 2 * PATIENCE_S:
        assert bench.said() == []
        bench.trainer.mailbox.collect(0.0)
        threading.Event().wait(0.01)
    bench.shelf.open.set()
    assert isinstance(bench.first_said(), LayoutBuilt)


def test_a_store_that_stays_away_ends_the_run_by_name(bench: Bench) -> None:
    bench.shelf.for_good = AWAY
    bench.restore()
    end = bench.first_said()
    assert isinstance(end, RunFailed)
    assert end.outcome is Outcome.UNRECOVERABLE
    assert str(AWAY) in end.reason
    assert "`bamboo resume sim`" in end.reason


def test_a_node_without_room_leaves(bench: Bench) -> None:
    """Another takes its place; the checkpoint is as good as it was."""
    bench.shelf.for_good = StorageFull("/tmp/bamboo: No space left on device")
    bench.restore()
    left = bench.first_said()
    assert isinstance(left, NodeFailed)
    assert left.scope is FaultScope.NODE
    assert "No space left on device" in left.reason


def test_damage_is_said_at_once_and_not_tried_again(bench: Bench) -> None:
    bench.shelf.for_good = NotAsWritten("stage-00.safetensors is gone or not what was written")
    bench.restore()
    damaged = bench.first_said()
    assert isinstance(damaged, CheckpointDamaged)
    assert damaged.step == BASE
    assert bench.shelf.tries == 1


def test_a_checkpoint_that_lacks_something_is_damaged(bench: Bench) -> None:
    del bench.shelf.tensors[min(n for n in bench.shelf.tensors if "/0." in n)]  # type: ignore[attr-defined]
    bench.restore()
    assert isinstance(bench.first_said(), CheckpointDamaged)


@pytest.mark.parametrize(
    "other", [lambda t: t.flatten()[:1].clone(), lambda t: t.double(), lambda t: t.unsqueeze(0)]
)
def test_a_checkpoint_of_another_shape_or_kind_is_damaged(
    bench: Bench, other: Callable[[Tensor], Tensor]
) -> None:
    """One number would be copied to all of a tensor: training went on with other bits."""
    name = min(n for n in bench.shelf.tensors if "/0." in n)
    bench.shelf.tensors = {**bench.shelf.tensors, name: other(bench.shelf.tensors[name])}
    bench.restore()
    damaged = bench.first_said()
    assert isinstance(damaged, CheckpointDamaged)
    assert damaged.reason.startswith(f"{name!r} in it is torch.float")


def test_another_round_ends_the_reading(bench: Bench) -> None:
    bench.shelf.for_good = AWAY
    bench.restore()
    wait_until(lambda: bench.shelf.tries > 0, what="a try", timeout_s=30)
    reading = bench.trainer.reconfiguration.layout._reading
    assert reading is not None
    bench.trainer.reconfiguration.sync(bench.state(101, None))
    wait_until(lambda: not _reads(), what="its end", timeout_s=30)
    wait_until(lambda: reading.poll() is AWAY, what="its deadline", timeout_s=30)
    assert bench.said() == [], "nobody waits for it any more"
    bench.shelf.for_good = None
    bench.trainer.reconfiguration.sync(bench.state(101, BASE))
    assert isinstance(bench.first_said(), LayoutBuilt)


class Slow(Shelf):
    """Each try takes longer than anybody's patience, and the first one fails at its end."""

    def load(self, step: int, layers: frozenset[int]) -> Mapping[str, Tensor]:
        self.tries += 1
        threading.Event().wait(2 * PATIENCE_S)
        if self.tries == 1:
            raise AWAY
        return self.tensors


def test_one_failure_at_the_end_of_a_long_try_ends_nothing() -> None:
    """A large model: one reset connection may cost all that was read, never the run."""
    shelf = Slow({})
    reading = Reading(shelf, BASE, frozenset({0}), patience_s=PATIENCE_S)
    try:
        wait_until(lambda: reading.poll() is not None, what="an outcome", timeout_s=30)
        assert reading.poll() == {}
        assert shelf.tries == 2
    finally:
        reading.end()


def _reads() -> bool:
    return any(thread.name == "restore" for thread in threading.enumerate())


def test_a_reading_that_hangs_after_a_failure_is_given_up() -> None:
    shelf = Shelf({})
    shelf.troubles = [AWAY]
    reading = Reading(shelf, BASE, frozenset({0}), patience_s=PATIENCE_S)
    wait_until(lambda: not shelf.troubles, what="the failure", timeout_s=30)
    shelf.open.clear()
    try:
        wait_until(lambda: reading.poll() is not None, what="the deadline", timeout_s=30)
    finally:
        reading.end()
        shelf.open.set()


def test_a_reading_that_never_answers_is_given_up_by_name() -> None:
    shelf = Shelf({})
    shelf.open.clear()
    reading = Reading(shelf, BASE, frozenset({0}), patience_s=0.05)
    try:
        wait_until(lambda: reading.poll() is not None, what="the deadline", timeout_s=30)
        assert "cluster.step_timeout_s" in str(reading.poll())
        assert isinstance(reading.poll(), StorageUnavailable)
        assert not isinstance(reading.poll(), NotAsWritten), "nothing of it is known to be damaged"
    finally:
        reading.end()
        shelf.open.set()
