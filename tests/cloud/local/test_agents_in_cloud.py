"""The real agent, started as an instance of the local cloud starts it, over the embedded store."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.config.load import job_to_json
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.open import open_store
from bamboo.core.state import NodeStatus, State, initial_state
from bamboo.ports import Store
from bamboo.sites.fleet import RunFleet
from bamboo.topology.grid import Grid
from cloud.local.start import LocalCloud, start_local_cloud
from testbed.waiting import wait_until
from tests.agent.world import JOB, POLICY
from tests.cloud.local.local_world import (
    ACTORS,
    PRICES,
    RUN,
    expect_nothing_left,
    fleet_of,
    provider_of,
    told,
)
from tests.warm import begun_warm

pytestmark = pytest.mark.e2e


class World:
    """A forming run of two stages in a local cloud."""

    def __init__(self, run_dir: Path) -> None:
        with begun_warm():
            self.cloud: LocalCloud = start_local_cloud(
                run=RUN,
                run_dir=run_dir,
                preload=("joining_worker",),
                worker_entry="joining_worker:main",
                spot_usd_per_hour=PRICES,
            )
        self.store: Store = open_store(self.cloud.store_url, RUN)
        self.driver = Driver(self.store, POLICY, "test")
        assert create_run(
            self.store,
            state=initial_state(run=RUN, grid=Grid(pipelines=1, stages=2), redundancy="stash"),
            policy=POLICY,
            documents={"job": job_to_json(JOB)},
            at_s=0.0,
        )
        self.provider = provider_of(self.cloud)
        self.fleet = fleet_of(self.provider, run_dir)

    def form(self) -> State:
        """Launch both instances and wait until their nodes are members."""
        self.fleet.ensure(2)
        return self.wait(lambda s: s.assignment is not None, "both nodes have joined")

    def wait(self, condition, what: str) -> State:
        def look() -> State | None:
            state = self.driver.state()
            return state if condition(state) else None

        return wait_until(look, what=what, timeout_s=30.0)

    def close(self) -> None:
        self.store.close()
        self.provider.close()
        self.cloud.stop()
        expect_nothing_left(self.cloud)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("PYTHONPATH", str(ACTORS), prepend=os.pathsep)
    world = World(tmp_path)
    yield world
    world.close()


def test_on_advice_one_more_node_stands_by(world: World, tmp_path: Path) -> None:
    """Once, however often the fleet looks; when the advised node is then taken, nobody else is
    started: the other one is there."""
    state = world.form()
    victim = state.nodes[0]
    fleet = RunFleet(
        world.fleet,
        world.cloud,
        journal=tmp_path / "cloud.jsonl",
        kills=tmp_path / "kills.jsonl",
        on_demand_usd_per_hour={"g4dn.xlarge": 0.526},
        note=lambda _: None,
        nodes=2,
    )

    def look() -> int:
        """Instances ever started, after the fleet has looked three times more."""
        for _ in range(3):
            fleet.reconcile(world.driver.state())
        return len(world.cloud.control.instances())

    assert look() == 2
    world.cloud.control.advise(victim.instance)
    state = world.wait(lambda s: s.node(victim.id).advised, "the advice is known")
    assert state.node(victim.id).status is NodeStatus.MEMBER
    look()
    state = world.wait(lambda s: len(s.nodes) == 3, "one more has joined")
    assert state.nodes[2].status is NodeStatus.READY
    assert look() == 3
    world.cloud.control.preempt(victim.instance, notice_s=60.0)
    world.wait(lambda s: s.node(victim.id).notice_deadline_s is not None, "the notice")
    assert look() == 3
    world.cloud.control.preempt(victim.instance)
    wait_until(
        lambda: told(world.cloud, victim.instance)["state"] == "terminated", what="it is taken"
    )
    assert look() == 3
