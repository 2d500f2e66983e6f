"""A slot stands still for its taker, for a moment, and for nobody else."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bamboo.core.events import Yielded
from bamboo.core.state import Move
from bamboo.ids import NodeId
from bamboo.runtime.state.boundary import WAITING_SHARE, Boundaries
from bamboo.runtime.step.roster import Roster
from bamboo.topology.slots import Slot

ME, TAKER = NodeId("n0"), NodeId("n9")
CALM_S = 2.0
MINE, OTHER = Slot(pipeline=0, stage=0), Slot(pipeline=0, stage=3)


class Bench:
    """Boundaries of a node that owns two slots, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s, self.said = 100.0, list[Any]()
        runs = {slot: SimpleNamespace(slot=slot, owner=True, step=7, cursor=0) for slot in SLOTS}
        self.runs = cast("dict[Slot, Any]", runs)
        mailbox: Any = SimpleNamespace(safe_step=7)
        self.executor: Any = Roster(mailbox=mailbox, last_step=99)
        self.executor.owned = self.runs
        outbox: Any = SimpleNamespace(event=self.said.append)
        self.boundaries = Boundaries(me=ME, executor=self.executor, mailbox=mailbox, outbox=outbox)
        self.boundaries.clock = lambda: self.now_s

    def step(self, took_s: float, *, awaited: bool, calm_s: float = CALM_S) -> None:
        """The slot takes a calm step, and one that lasts `took_s`."""
        for gap_s in (0.0, calm_s):
            self.now_s += gap_s
            self.boundaries.stepped(self.runs[MINE], ())
        self.now_s += took_s
        self.boundaries.stepped(self.runs[MINE], {MINE} if awaited else ())

    def still(self) -> set[Slot]:
        """Who stands still after one more turn of the loop."""
        self.boundaries.serve()
        return set(self.executor.yielding)


SLOTS = (MINE, OTHER)
MOVE = Move(slot=MINE, source=ME, receiver=TAKER, since=5)


def test_a_slot_waits_for_its_taker_for_a_share_of_the_step() -> None:
    bench = Bench()
    bench.step(2.0, awaited=True)
    assert bench.still() == {MINE}
    bench.now_s += 0.99 * WAITING_SHARE * 2.0
    assert bench.still() == {MINE}
    bench.now_s += 0.02 * WAITING_SHARE * 2.0
    assert bench.still() == set()


def test_a_step_that_a_loss_hit_is_no_measure() -> None:
    bench = Bench()
    bench.step(60.0, awaited=True)
    bench.now_s += 1.01 * WAITING_SHARE * CALM_S
    assert bench.still() == set()


def test_who_has_seen_one_step_waits_for_nobody() -> None:
    bench = Bench()
    for _ in range(2):
        bench.now_s += 2.0
        bench.boundaries.stepped(bench.runs[MINE], {MINE})
        assert bench.still() == set()


def test_what_was_before_another_layout_is_no_measure() -> None:
    bench = Bench()
    bench.step(2.0, awaited=False)
    bench.boundaries.forget()
    bench.boundaries.stepped(bench.runs[MINE], {MINE})
    assert bench.still() == set()


def test_it_waits_once_for_a_taker_and_again_for_the_next_one() -> None:
    bench = Bench()
    bench.step(2.0, awaited=True)
    bench.now_s += 1.0
    bench.step(2.0, awaited=True)
    assert bench.still() == set()
    bench.boundaries.move([], ())
    bench.step(2.0, awaited=True)
    assert bench.still() == {MINE}


def test_nobody_waits_for_nobody() -> None:
    bench = Bench()
    bench.step(2.0, awaited=False)
    assert bench.still() == set()


def test_a_replica_waits_for_nobody() -> None:
    bench = Bench()
    bench.runs[MINE].owner = False
    bench.step(2.0, awaited=True)
    assert bench.still() == set()


def test_it_stands_still_until_it_has_changed_hands_once_that_is_decided() -> None:
    bench = Bench()
    bench.step(2.0, awaited=True)
    bench.boundaries.move([MOVE], {MINE})
    bench.now_s += 2.0
    assert bench.still() == {MINE}
    assert bench.said == [Yielded(node=ME, slot=MINE, since=5, step=7)]
    del bench.runs[MINE]
    bench.boundaries.move([], ())
    assert bench.still() == set()


@pytest.mark.parametrize(("awaited", "still"), [((), set()), ((MINE,), {MINE})])
def test_a_decision_after_which_nobody_comes_lets_it_go_on(
    awaited: tuple[Slot, ...], still: set[Slot]
) -> None:
    bench = Bench()
    bench.step(2.0, awaited=True)
    bench.boundaries.move([], awaited)
    assert bench.still() == still
