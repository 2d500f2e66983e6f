"""An agent's whole life over a store in memory: every way in which it ends, and what it says."""

import json
import os
import socket
from itertools import count
from pathlib import Path

import pytest

from bamboo.agent.outcome import EXIT_DONE, EXIT_FENCED, EXIT_ORPHANED, EXIT_WORKER
from bamboo.coord.driver import Driver
from bamboo.core.events import FaultScope, NodeLeft, PeerLost, RunFailed, StopRequested
from bamboo.core.state import NodeStatus, Outcome, Phase
from bamboo.errors import BambooError, StoreRefused, StoreUnavailable
from bamboo.ports import FENCED_STATUS, REFUSED, STORE_AWAY_STATUS, TAKEN, Notice
from testbed.waiting import wait_until
from tests.agent.test_watch import peer_watch
from tests.agent.world import (
    HASTY,
    POLICY,
    RUN,
    Agent,
    NeverClosed,
    join,
    make_store,
    state_of,
    wait_for,
)
from tests.coord.flaky import FlakyStore
from tests.core.build import failed


@pytest.fixture
def store():
    return make_store()


def say(store, event) -> None:
    Driver(store, POLICY, "test").append(event)


def end(store) -> None:
    say(store, RunFailed(reporter="test", outcome=Outcome.FAULT, reason="the test is over"))


def test_the_worker_is_told_all_that_it_needs(store, tmp_path) -> None:
    agent = Agent(store, tmp_path, run_dir="/run", scratch_dir="/scratch/i-1")
    config = agent.worker().config
    assert config == {
        "run": RUN,
        "node": "i-1.0",
        "instance": "i-1",
        "zone": "us-east-1a",
        "store_url": "memory:",
        "socket_dir": str(tmp_path),
        "run_dir": "/run",
        "run_url": "",
        "start_url": "",
        "bind_host": "10.0.0.4",
        "agent_socket": str(tmp_path / "a-i-1.0.sock"),
        "scratch_dir": "/scratch/i-1",
    }
    join(store, 1)
    end(store)
    assert agent.status() == EXIT_DONE


def test_it_beats_with_what_its_worker_reports(store, tmp_path) -> None:
    agent = Agent(store, tmp_path)
    worker = agent.worker()
    wait_until(lambda: agent.node in store.leases()[1], what="a first beat")
    assert json.loads(store.leases()[1][agent.node].payload)["progress"] == 0
    payload = json.dumps({"progress": 7, "step": 3, "ops": {"F": 2}, "tensor_bytes": 5})
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(worker.config["agent_socket"])
        line.sendall(b"not json\n" + payload.encode() + b"\n" + b'{"progress": 8')
        wait_until(
            lambda: store.leases()[1][agent.node].payload == payload, what="the payload is beaten"
        )
        join(store, 1)
        end(store)
        assert agent.status() == EXIT_DONE
        assert line.recv(64) == TAKEN
        assert line.recv(64) == b""


def test_a_node_of_which_the_store_takes_nothing_is_the_only_one_that_is_lost(tmp_path) -> None:
    """As of a login that may not write any more. It reads that it is gone, and accuses nobody."""
    store = make_store(policy=HASTY)
    flaky = FlakyStore(store)
    agent = Agent(store, tmp_path, opener=lambda: NeverClosed(flaky))
    worker = agent.worker()
    join(store, 1)
    peer = join(store, 2)
    wait_until(lambda: agent.node in store.leases()[1], what="a first beat")
    flaky.refuses = True
    watch, beats = peer_watch(store, peer), count()

    def is_gone() -> bool:
        store.beat(peer, json.dumps({"progress": next(beats)}))
        watch.judge_once()
        return state_of(store).node(agent.node).status is NodeStatus.GONE

    wait_until(is_gone, what="the others say that it is gone")
    assert agent.status() == EXIT_FENCED
    assert worker.killed
    assert state_of(store).node(peer).status.live


def test_it_tells_its_worker_whether_the_store_takes_what_is_written(store, tmp_path) -> None:
    """A worker may write nothing for long, and must not take an outage for a standstill."""
    flaky = FlakyStore(store)
    agent = Agent(store, tmp_path, opener=lambda: NeverClosed(flaky))
    worker = agent.worker()
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(5.0)
        line.connect(worker.config["agent_socket"])

        def answer() -> bytes:
            line.sendall(b'{"progress": 1}\n')
            return line.recv(64)

        wait_until(lambda: answer() == TAKEN, what="the store takes a beat")
        flaky.refuses = True
        wait_until(lambda: answer() == REFUSED, what="it refuses")
        flaky.refuses = False
        wait_until(lambda: answer() == TAKEN, what="it takes them again")
    join(store, 1)
    end(store)
    assert agent.status() == EXIT_DONE
    assert not (tmp_path / "a-i-1.0.sock").exists()


