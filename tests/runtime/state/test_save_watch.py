"""When a member says that state without a home must be stored, and begins no step for it."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bamboo.core.events import SaveDue
from bamboo.core.rounds import Emergency
from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.runtime.state.decision import Decided
from bamboo.runtime.state.save_watch import SaveWatch
from tests.core.build import running

ME = NodeId("n00.1")
EMERGENCY = Emergency(since=7, by_s=1010.0, stages=(0,))
"""By a clock of the store that is 1,000 s ahead of the node's."""


@dataclass
class World:
    """A node that owns one slot and has taken two steps of 3 s each; its clock stands at 0."""

    now_s: float = 0.0
    said: list[SaveDue] = field(default_factory=list)
    run: Any = field(default_factory=lambda: SimpleNamespace(slot="0.0", owner=True, cursor=0))

    def __post_init__(self) -> None:
        executor, outbox = SimpleNamespace(owned={"0.0": self.run}), SimpleNamespace()
        outbox.event = self.said.append
        self.watch = SaveWatch(me=ME, executor=cast(Any, executor), outbox=cast(Any, outbox))
        self.watch.clock = lambda: self.now_s
        for at_s in (-6.0, -3.0, 0.0):
            self.now_s = at_s
            self.watch.stepped(self.run)

    def read(self, state: State) -> None:
        self.watch.read(Decided(state=state, effects=(), read_s=self.now_s, now_s=self.now_s + 1e3))

    def at(self, now_s: float, *, cursor: int = 0) -> tuple[bool, list[bool]]:
        """Whether it holds, and what it has said: whether at once."""
        self.now_s, self.run.cursor = now_s, cursor
        self.watch.serve()
        return self.watch.holding, [event.at_once for event in self.said]


def state(**changes: Any) -> State:
    return running(1, 2).having(emergency=EMERGENCY, **changes)


def test_no_step_is_begun_that_would_end_too_late() -> None:
    world = World()
    world.read(state())
    assert world.at(6.9) == (False, []), "another step of 3 s ends in time"
    assert world.at(7.1, cursor=2) == (True, []), "this one is finished first"
    assert world.at(9.0) == (True, [False])
    assert world.at(9.5) == (True, [False]), "it is said once"
    world.read(state())
    assert world.at(9.6) == (True, [False]), "whatever else is decided"
    assert world.at(10.0) == (True, [False, True])
    world.read(state().having(emergency=None))
    assert world.at(10.1)[0] is False


def test_a_step_that_takes_too_long_is_not_waited_for() -> None:
    world = World()
    world.read(state())
    assert world.at(9.9, cursor=2) == (True, [])
    assert world.at(10.0, cursor=2) == (True, [True])


def test_all_hold_before_an_owner_is_taken_and_stay_so_until_all_have_stopped() -> None:
    world = World()
    found = Emergency(since=7, by_s=1020.0, stages=(0,), losses=((1018.0, 1010.0),))
    world.read(running(1, 2).having(emergency=found))
    assert world.at(6.9) == (False, [])
    assert world.at(7.1, cursor=2) == (True, [])
    assert world.at(10.0, cursor=2) == (True, [True])
    late = World(now_s=11.0)
    late.read(running(1, 2).having(emergency=found))
    assert late.at(17.5) == (False, []), "it is recovered first"
    assert late.at(18.0) == (True, [False])


def test_a_stop_finds_its_own_step_unless_that_takes_too_long() -> None:
    world = World()
    world.read(state(stop_reason="enough"))
    assert world.at(9.9) == (False, []), "who holds would never come to the last step"
    assert world.at(10.0) == (False, [True])


@pytest.mark.parametrize("over", [{"finished": (ME,)}, {"emergency": None}, {"failed": True}])
def test_nothing_is_said_where_nothing_can_be_stored_or_the_final_state_is(
    over: dict[str, Any],
) -> None:
    world = World()
    if over.pop("failed", False):
        over["emergency"] = Emergency(since=7, by_s=1010.0, stages=(0,), failed=True)
    world.read(state().having(**over))
    assert world.at(11.0) == (False, [])
