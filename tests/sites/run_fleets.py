"""A run's fleet for tests: the cloud and the local cloud under it are recorders."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

from bamboo.core.events import (
    Event,
)
from bamboo.core.state import State
from bamboo.errors import BambooError, InputError
from bamboo.ids import InstanceId, ZoneId
from bamboo.sites.fleet import RunFleet
from bamboo.sites.site import Site
from cloud.ending import StillLive
from cloud.fleet import Fleet, Report
from cloud.provider import Launched
from cloud.reconcile import Gang
from tests.controller.world import World, job, joined

GANG = Gang(nodes=4, within_s=60.0)
ZONES = {ZoneId("us-east-1a"): 3, ZoneId("us-east-1b"): 2}


class FakeCloudFleet:
    """What `cloud.Fleet` is asked; `trouble` is raised while it is set."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.limits: list[tuple[int, Gang | None]] = []
        self.may_start: list[int | None] = []
        self.trouble: Exception | None = None
        self.launched: tuple[Launched, ...] = ()
        self.on_call: Callable[[], None] = lambda: None

    def _call(self, name: str, value: Any) -> None:
        self.on_call()
        self.calls.append((name, value))
        if self.trouble is not None:
            raise self.trouble

    def ensure(
        self,
        count: int,
        *,
        leaving: Collection[InstanceId],
        zones: Mapping[ZoneId, int] | None,
        anchors: int,
        gang: Gang | None,
        most: int,
        new: int | None,
        lasts_until_s: float,
    ) -> Report:
        assert (zones, anchors) == (ZONES, 1)
        self.lasts_until_s = lasts_until_s
        self.limits.append((most, gang))
        self.may_start.append(new)
        self._call("ensure", (count, *sorted(leaving)))
        launched = self.launched
        return Report(
            live=count, launched=launched, terminated=(), refusals=(), reasons=("one", "two")
        )

    def terminate(self, instance: InstanceId, *, reason: str) -> None:
        self._call("terminate", instance)

    def terminate_all(self, *, deadline_s: float, waiting: Callable[[str], None]) -> None:
        self._call("terminate_all", None)


class FakeLocalCloud:
    def __init__(self) -> None:
        self.is_alive = True
        self.end_s = 15.0
        self.trouble = ""
        self.taken: list[tuple[str, float]] = []

    def alive(self) -> bool:
        return self.is_alive

    def unreachable(self) -> str:
        return self.trouble

    def preempt(self, instance: InstanceId, *, notice_s: float, cause: str) -> None:
        if instance == "i-gone":
            raise InputError("instance 'i-gone' does not run")
        self.taken.append((instance, notice_s))

    def not_ended(self, error: StillLive) -> BambooError:
        return BambooError(f"still {error.names}; it is ended by force")


class Parts:
    def __init__(self, folder: Path, *, most: int = 0) -> None:
        self.fleet = FakeCloudFleet()
        self.cloud = FakeLocalCloud()
        self.notes: list[str] = []
        self.details: list[str] = []
        self.now_s = 0.0
        self.journal = folder / "cloud.jsonl"
        self.kills = folder / "kills.jsonl"
        self.made = RunFleet(
            cast(Fleet, self.fleet),
            cast(Site, self.cloud),
            journal=self.journal,
            kills=self.kills,
            on_demand_usd_per_hour={"g4dn.xlarge": 0.526},
            note=self.notes.append,
            detail=self.details.append,
            nodes=5,
            zones=ZONES,
            most=most,
            anchors=1,
            gang=GANG,
            now=lambda: self.now_s,
        )


def state(*events: Event) -> State:
    """Four members, and what happened since."""
    world = World(job())
    world.do(joined())
    for event in events:
        world.do(event)
    return world.driver.state()


def journal(
    parts: Parts, started: Mapping[InstanceId, float], *, ended: Collection[InstanceId] = ()
) -> None:
    """The cloud's journal: instances with the times of their start, and who has ended."""
    facts = {"instance_type": "g4dn.xlarge", "zone": "a", "market": "spot", "usd_per_hour": 0.2}
    lines = [{"kind": "start", "instance": i, "t": t, **facts} for i, t in started.items()]
    lines += [{"kind": "end", "instance": i, "t": 99.0, "cause": "end"} for i in ended]
    parts.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))


def forming() -> State:
    return World(job()).driver.state()
