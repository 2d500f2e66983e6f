"""Appending: decided against the newest state, committed once, whatever the store does."""

import threading
import time

import pytest

from bamboo.coord.driver import Driver, create_run, read_begin
from bamboo.coord.follow import Follower
from bamboo.coord.memory_store import MemoryStore
from bamboo.core.effects import Fence, Promote, Start
from bamboo.core.events import StopReady
from bamboo.core.state import Phase
from bamboo.errors import CoreMisuse, InputError, StoreUnavailable, UnreadableRecord
from bamboo.ids import NodeId, run_id
from tests.coord.flaky import FlakyStore
from tests.core.build import POLICY, forming, joined, lost


@pytest.fixture
def store() -> MemoryStore:
    memory = MemoryStore(run_id("test"), clock=lambda: 100.0)
    assert create_run(memory, state=forming(), policy=POLICY, documents={"job": "{}"}, at_s=99.0)
    return memory


def formed(store: MemoryStore) -> Driver:
    driver = Driver(store, POLICY, "launcher")
    for index in range(4):
        driver.append(joined(f"n{index}.1"))
    return driver


def test_create_once_and_read_back(store: MemoryStore) -> None:
    again = create_run(store, state=forming(2, 2), policy=POLICY, documents={}, at_s=1.0)
    assert not again
    begin = read_begin(store)
    assert (begin.state, begin.policy, begin.at_s) == (forming(), POLICY, 99.0)
    with pytest.raises(UnreadableRecord, match="does not begin"):
        read_begin(MemoryStore(run_id("empty")))


def test_append_decides_and_records(store: MemoryStore) -> None:
    driver = formed(store)
    appended = driver.append(lost("n2.1", "n1.1"))
    assert appended.changed
    assert appended.version == 5
    assert appended.state == driver.state()
    assert appended.state.phase is Phase.FAILING_OVER
    decision = Follower().catch_up(store)[-1]
    assert decision.event == lost("n2.1", "n1.1")
    assert (decision.version, decision.now_s, decision.author) == (5, 100.0, "launcher")
    assert decision.effects == appended.effects
    assert [type(effect) for effect in decision.effects[:2]] == [Fence, Promote]
    assert decision.reason == appended.reason == appended.state.sentence
    assert appended.state.failovers[0].decided_at_s == 100.0


def test_a_stale_event_is_not_recorded(store: MemoryStore) -> None:
    driver = formed(store)
    driver.append(lost("n2.1"))
    again = driver.append(lost("n2.1"))
    assert not again.changed
    assert again.effects == ()
    assert again.reason == "node n2.1 is gone already"
    assert again.version == 5
    assert len(Follower().catch_up(store)) == 5


def test_the_log_is_followed_from_the_start(store: MemoryStore) -> None:
    formed(store)
    follower = Follower()
    decisions = follower.poll(store, timeout_s=0)
    assert [decision.version for decision in decisions] == [1, 2, 3, 4]
    assert all(isinstance(effect, Start) for effect in decisions[-1].effects)
    assert follower.state == decisions[-1].state
    assert follower.poll(store, timeout_s=0) == []


def test_a_conflict_is_decided_again(store: MemoryStore) -> None:
    """Between reading and committing somebody else reports the same loss."""
    formed(store)
    flaky = FlakyStore(store)
    other = Driver(store, POLICY, "other")

    def overtake() -> None:
        flaky.before_commit = lambda: None
        assert other.append(lost("n2.1", "n3.1")).changed

    flaky.before_commit = overtake
    appended = Driver(flaky, POLICY, "me").append(lost("n2.1", "n1.1"))
    assert not appended.changed
    assert appended.reason == "node n2.1 is gone already"
    assert other.state().version == 5


def test_a_lost_answer_is_recognised(store: MemoryStore) -> None:
    """The commit was made, its answer was lost: the event counts once, as changed."""
    formed(store)
    flaky = FlakyStore(store)

    def lose_answer() -> None:
        flaky.after_commit = lambda: None
        raise StoreUnavailable("the answer was lost")

    flaky.after_commit = lose_answer
    driver = Driver(flaky, POLICY, "me")
    appended = driver.append(lost("n2.1"))
    assert appended.changed
    assert (appended.version, driver.state().version) == (5, 5)
    assert appended.state == driver.state()


def test_a_lost_question_is_asked_again(store: MemoryStore) -> None:
    """The commit never arrived, and somebody else took the version meanwhile."""
    formed(store)
    flaky = FlakyStore(store)
    other = Driver(store, POLICY, "other")

    def lose_question() -> None:
        flaky.before_commit = lambda: None
        assert other.append(joined("extra.1")).changed
        raise StoreUnavailable("the question was lost")

    flaky.before_commit = lose_question
    appended = Driver(flaky, POLICY, "me").append(lost("n2.1"))
    assert appended.changed
    assert (appended.version, other.state().version) == (6, 6)


def test_an_outage_is_waited_out(store: MemoryStore) -> None:
    formed(store)
    flaky = FlakyStore(store)
    flaky.away = True
    back = threading.Timer(0.2, lambda: setattr(flaky, "away", False))
    back.start()
    appended = Driver(flaky, POLICY, "me").append(lost("n2.1"), deadline_s=20.0)
    back.join()
    assert appended.changed


def test_an_outage_beyond_the_deadline_is_said(store: MemoryStore) -> None:
    formed(store)
    flaky = FlakyStore(store)
    flaky.away = True
    driver = Driver(flaky, POLICY, "me")
    started_s = time.monotonic()
    with pytest.raises(StoreUnavailable, match="away"):
        driver.append(lost("n2.1"), deadline_s=0.2)
    assert 0.19 <= time.monotonic() - started_s < 5.0
    with pytest.raises(StoreUnavailable):
        driver.state()
    with pytest.raises(StoreUnavailable):
        Follower(driver).poll(flaky, timeout_s=0.0)


def test_endless_conflicts_end_at_the_deadline(store: MemoryStore) -> None:
    formed(store)
    flaky = FlakyStore(store)
    other = Driver(store, POLICY, "other")
    names = iter(range(10**6))

    def overtake() -> None:
        other.append(joined(f"extra{next(names)}.1"))

    flaky.before_commit = overtake
    with pytest.raises(StoreUnavailable, match=r"others were faster for 0\.1 s"):
        Driver(flaky, POLICY, "me").append(lost("n2.1"), deadline_s=0.1)


def test_a_mistake_is_raised_and_not_recorded(store: MemoryStore) -> None:
    driver = formed(store)
    with pytest.raises(CoreMisuse, match="nobody asked for a stop"):
        driver.append(StopReady(node=NodeId("n0.1"), step=3))
    assert driver.state().version == 4


def test_no_run_is_an_input_error() -> None:
    driver = Driver(MemoryStore(run_id("test")), POLICY, "me")
    with pytest.raises(InputError, match="no run test"):
        driver.append(joined("a.1"))
    with pytest.raises(InputError, match="no run test"):
        driver.state()
