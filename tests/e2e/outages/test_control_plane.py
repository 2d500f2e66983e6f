"""The control plane fails while a run trains: its store stands still or dies, clocks jump.

Real processes and signals; every run ends with the calm run's bits, and nobody is lost but those
that were killed.
"""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from bamboo.coord.replay import verify_decisions
from bamboo.core.events import PeerLost, StoreRefilled
from bamboo.core.state import State
from bamboo.errors import StoreUnavailable
from bamboo.ids import NodeId
from testbed.calm import assert_calm_so_far
from testbed.cluster import Cluster, cluster
from testbed.waiting import wait_until
from tests.e2e.jobs import ENDLESS, job
from tests.e2e.losses.test_notice import SLOW

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SHORT_S, LONG_S = 3.0, 30.0
HOUR_S = 3600.0
VICTIM = NodeId("i-02.1")
LENGTHS = [SHORT_S, pytest.param(LONG_S, marks=pytest.mark.full)]


def pass_s(length_s: float) -> None:
    """Let an outage last."""
    over_s = time.monotonic() + length_s
    wait_until(lambda: time.monotonic() >= over_s, what="the outage", timeout_s=length_s + 5)


SLOW_JOB = job(steps=ENDLESS, redundancy="eager", step_timeout_s=5.0, **SLOW)
"""Its steps take 0.15 s."""


def between(records: list[dict[str, Any]], first_s: float, last_s: float) -> list[Mapping]:
    return [record for record in records if first_s <= record["t_s"] <= last_s]


def losses(run: Cluster) -> list[float]:
    """The store's time of every loss in the log."""
    return [d.now_s for d in run.decisions() if isinstance(d.event, PeerLost)]


@pytest.mark.full
@pytest.mark.parametrize("length_s", [LONG_S])
def test_training_goes_on_for_as_long_as_the_store_stands_still(length_s: float) -> None:
    with cluster(SLOW_JOB) as run:
        run.start()
        run.wait_step(2)
        with run.without_store():
            away_s = time.time()
            pass_s(length_s)
        back_s = time.time()
        assert_calm_so_far(run)
        steps = between(run.metrics("step"), away_s, back_s)
        assert len(steps) > length_s / 0.15 / 4, "steps went on without the store"
        assert not losses(run)


@pytest.mark.parametrize("length_s", LENGTHS)
def test_a_loss_without_the_store_is_decided_when_it_is_back(length_s: float) -> None:
    with cluster(SLOW_JOB) as run:
        run.start()
        run.wait_step(2)
        with run.without_store():
            run.kill(VICTIM)
            pass_s(length_s)
            back_s = time.time()
        run.wait_lost(VICTIM, 60)
        assert_calm_so_far(run)
        (decided_s,) = losses(run)
        assert back_s - 0.1 <= decided_s


def test_a_store_that_was_killed_comes_back_with_its_log() -> None:
    """It is SIGKILLed and started again on its append-only file: nobody has missed anything."""
    with cluster(SLOW_JOB) as run:
        run.start()
        run.wait_step(2)
        before = run.store.read()
        run.server.kill()
        away_s = time.time()
        pass_s(SHORT_S / 2)
        run.start_store_again()
        back_s = time.time()
        assert run.store.read().store_id == before.store_id
        run.kill(VICTIM)
        run.wait_lost(VICTIM)
        assert_calm_so_far(run)
        assert between(run.metrics("step"), away_s, back_s), "steps went on without the store"
        assert len(losses(run)) == 1
        report = verify_decisions(run.store)
        assert report.equal, report.first_difference


def test_a_loss_while_the_store_is_dead() -> None:
    with cluster(SLOW_JOB) as run:
        run.start()
        run.wait_step(2)
        run.server.kill()
        run.kill(VICTIM)
        pass_s(SHORT_S / 2)
        run.start_store_again()
        run.wait_lost(VICTIM)
        assert_calm_so_far(run)
        assert len(losses(run)) == 1


def refilled(run: Cluster) -> State:
    """Wait until the run is in its store again."""

    def found() -> State | None:
        try:
            return run.state()
        except StoreUnavailable:
            return None

    return wait_until(found, what="the run in its store", timeout_s=30)


def test_a_store_that_lost_everything_is_refilled() -> None:
    """What the members had read is put back under a new generation; then a node is lost."""
    with cluster(SLOW_JOB) as run:
        run.start()
        run.wait_step(2)
        before = run.state()
        away_s = time.time()
        run.lose_store()
        after = refilled(run)
        back_s = time.time()
        assert after.generation == before.generation + 1
        assert after.version == before.version + 1
        assert after.assignment == before.assignment
        run.kill(VICTIM)
        run.wait_lost(VICTIM)
        assert_calm_so_far(run)
        assert between(run.metrics("step"), away_s, back_s), "steps went on without the store"
        assert len(losses(run)) == 1
        report = verify_decisions(run.store)
        assert report.equal, report.first_difference
        assert sum(isinstance(d.event, StoreRefilled) for d in run.decisions()) == 1


def test_a_loss_while_the_store_has_nothing() -> None:
    with cluster(SLOW_JOB) as run:
        run.start()
        run.wait_step(2)
        run.kill(VICTIM)
        run.lose_store()
        refilled(run)
        run.wait_lost(VICTIM, 30)
        assert_calm_so_far(run)
        assert len(losses(run)) <= 1
        report = verify_decisions(run.store)
        assert report.equal, report.first_difference


@pytest.mark.full
def test_a_store_that_is_lost_twice() -> None:
    with cluster(SLOW_JOB) as run:
        run.start()
        run.wait_step(2)
        generation = run.state().generation
        run.lose_store()
        assert refilled(run).generation == generation + 1
        run.lose_store()  # some may not even have read that it was refilled
        assert refilled(run).generation in {generation + 1, generation + 2}
        assert_calm_so_far(run)
        assert not losses(run)


def test_a_jump_of_wall_clocks_changes_nothing() -> None:
    """One worker's clock goes an hour ahead, another's an hour back; then a third node is lost.
    What is decided, and when, comes from the store's clock alone."""
    with cluster(job(steps=ENDLESS, redundancy="eager", **SLOW)) as run:
        began_s = time.time()
        run.start(faults={0: f"clock_jump:3,{HOUR_S}", 1: f"clock_jump:3,{-HOUR_S}"})
        run.wait_step(6)
        run.kill(VICTIM)
        run.wait_lost(VICTIM)
        assert_calm_so_far(run)
        times_s = [d.now_s for d in run.decisions()]
        assert times_s == sorted(times_s)
        assert began_s <= times_s[0] <= times_s[-1] <= time.time()
        assert len(losses(run)) == 1
        (found,) = run.metrics("failover")
        assert abs(found["t_s"] - began_s) > HOUR_S / 2, "the successor's clock did jump"
