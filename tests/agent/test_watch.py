"""The agent's views of the run, one step at a time, with a clock that a test moves."""

import json
import queue
import threading
import time

import pytest

from bamboo.agent.notices import NoticeWatch
from bamboo.agent.outcome import Fenced, RunEnded
from bamboo.agent.watch import Heartbeat, LogWatch, PeerWatch
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.open import open_store
from bamboo.coord.writes import Writes
from bamboo.core.events import NodeJoined, NoticeReceived, PeerLost, RebalanceAdvised, RunFailed
from bamboo.core.liveness.outage import Writing
from bamboo.core.state import NodeStatus, Outcome, initial_state
from bamboo.errors import StoreUnavailable
from bamboo.ids import InstanceId, NodeId, ZoneId, node_id
from bamboo.ports import Identity, Notice
from bamboo.topology.grid import Grid
from testbed.store_server import start_store
from testbed.waiting import wait_until
from tests.agent.world import HASTY, POLICY, RUN, Service, join, make_store, state_of
from tests.coord.flaky import FlakyStore


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock):
    return make_store(policy=HASTY, clock=clock)


def peer_watch(store, node: NodeId, writes: Writes | None = None) -> PeerWatch:
    """`writes` None: of an observer whose every write succeeds."""
    driver = Driver(store, HASTY, node)
    return PeerWatch(
        node=node,
        store=store,
        driver=driver,
        policy=HASTY,
        state=lambda: state_of(store),
        writes=writes or Sure(),
        every_s=0.02,
    )


class Sure(Writes):
    def __init__(self) -> None:
        super().__init__(every_s=0.02)

    def now(self) -> Writing:
        return Writing(for_s=1e9)


def test_only_the_peer_that_stands_still_is_lost(store, clock) -> None:
    me, frozen = join(store, 1), join(store, 2)
    standby = NodeId("i-3.0")
    Driver(store, HASTY, standby).append(
        NodeJoined(
            node=standby,
            instance=InstanceId("i-3"),
            zone=ZoneId("us-east-1a"),
            endpoint="ipc:///nowhere/3",
            pid=3,
        )
    )
    watch = peer_watch(store, me)
    for beat in range(40):
        clock.now_s += 0.1
        store.beat(frozen, '{"progress": 5}')
        store.beat(standby, f'{{"progress": {beat}}}')
        watch.judge_once()
    state = state_of(store)
    assert state.node(frozen).status is NodeStatus.GONE
    assert state.node(standby).status.live
    # It never judges itself, though it never beat here.
    assert state.node(me).status.live


def test_an_outage_of_the_store_makes_nobody_gone(store, clock) -> None:
    me, peer = join(store, 1), join(store, 2)
    watch = peer_watch(store, me)
    store.beat(peer, '{"progress": 1}')
    watch.judge_once()
    clock.now_s += 100.0
    watch.judge_once()
    clock.now_s += HASTY.gone_s / 2
    store.beat(peer, '{"progress": 2}')
    watch.judge_once()
    assert state_of(store).node(peer).status.live


def test_a_store_that_refuses_accuses_nobody_until_a_lease_after(store, clock) -> None:
    """It is read all the time. The peer is gone indeed: that is found one lease after."""
    me, peer = join(store, 1), join(store, 2)
    flaky, writes = FlakyStore(store), Writes(every_s=0.05, clock=clock)
    outcomes: queue.Queue = queue.Queue()
    heart = Heartbeat(
        node=me,
        store=flaky,
        payload=lambda: json.dumps({"progress": int(clock.now_s * 1000)}),
        beat_s=0.05,
        store_away_s=3600.0,
        outcomes=outcomes,
        writes=writes,
    )
    watch = peer_watch(flaky, me, writes)

    def turns(length_s: float) -> None:
        for _ in range(round(length_s / 0.05)):
            clock.now_s += 0.05
            heart.beat()
            watch.judge_once()

    turns(2 * HASTY.gone_s)
    assert not state_of(store).node(peer).status.live, "without an outage it is found"
    store = make_store(policy=HASTY, clock=clock)
    me, peer = join(store, 1), join(store, 2)
    flaky = FlakyStore(store)
    heart._store, watch = flaky, peer_watch(flaky, me, writes)
    store.beat(peer, '{"progress": 1}')
    turns(0.8 * HASTY.gone_s)
    flaky.refuses = True
    turns(3 * HASTY.gone_s)
    assert state_of(store).node(peer).status.live
    flaky.refuses = False
    turns(0.9 * HASTY.gone_s)
    assert state_of(store).node(peer).status.live, "the first word after it is no loss"
    turns(0.3 * HASTY.gone_s)
    assert not state_of(store).node(peer).status.live, "a true loss is found after one lease"