def test_a_worker_that_ends_is_a_loss_that_the_agent_reports(store, tmp_path) -> None:
    agent = Agent(store, tmp_path)
    worker = agent.worker()
    join(store, 1)
    join(store, 2)
    worker.status = -11
    assert agent.status() == EXIT_WORKER
    state = state_of(store)
    assert state.node(agent.node).status is NodeStatus.GONE
    assert "its worker ended" in state.sentence


def test_a_worker_that_breaks_before_it_joins_ends_the_run(store, tmp_path) -> None:
    agent = Agent(store, tmp_path)
    agent.worker().status = 1
    assert agent.status() == EXIT_WORKER
    state = state_of(store)
    assert (state.phase, state.outcome) == (Phase.FINISHED, Outcome.FAULT)
    assert "i-1.0 failed: its worker ended with status 1 before it joined" in state.sentence


@pytest.mark.parametrize("status", [1, 0, 255, -9])
def test_a_worker_that_breaks_before_it_joins_a_run_in_training_ends_none(
    store, tmp_path, status
) -> None:
    join(store, 2)
    join(store, 3)
    agent = Agent(store, tmp_path)
    for _ in range(3 if status < 0 else 1):
        agent.worker().status = status
    assert agent.status() == EXIT_WORKER
    state = state_of(store)
    assert state.phase is Phase.RUNNING
    assert state.node(agent.node).status is NodeStatus.GONE
    assert "before it joined" in state.sentence


def test_a_worker_that_has_said_its_fault_is_not_spoken_of_again(store, tmp_path) -> None:
    join(store, 2)
    join(store, 3)
    agent = Agent(store, tmp_path)
    worker = agent.worker()
    say(store, failed("i-1.0", FaultScope.RUN, "its data differ"))
    before = state_of(store)
    worker.status = 1
    assert agent.status() == EXIT_FENCED
    assert state_of(store) == before


def test_a_machine_that_starts_no_worker_leaves_by_name(store, tmp_path) -> None:
    class Broken:
        def start(self, *, config):
            raise BambooError("no more processes")

    join(store, 2)
    join(store, 3)
    agent = Agent(store, tmp_path, starter=Broken())
    assert agent.status() == EXIT_WORKER
    state = state_of(store)
    assert state.phase is Phase.RUNNING
    assert "no worker can be started: no more processes" in state.sentence


def test_a_worker_that_is_killed_before_it_joins_is_started_again(store, tmp_path) -> None:
    agent = Agent(store, tmp_path)
    agent.worker().status = -9
    second = agent.worker()
    assert second.config["node"] == "i-1.0"
    second.status = -9
    third = agent.worker()
    third.status = -9
    assert agent.status() == EXIT_WORKER
    assert agent.starter.count == 3
    state = state_of(store)
    assert state.node(agent.node).status is NodeStatus.GONE
    assert "was killed 3 times before it joined, by signal 9; has its machine" in state.sentence
    assert state.phase is Phase.FORMING, "another machine may have memory enough"


def test_a_worker_that_could_not_join_for_the_stores_sake_ends_no_run(store, tmp_path) -> None:
    agent = Agent(store, tmp_path)
    for _ in range(3):
        agent.worker().status = STORE_AWAY_STATUS
    assert agent.status() == EXIT_WORKER
    assert agent.starter.count == 3
    assert state_of(store).phase is Phase.FORMING


def test_a_worker_that_was_fenced_before_the_store_knew_it_ends_no_run(store, tmp_path) -> None:
    """The store lost that it had joined: to the others it was never there."""
    agent = Agent(store, tmp_path)
    agent.worker().status = FENCED_STATUS
    assert agent.status() == EXIT_WORKER
    assert agent.starter.count == 1
    assert state_of(store).phase is Phase.FORMING


def test_a_worker_that_leaves_after_the_end_is_in_order(store, tmp_path) -> None:
    agent = Agent(store, tmp_path, leave_s=10.0)
    worker = agent.worker()
    join(store, 1)
    end(store)
    say(store, NodeLeft(node=agent.node, reason="the run is over"))
    worker.status = 0
    assert agent.status() == EXIT_DONE
    assert not worker.killed


def test_a_worker_that_does_not_leave_is_killed(store, tmp_path) -> None:
    agent = Agent(store, tmp_path)
    worker = agent.worker()
    join(store, 1)
    end(store)
    assert agent.status() == EXIT_DONE
    assert worker.killed


def test_a_fenced_node_kills_its_worker_at_once(store, tmp_path) -> None:
    agent = Agent(store, tmp_path)
    worker = agent.worker()
    join(store, 1)
    peer = join(store, 2)
    say(store, PeerLost(node=agent.node, reporter=peer, cause="disconnect"))
    assert agent.status() == EXIT_FENCED
    assert worker.killed


