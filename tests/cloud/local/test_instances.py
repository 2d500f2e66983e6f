"""Who ended an instance: what the journal says, and with it the bill, does not hang on which of two
messages is read first."""

import json
import os
import selectors
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.ids import InstanceId, ZoneId
from cloud.local.faults import Market
from cloud.local.instances import Instances
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockInstance
from testbed.waiting import wait_until

pytestmark = pytest.mark.timeout(60)

ONE = InstanceId("i-1")


class Aws:
    """Stands for moto: one instance, and whom it calls responsible for its end."""

    url = "http://nowhere"

    def __init__(self) -> None:
        self.shown = MockInstance(
            instance=ONE, zone=ZoneId("us-east-1a"), region="us-east-1",
            instance_type="g4dn.xlarge", lifecycle="spot", state="running",
            user_data="",
        )  # fmt: skip
        self.interrupted = False

    def instances(self) -> tuple[MockInstance, ...]:
        return (self.shown,)

    def terminate(self) -> None:
        self.shown = replace(self.shown, state="terminated")

    def interrupt(self, instance: InstanceId, *, even_ended: bool = False) -> bool:
        if not even_ended and not self.shown.live:
            return False
        self.terminate()
        self.interrupted = True
        return True


class World:
    def __init__(self, run_dir: Path) -> None:
        (run_dir / "logs").mkdir()
        self.run_dir, self.aws, self.selector = run_dir, Aws(), selectors.DefaultSelector()
        self.lifeline, self.held = os.pipe()
        self.instances = Instances(
            aws=self.aws,  # type: ignore[arg-type]
            metadata=MetadataService(),
            market=Market({}),
            selector=self.selector,
            run_dir=run_dir,
            scratch=run_dir / "scratch",
            command=(sys.executable, "-c", "import time; time.sleep(60)"),
            environment={},
            lifeline=self.lifeline,
            after=lambda _delay_s, _then: None,
        )
        self.instances.reconcile()

    @property
    def agent(self) -> int:
        pid = self.instances.handle({"op": "instances"})["instances"][0]["pid"]  # type: ignore[index]
        return int(pid)

    def kill_agent(self) -> None:
        """The kernel says so; nobody has read it yet."""
        os.kill(self.agent, signal.SIGKILL)
        os.waitid(os.P_PID, self.agent, os.WEXITED | os.WNOWAIT)

    def read_the_kernel(self) -> None:
        def read() -> bool:
            for key, _ in self.selector.select(timeout=0.1):
                key.data()
            return not self.selector.get_map()

        wait_until(read, what="the agent is buried")

    @property
    def cause(self) -> str:
        records = [json.loads(x) for x in (self.run_dir / "cloud.jsonl").read_text().splitlines()]
        (end,) = [record["cause"] for record in records if record["kind"] == "end"]
        return str(end)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.instances.end_all()
    os.close(world.lifeline)
    os.close(world.held)
    world.selector.close()


ORDERS: dict[str, tuple[Callable[[World], None], ...]] = {
    "the kernel is heard first": (World.read_the_kernel, lambda w: w.aws.terminate()),
    "moto is heard first": (lambda w: w.aws.terminate(),),
    "both, and the kernel is read first": (lambda w: w.aws.terminate(), World.read_the_kernel),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
def test_a_lost_instance_was_interrupted_however_soon_it_is_terminated(
    world: World, order: tuple[Callable[[World], None], ...]
) -> None:
    world.kill_agent()
    for turn in order:
        turn(world)
    world.instances.reconcile()
    assert (world.cause, world.aws.interrupted) == ("interrupted", True)


def test_so_was_one_whose_worker_is_on_its_way_out(world: World) -> None:
    """The stamp is written before the kill: the agent may still be dying when moto is heard."""
    with (world.run_dir / "kills.jsonl").open("a") as file:
        file.write(json.dumps({"t_monotonic_ns": 1, "node": f"{ONE}.0", "cause": "listed"}) + "\n")
    world.aws.terminate()
    world.instances.reconcile()
    assert (world.cause, world.aws.interrupted) == ("interrupted", True)


def test_one_that_lives_is_terminated_by_us(world: World) -> None:
    with (world.run_dir / "kills.jsonl").open("a") as file:
        file.write('{"t_monotonic_ns": 1, "no\n')
        file.write(json.dumps({"t_monotonic_ns": 1, "node": "i-10.0", "cause": "listed"}) + "\n")
    world.aws.terminate()
    world.instances.reconcile()
    assert (world.cause, world.aws.interrupted) == ("terminated", False)