def test_a_loss_that_the_store_did_not_take_at_once_is_judged_anew(store, clock) -> None:
    """Its outage may have begun just after our own last beat: the peer beats again before us."""
    me, peer = join(store, 1), join(store, 2)
    flaky = FlakyStore(store)
    watch = peer_watch(flaky, me)
    store.beat(peer, '{"progress": 1}')
    watch.judge_once()
    for _ in range(5):
        watch.judge_once()
        clock.now_s += 0.1

    def refuse_once() -> None:
        flaky.before_commit = lambda: None
        raise StoreUnavailable("READONLY")

    flaky.before_commit = refuse_once
    with pytest.raises(StoreUnavailable):
        watch.judge_once()
    store.beat(peer, '{"progress": 2}')
    watch.judge_once()
    assert state_of(store).node(peer).status.live


def test_a_jump_of_the_wall_clock_makes_nobody_gone(tmp_path, monkeypatch) -> None:
    """Leases are stamped and judged by the store's clock, whatever this machine's says."""
    server = start_store(tmp_path)
    try:
        real = open_store(server.url, RUN)
        state = initial_state(run=RUN, grid=Grid(pipelines=1, stages=2), redundancy="stash")
        assert create_run(real, state=state, policy=HASTY, documents={}, at_s=0.0)
        me, peer = join(real, 1), join(real, 2)
        watch, honest, jumps = peer_watch(real, me), time.time, [0.0, 3600.0, -3600.0, 60.0] * 10
        for beat, ahead_s in enumerate(jumps):
            monkeypatch.setattr(time, "time", lambda ahead_s=ahead_s: honest() + ahead_s)
            real.beat(peer, f'{{"progress": {beat}}}')
            watch.judge_once()
        assert state_of(real).node(peer).status.live
        # The peer stands still from now on: that is seen all the same.
        wait_until(
            lambda: watch.judge_once() or not state_of(real).node(peer).status.live,
            what="the loss",
        )
        real.close()
    finally:
        server.stop()


def test_whoever_watches_from_outside_sees_when_the_store_answers(store, tmp_path) -> None:
    heard = tmp_path / "run" / "heard"
    outcomes: queue.Queue = queue.Queue()
    heart = Heartbeat(
        node=join(store, 1),
        store=store,
        payload=lambda: "",
        beat_s=0.005,
        store_away_s=0.05,
        outcomes=outcomes,
        writes=Writes(every_s=0.05),
        heard=heard,
    )
    thread = threading.Thread(target=heart.run, args=(threading.Event(),))
    thread.start()
    heard.parent.mkdir()  # only now: that it could not be touched before has ended nothing
    wait_until(heard.exists, what="it was heard")
    store.close()
    assert "has taken no beat" in outcomes.get(timeout=10).why
    thread.join(timeout=10)
    heard.unlink()
    heart.run(threading.Event())
    assert not heard.exists(), "a store that does not answer was not heard"


def log_watch(store, node: NodeId, outcomes: queue.Queue) -> LogWatch:
    driver = Driver(store, HASTY, node)
    return LogWatch(node=node, store=store, driver=driver, state=driver.state(), outcomes=outcomes)


