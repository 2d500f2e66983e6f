"""A node whose decisions were lost with the store: it is fenced, and nothing that it still has to
say ends the run."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from bamboo.coord.driver import Driver, create_run
from bamboo.coord.follow import Follower
from bamboo.coord.memory_store import MemoryStore
from bamboo.core.effects import Fence
from bamboo.core.events import StopReady, StopRequested
from bamboo.core.state import Outcome, Phase
from bamboo.errors import CoreMisuse, StoreUnavailable
from bamboo.ids import NodeId, run_id
from bamboo.runtime.node import control, worker
from bamboo.runtime.node.control import Poster, follow_log
from bamboo.runtime.state.decision import Decided
from testbed.waiting import wait_until
from tests.core.build import POLICY, forming, joined

pytestmark = pytest.mark.timeout(60)
ME = NodeId("n1.1")
CONFIG = {"run": "r", "node": ME, "instance": "n1", "zone": "z1"}


@dataclass
class Node:
    """The threads of a node that follow and post; its poster is begun when the test says so."""

    store: MemoryStore
    told: list[Decided] = field(default_factory=list)
    broke: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.overtaken, self.stop = threading.Event(), threading.Event()
        self.driver = Driver(self.store, POLICY, ME)
        self.follower = Follower(self.driver)
        self.poster = Poster(
            self.store, self.driver, None, ME, self.driver.state, overtaken=self.overtaken
        )
        self.threads: list[threading.Thread] = []

    def follow(self) -> None:
        follow_log(
            follower=self.follower,
            store=self.store,
            me=ME,
            poster=self.poster,
            tell=self.told.append,
            answered=lambda: None,
            overtaken=self.overtaken,
            stop=self.stop,
        )

    def post(self) -> None:
        try:
            self.poster.work(self.stop)
        except CoreMisuse as error:
            self.broke.append(error)

    def begin(self, body: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=body))
        self.threads[-1].start()

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(10.0)


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def node(clock: list[float]) -> Iterator[Node]:
    """It alone has read that a stop is asked for; the store was given back without that."""
    store = MemoryStore(run_id("test"), clock=lambda: clock[0])
    assert create_run(store, state=forming(), policy=POLICY, documents={"job": "{}"}, at_s=99.0)
    launcher = Driver(store, POLICY, "launcher")
    for index in range(4):
        launcher.append(joined(f"n{index}.1"))
    made, giver = Node(store), Follower(Driver(store, POLICY, "n0.1"))
    for follower in (giver, made.follower):
        for _ in range(2):
            follower.poll(store, timeout_s=0.0)
    launcher.append(StopRequested(outcome=Outcome.STOPPED, reason="asked to"))
    made.follower.poll(store, timeout_s=0.0)
    store.wipe()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            giver.poll(store, timeout_s=0.0)
        clock[0] += POLICY.gone_s
    yield made
    made.end()


def test_its_word_about_a_lost_decision_breaks_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is posted before the thread that follows the log has found out."""
    monkeypatch.setattr(control, "OVERTAKEN_S", 30.0)
    node.poster.event(StopReady(node=ME, step=3))
    node.begin(node.post)
    wait_until(lambda: node.driver._met, what="the first try")
    node.begin(node.follow)
    wait_until(node.overtaken.is_set, what="that it is overtaken")
    assert any(isinstance(effect, Fence) for d in node.told for effect in d.effects)
    node.poster.event(StopReady(node=ME, step=4))
    node.poster.metric({"kind": "step", "step": 4})
    assert node.poster.drained(10.0), "what it has to say is dropped"
    assert not node.broke
    worker._say_fault(node.driver, CONFIG, CoreMisuse("StopReady, but no stop"), node.overtaken)
    worker._say_fault(node.driver, CONFIG, RuntimeError("after it"), node.overtaken)
    assert node.driver.state().phase is not Phase.FINISHED
    assert not node.driver.state().stop_ready


def test_a_mistake_of_who_is_not_overtaken_is_a_fault(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "OVERTAKEN_S", 0.01)
    monkeypatch.setattr(worker, "OVERTAKEN_S", 0.01)
    node.poster.event(StopReady(node=ME, step=3))
    node.post()
    (error,) = node.broke
    assert isinstance(error, CoreMisuse)
    worker._say_fault(node.driver, CONFIG, error, node.overtaken)
    state = node.driver.state()
    assert (state.phase, state.outcome) == (Phase.FINISHED, Outcome.FAULT)
