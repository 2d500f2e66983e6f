"""What a node's lease says of its life: the trainer's turns, not those of the thread that tells."""

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bamboo.coord.writes import Writes
from bamboo.core.state import Phase
from bamboo.ports import REFUSED, TAKEN
from bamboo.runtime.node import faults
from bamboo.runtime.node.control import report_to_agent
from testbed.simulated import World
from testbed.waiting import wait_until
from tests.runtime.test_interleavings import job

pytestmark = pytest.mark.timeout(60)
BEAT_S = 0.01
PATIENCE_S = 0.3


class Line:
    """The agent's end of the line: reads all, and keeps the counters."""

    def __init__(self, progress: Callable[[], dict[str, Any]]) -> None:
        self.counters: list[int] = []
        self.taken: list[bool] = []
        self.gone = threading.Event()
        self.stop = threading.Event()
        self._mine, self._theirs = socket.socketpair()
        self._threads = [
            threading.Thread(target=self._read),
            threading.Thread(
                target=lambda: report_to_agent(
                    self._theirs,
                    progress,
                    beat_s=BEAT_S,
                    patience_s=PATIENCE_S,
                    agent_gone=self.gone.set,
                    taken=self.taken.append,
                    stop=self.stop,
                )
            ),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        received = b""
        while part := self._mine.recv(65536):
            *lines, received = (received + part).split(b"\n")
            self.counters += [json.loads(line)["progress"] for line in lines]

    def answer(self, said: bytes) -> None:
        self._mine.sendall(said)

    def close(self) -> None:
        self.stop.set()
        self._threads[1].join(10)
        self._mine.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(10)
        self._mine.close()
        self._theirs.close()

    def beats(self, count: int) -> list[int]:
        """The counters of so many beats from now on."""
        began = len(self.counters)
        wait_until(lambda: len(self.counters) >= began + count, what="beats", timeout_s=30)
        return self.counters[began:]


class Turning:
    turns = 0

    def progress(self) -> dict[str, Any]:
        return {"turns": self.turns, "step": 3}


@pytest.fixture
def turning() -> Turning:
    return Turning()


@pytest.fixture
def line(turning: Turning) -> Iterator[Line]:
    made = Line(turning.progress)
    yield made
    made.close()


def test_a_trainer_that_stands_still_stops_the_counter(turning: Turning, line: Line) -> None:
    """Beats come all the same: what is stuck is the trainer, not the process."""
    wait_until(lambda: len(set(line.beats(20))) == 1, what="it stands still", timeout_s=30)
    turning.turns += 1
    wait_until(lambda: len(set(line.beats(5))) > 1, what="it grows again", timeout_s=30)
    assert not line.gone.is_set()


def test_one_long_operation_is_no_standstill(line: Line) -> None:
    """The first counters grow with each beat, though the trainer is in its first turn."""
    wait_until(lambda: len(line.counters) >= 3, what="beats", timeout_s=30)
    assert line.counters[:3] == [1, 2, 3]


def test_what_the_agent_answers_is_heard_and_hurries_no_beat(line: Line) -> None:
    began_s, first = time.monotonic(), len(line.counters)
    for said in (TAKEN, TAKEN, REFUSED, TAKEN) * 5:
        heard = len(line.taken)
        line.answer(said)
        wait_until(lambda heard=heard: len(line.taken) > heard, what="it is heard", timeout_s=30)
        assert line.taken[-1] is (said == TAKEN)
    beats_s = (len(line.counters) - first) * BEAT_S
    assert beats_s <= time.monotonic() - began_s + 2 * BEAT_S
    assert not line.gone.is_set()


def test_a_log_that_takes_nothing_is_away_though_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits for a decision that cannot be written is no standstill, nor just after."""
    now_s = 100.0
    monkeypatch.setattr(faults.time, "monotonic", lambda: now_s)
    watch = faults.LogWatch(step_timeout_s=2.0)
    for _ in range(30):
        now_s += 0.1
        watch.answered()
        watch.taken(True)
    assert not watch.excuses("here")
    for _ in range(30):
        now_s += 0.1
        watch.answered()
        watch.taken(False)
        assert watch.away()
        assert watch.excuses("here")
    for _ in range(20):
        watch.taken(True)
        assert not watch.away()
        assert watch.excuses("here")
        now_s += 0.1
        watch.answered()
    now_s += 0.1
    watch.answered()
    assert not watch.excuses("here")


@pytest.mark.parametrize("beat_s", [0.2, 2.0, 60.0])
def test_a_log_is_there_however_rarely_its_node_beats(
    beat_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two beats nothing is written, which is no outage; a refused beat begins one."""
    now_s = 100.0
    monkeypatch.setattr(faults.time, "monotonic", lambda: now_s)
    writes = Writes(every_s=beat_s, clock=lambda: now_s)
    watch = faults.LogWatch(step_timeout_s=3 * beat_s)

    def pass_beat(told: Callable[[], None]) -> None:
        nonlocal now_s
        told()
        for _ in range(int(beat_s / 0.2)):
            now_s += 0.2
            watch.answered()
            watch.taken(writes.now().succeeds(every_s=beat_s))

    for _ in range(5):
        pass_beat(writes.written)
    assert not watch.excuses("here")
    pass_beat(writes.refused)
    assert watch.away()
    for _ in range(4):
        assert watch.excuses("here")
        pass_beat(writes.written)
    pass_beat(writes.written)
    assert not watch.excuses("here")


def test_a_log_that_comes_and_goes_excuses_no_standstill_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, step_timeout_s = 100.0, 2.0
    monkeypatch.setattr(faults.time, "monotonic", lambda: now_s)
    watch = faults.LogWatch(step_timeout_s=step_timeout_s)

    def excused_for(where: str, *, most_s: float, refused: int) -> float:
        """One in `refused` tenths of a second the store takes nothing."""
        nonlocal now_s
        began_s, turn = now_s, 0
        while watch.excuses(where) and now_s - began_s < most_s:
            now_s, turn = now_s + 0.1, turn + 1
            watch.taken(turn % refused > 0)
            watch.answered()
        return now_s - began_s

    for where in ("0.0 step 3 at F0", "0.0 step 4 at B1"):
        for refused in (2, 10):
            lasted_s = excused_for(where, most_s=100.0, refused=refused)
            assert 3 * step_timeout_s <= lasted_s <= 9 * step_timeout_s
            where += " again"
    assert excused_for("elsewhere", most_s=40.0, refused=1) == pytest.approx(40.0, abs=0.2), (
        "a store that takes nothing at all"
    )


def test_a_trainer_turns_while_it_waits() -> None:
    """Before there is a decision, while it holds, when it has nothing to train."""
    settings = job(stages=2)
    world = World(settings, random.Random(1), standbys=1)
    node, standby = world.nodes[next(iter(world.nodes))], world.nodes[world.standbys[0]]

    def turns() -> int:
        before = node.trainer.progress()["turns"]
        node.turn(3)
        turned: int = node.trainer.progress()["turns"] - before
        return turned

    assert turns() > 0
    world.run(until=lambda: world.operations > 5)
    assert world.state.phase is Phase.RUNNING
    node.trainer.executor.hold_steps(True)
    assert turns() > 0
    node.trainer.executor.freeze()
    assert turns() > 0
    before = standby.trainer.progress()["turns"]
    standby.turn(1)
    assert standby.trainer.progress()["turns"] > before