def test_a_fence_for_another_node_is_not_mine(store) -> None:
    me, peer = join(store, 1), join(store, 2)
    outcomes: queue.Queue = queue.Queue()
    watch = log_watch(store, me, outcomes)
    Driver(store, HASTY, me).append(PeerLost(node=peer, reporter=me, cause="disconnect"))
    watch.follow(timeout_s=0.0)
    assert outcomes.empty()
    assert watch.state.node(peer).status is NodeStatus.GONE
    watch.follow(timeout_s=0.0)
    other = log_watch(store, peer, outcomes)
    other.follow(timeout_s=0.0)
    assert outcomes.get_nowait() == Fenced()


def test_the_end_of_the_run_is_heard_once(store) -> None:
    me = join(store, 1)
    outcomes: queue.Queue = queue.Queue()
    watch = log_watch(store, me, outcomes)
    Driver(store, HASTY, "test").append(
        RunFailed(reporter="test", outcome=Outcome.FAULT, reason="over")
    )
    watch.follow(timeout_s=0.0)
    watch.follow(timeout_s=0.0)
    assert outcomes.get_nowait() == RunEnded()
    assert outcomes.empty()


def test_a_notice_is_said_again_while_the_store_is_away() -> None:
    store = make_store()
    me = join(store, 1)
    join(store, 2)
    driver = Driver(store, POLICY, me)
    answers = iter([StoreUnavailable("away")])
    calls: list[float] = []

    def append(event, *, deadline_s=0.0):
        calls.append(deadline_s)
        error = next(answers, None)
        if error is not None:
            raise error
        return driver.append(event, deadline_s=deadline_s)

    service = Service(Identity(instance=InstanceId("i-1"), zone=ZoneId("us-east-1a")))
    watch = NoticeWatch(node=me, metadata=service, append=append, poll_s=0.01)
    watch.look()
    assert calls == []
    service.pending = Notice(id="n1", at_s=2_000_000_000.0)
    for _ in range(3):
        watch.look()
    assert len(calls) == 2
    assert state_of(store).node(me).notice_deadline_s == 2_000_000_000.0


def test_advice_is_said_once_and_not_beside_a_notice() -> None:
    store = make_store()
    service = Service(Identity(instance=InstanceId("i-1"), zone=ZoneId("us-east-1a")), advice=True)
    said: list[object] = []
    me = node_id(InstanceId("i-1"), 0)
    driver = Driver(store, POLICY, me)

    def append(event, *, deadline_s=0.0):
        said.append(event)
        return driver.append(event, deadline_s=deadline_s)

    watch = NoticeWatch(node=me, metadata=service, append=append, poll_s=0.01)
    watch.look()
    assert said == [RebalanceAdvised(node=me)], "the node has not joined: it is said again"
    join(store, 1)
    join(store, 2)
    for _ in range(3):
        watch.look()
    assert said == [RebalanceAdvised(node=me)] * 2
    assert state_of(store).node(me).advised
    service.pending = Notice(id="n1", at_s=2_000_000_000.0)
    for _ in range(3):
        watch.look()
    assert said[2:] == [NoticeReceived(node=me, deadline_s=2_000_000_000.0)]
    another = NoticeWatch(node=me, metadata=service, append=append, poll_s=0.01)
    for _ in range(3):
        another.look()
    assert RebalanceAdvised(node=me) not in said[3:]


def test_a_notice_watch_stops_when_it_is_told() -> None:
    service = Service(Identity(instance=InstanceId("i-1"), zone=ZoneId("us-east-1a")))
    watch = NoticeWatch(
        node=NodeId("i-1.0"),
        metadata=service,
        append=Driver(make_store(), POLICY, "i-1.0").append,
        poll_s=0.01,
    )
    stop = threading.Event()
    thread = threading.Thread(target=watch.run, args=(stop,))
    thread.start()
    stop.set()
    thread.join(timeout=5)
    assert not thread.is_alive()
