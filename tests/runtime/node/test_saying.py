"""What a node says and keeps to say: a full disk and a store that is away lose none of it."""

import json
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bamboo.coord.driver import Driver, create_run
from bamboo.coord.follow import all_records
from bamboo.coord.memory_store import MemoryStore
from bamboo.core.events import CheckpointFailed, Event
from bamboo.ids import NodeId, run_id
from bamboo.runtime.node import worker
from bamboo.runtime.node.control import Poster
from bamboo.runtime.node.records import FORGOTTEN_A_STEP, LOSSES_KEPT, Records
from bamboo.runtime.step.losses import Losses
from bamboo.runtime.wire.outbox import URGENT
from bamboo.topology.slots import Slot
from testbed.simulated import builder_of
from tests.core.build import POLICY, forming, joined
from tests.full_disk import files_up_to
from tests.runtime.test_interleavings import job

ME = NodeId("n1.1")


@pytest.mark.parametrize("laid", [False, True])
def test_a_disk_without_room_takes_no_notes_and_stops_no_words(tmp_path: Path, laid: bool) -> None:
    """Nor does what somebody has laid at the name of the log."""
    path = tmp_path / "log"
    if laid:
        path.symlink_to("/dev/null")
    with files_up_to(0):
        _say_to(path)
    assert laid or path.read_bytes() == b""


def _say_to(log: Path) -> None:
    store = MemoryStore(run_id("test"), clock=lambda: 100.0)
    assert create_run(store, state=forming(), policy=POLICY, documents={}, at_s=99.0)
    driver = Driver(store, POLICY, ME)
    for index in range(4):
        driver.append(joined(f"n{index}.1"))
    poster = Poster(store, driver, log, ME, driver.state, overtaken=threading.Event())
    stop = threading.Event()
    thread = threading.Thread(target=lambda: poster.work(stop))
    thread.start()
    poster.event(CheckpointFailed(node=ME, step=1, era=driver.state().era, reason="no room"))
    poster.metric({"kind": "memory", "node": ME})
    poster.metric({"kind": "step", "step": 1})
    assert poster.drained(10.0)
    stop.set()
    thread.join(10.0)
    assert [record.count("step") for record in all_records(store, "metrics")] == [0, 2]


def test_a_thread_that_breaks_ends_the_worker_though_its_log_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ended(BaseException):
        pass

    def end(status: int) -> None:
        raise Ended(status)

    def no_room(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(worker.os, "_exit", end)
    monkeypatch.setattr(traceback, "print_exception", no_room)
    half_alive = worker._Worker.__new__(worker._Worker)
    half_alive._stop = threading.Event()
    broken = SimpleNamespace(exc_value=None)
    with pytest.raises(Ended):
        half_alive._thread_broke(broken)


def test_the_newest_are_said_again_first() -> None:
    """A store was refilled, and this node may be gone before it has said all that it knows."""
    store = MemoryStore(run_id("test"), clock=lambda: 100.0)
    assert create_run(store, state=forming(), policy=POLICY, documents={}, at_s=99.0)
    driver = Driver(store, POLICY, ME)
    poster = Poster(store, driver, None, ME, driver.state, overtaken=threading.Event())
    stop = threading.Event()
    thread = threading.Thread(target=lambda: poster.work(stop))
    thread.start()
    for step in range(5 * URGENT):
        poster.metric({"kind": "step", "step": step})
    assert poster.drained(10.0)
    poster.say_again()
    assert poster.drained(10.0)
    stop.set()
    thread.join(10.0)
    steps = [json.loads(record)["step"] for record in all_records(store, "metrics")]
    assert steps[5 * URGENT :] == [*range(4 * URGENT, 5 * URGENT), *range(4 * URGENT)]


class Said:
    """An outbox that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []

    def event(self, event: Event) -> None:
        raise AssertionError(f"no {event} was to be said")

    def metric(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)


def test_a_shadow_keeps_every_loss_of_an_outage_until_its_owner_could_say_it() -> None:
    builder, said = builder_of(job(stages=2)), Said()
    away = True
    records = Records(me=ME, builder=builder, outbox=said, store_away=lambda: away)
    shadow = builder.build(Slot(pipeline=0, stage=1), owner=False)
    done: Any = SimpleNamespace(losses=Losses(), total_square=0.0)

    def step(count: int) -> None:
        for _ in range(count):
            shadow.step += 1
            records.stepped(shadow, done, 1.0)

    step(5 * LOSSES_KEPT)
    records.promoted()
    steps = [record["step"] for record in said.records]
    assert sorted(steps) == list(range(5 * LOSSES_KEPT))
    assert steps[:URGENT] == list(range(5 * LOSSES_KEPT - URGENT, 5 * LOSSES_KEPT))
    away = False
    step(1)
    said.records.clear()
    records.promoted()
    assert min(record["step"] for record in said.records) == FORGOTTEN_A_STEP
    step(8 * LOSSES_KEPT)
    said.records.clear()
    records.promoted()
    assert len(said.records) == LOSSES_KEPT
