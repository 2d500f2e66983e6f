"""A fleet for tests: over the fake cloud, by a clock that only sleeping moves."""

from pathlib import Path

from bamboo.ids import RunId, ZoneId
from cloud.fake import FakeProvider, ScriptedRefusal
from cloud.fleet import Fleet
from cloud.provider import LaunchSpec, Market, Pool, RefusalKind

RUN = RunId("calm-fox")
A = Pool(instance_type="g5.xlarge", zone=ZoneId("us-east-1a"), market=Market.SPOT)
B = Pool(instance_type="g5.xlarge", zone=ZoneId("us-east-1b"), market=Market.SPOT)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def make_fleet(provider, clock: Clock, path: Path) -> Fleet:
    return Fleet(provider, run=RUN, intents=path / "intents.jsonl", now=clock, sleep=clock.sleep)


def out(zone: str = "", *, grant: int = 0) -> ScriptedRefusal:
    return ScriptedRefusal(
        kind=RefusalKind.POOL_OUT, code="InsufficientInstanceCapacity", zone=zone, grant=grant
    )


def launches(provider: FakeProvider) -> list[LaunchSpec]:
    return [what for name, what in provider.calls if name == "launch"]