def test_a_peer_whose_progress_stands_still_is_reported(tmp_path) -> None:
    store = make_store(policy=HASTY)
    agent = Agent(store, tmp_path)
    agent.worker()
    join(store, 1)
    peer = join(store, 2)

    def beat_in_vain() -> bool:
        store.beat(peer, '{"progress": 1}')
        return state_of(store).node(peer).status is NodeStatus.GONE

    wait_until(beat_in_vain, what=f"{peer} is gone")
    assert "made no progress for 0.5 s, says i-1.0" in state_of(store).sentence
    end(store)
    agent.status()


def test_a_notice_becomes_one_event_once_the_node_is_known(store, tmp_path) -> None:
    agent = Agent(store, tmp_path)
    agent.worker()
    agent.service.pending = Notice(id="n1", at_s=2_000_000_000.0)
    wait_until(lambda: agent.node in store.leases()[1], what="the agent lives")
    join(store, 1)
    join(store, 2)
    state = wait_for(
        store,
        lambda s: s.node(agent.node).notice_deadline_s is not None,
        "the notice is in the state",
    )
    assert state.node(agent.node).notice_deadline_s == 2_000_000_000.0
    before = len(store.entries(after_version=-1, timeout_s=0.0))
    beats = store.leases()[1][agent.node].beaten_at_s
    wait_until(
        lambda: store.leases()[1][agent.node].beaten_at_s > beats + 0.2, what="ten more looks"
    )
    assert len(store.entries(after_version=-1, timeout_s=0.0)) == before
    end(store)
    agent.status()


def test_the_end_of_its_lifeline_ends_it(store, tmp_path) -> None:
    read, write = os.pipe()
    agent = Agent(store, tmp_path, lifeline_fd=read)
    worker = agent.worker()
    join(store, 1)
    os.close(write)
    assert agent.status() == EXIT_ORPHANED
    assert worker.killed
    os.close(read)
    # Whether it is lost is for the others to say: it was the world that went, not the worker.
    assert state_of(store).node(agent.node).status.live


class Flaky:
    """A store that is away as long as `away` is set."""

    def __init__(self, store) -> None:
        self._store = store
        self.away = False

    def __getattr__(self, name: str):
        def call(*args, **kwargs):
            if self.away:
                raise StoreUnavailable("away")
            return getattr(self._store, name)(*args, **kwargs)

        return call


def test_it_goes_on_while_the_store_is_away_and_beats_again_after(store, tmp_path) -> None:
    flaky = Flaky(store)
    agent = Agent(flaky, tmp_path)
    worker = agent.worker()
    join(store, 1)
    wait_until(lambda: agent.node in store.leases()[1], what="the agent lives")
    flaky.away = True
    last_s = store.leases()[1][agent.node].beaten_at_s
    wait_until(lambda: store.leases()[0] > last_s + 1.0, what="a second without a store")
    assert worker.status is None
    flaky.away = False
    wait_until(
        lambda: store.leases()[1][agent.node].beaten_at_s > last_s + 1.0, what="it beats again"
    )
    end(store)
    assert agent.status() == EXIT_DONE


def test_a_store_that_goes_away_between_two_questions_is_asked_again(store, tmp_path) -> None:
    class Moody(Flaky):
        asked = 0

        def document(self, name: str) -> str:
            self.asked += 1
            if self.asked == 1:
                raise StoreUnavailable("away")
            return store.document(name)

    agent = Agent(Moody(store), tmp_path)
    worker = agent.worker()
    end(store)
    worker.status = 0
    assert agent.status() == EXIT_DONE


def test_a_store_that_stays_away_ends_it_at_last(store, tmp_path) -> None:
    flaky = Flaky(store)
    agent = Agent(flaky, tmp_path, store_away_s=0.3)
    worker = agent.worker()
    wait_until(lambda: agent.node in store.leases()[1], what="the agent lives")
    flaky.away = True
    assert agent.status() == EXIT_ORPHANED
    assert worker.killed


def test_a_store_that_comes_up_late_is_waited_for(store, tmp_path) -> None:
    refusals = iter([True, True])

    def opener():
        if next(refusals, False):
            raise StoreRefused("not yet")
        return NeverClosed(store)

    agent = Agent(store, tmp_path, opener=opener)
    agent.worker()
    join(store, 1)
    end(store)
    assert agent.status() == EXIT_DONE


def test_a_stop_that_ends_the_run_ends_the_agent(store, tmp_path: Path) -> None:
    agent = Agent(store, tmp_path)
    worker = agent.worker()
    join(store, 1)
    say(store, StopRequested(reason="the user", outcome=Outcome.STOPPED))
    assert state_of(store).phase is Phase.FINISHED
    worker.status = 0
    assert agent.status() == EXIT_DONE
