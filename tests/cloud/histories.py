"""Launch-and-crash histories of a fleet, drawn from a seed: what the launcher and the cloud do to
each other, and what must hold at the end.

Rule: a history is a function of its seed and of the fleet under test. The cloud keeps its word: a
token starts one set, and what was started is shown within SHOWN_WITHIN_S. It may lose an answer
before or after it acted, show late, refuse, ask for fewer calls, and take instances; the launcher
may die at any call and begin again, on another machine's file or its own.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bamboo.ids import InstanceId, RunId, ZoneId
from cloud.ending import StillLive
from cloud.fake import FakeProvider, ScriptedRefusal
from cloud.fleet import Fleet
from cloud.provider import (
    CloudRefused,
    CloudThrottled,
    CloudUnavailable,
    Held,
    InstanceState,
    LaunchAnswer,
    LaunchSpec,
    Market,
    Observed,
    Offer,
    Pool,
    RefusalKind,
)
from cloud.reconcile import Gang
from cloud.sight import SHOWN_WITHIN_S

RUN = RunId("calm-fox")
POOLS = tuple(
    Pool(instance_type=kind, zone=ZoneId(zone), market=market)
    for market in Market
    for kind in ("g5.xlarge", "g6.xlarge")
    for zone in ("us-east-1a", "us-east-1b")
)
OFFERS = tuple(Offer(pool=pool, usd_per_hour=0.40 + 0.03 * n) for n, pool in enumerate(POOLS))
TURNS = 30
CALM_TURNS = 12
CODES = {
    RefusalKind.POOL_OUT: "InsufficientInstanceCapacity",
    RefusalKind.THROTTLED: "RequestLimitExceeded",
}
Begin = Callable[[FakeProvider, Path, "World"], Fleet]


class LauncherDies(BaseException):
    """The process of the launcher is gone in the middle of a call."""


@dataclass(slots=True)
class World:
    """A clock, and chance."""

    chance: random.Random
    now_s: float = 1_000_000.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(slots=True, kw_only=True)
class StormyProvider(FakeProvider):
    """A fake cloud with trouble. `calm`: none from now on."""

    world: World
    trouble: float
    calm: bool = False
    shown_at_s: dict[InstanceId, float] = field(default_factory=dict)
    wanted: int = 0
    too_many: str = ""
    to_end: set[InstanceId] = field(default_factory=set)
    """Those that the cloud was to end before it knew them: others may be started in their place."""

    def _meets(self, share: float = 1.0) -> bool:
        return not self.calm and self.world.chance.random() < self.trouble * share

    def launch(self, specs: Sequence[LaunchSpec]) -> LaunchAnswer:
        self._before()
        if self._meets():
            kind = self.world.chance.choice(list(CODES))
            grant = self.world.chance.randrange(3) if kind is RefusalKind.POOL_OUT else 0
            self.script.append(ScriptedRefusal(kind=kind, code=CODES[kind], grant=grant))
        known = set(self._instances)
        answer = FakeProvider.launch(self, specs)
        for instance in self._instances.keys() - known:
            late_s = self.world.chance.choice([0.0, 0.0, 5.0, 0.9 * SHOWN_WITHIN_S])
            self.shown_at_s[instance] = self.world.now_s + (0.0 if self.calm else late_s)
        self.script.clear()
        live = [o for o in self.live() if o.instance not in self.to_end]
        if len(live) > self.wanted:
            self.too_many = f"{len(live)} live after a launch, {self.wanted} are wanted"
        self._after()
        return answer

    def describe(self, run: RunId) -> tuple[Observed, ...]:
        self._before(0.3)
        return tuple(
            o
            for o in FakeProvider.describe(self, run)
            if self.shown_at_s[o.instance] <= self.world.now_s
        )

    def terminate(self, instances: Sequence[InstanceId]) -> tuple[InstanceId, ...]:
        """As EC2 does: what is not shown yet is not known yet, and is not ended."""
        self._before(0.5)
        young = tuple(i for i in instances if self.shown_at_s.get(i, 0.0) > self.world.now_s)
        self.to_end.update(young)
        unknown = FakeProvider.terminate(self, [i for i in instances if i not in young])
        self._after(0.5)
        return (*young, *unknown)

    def held(self, run: RunId | None) -> tuple[Held, ...]:
        self._before(0.3)
        return tuple(
            one
            for one in FakeProvider.held(self, run)
            if self.shown_at_s.get(InstanceId(one.id), 0.0) <= self.world.now_s
        )

    def release(self, held: Sequence[Held]) -> None:
        self._before(0.5)
        FakeProvider.release(self, held)
        self._after(0.5)

    def live(self) -> list[Observed]:
        return [o for _, o in self._instances.values() if o.state.live]

    def _start(self, spec, pool):  # type: ignore[no-untyped-def]
        self.now_s = self.world.now_s
        return FakeProvider._start(self, spec, pool)

    def _before(self, share: float = 1.0) -> None:
        """The request does not reach the cloud."""
        self.world.now_s += 0.2
        if self._meets(0.4 * share):
            raise LauncherDies
        if self._meets(0.3 * share):
            raise CloudThrottled("RequestLimitExceeded")
        if self._meets(0.4 * share):
            raise CloudUnavailable("no answer")

    def _after(self, share: float = 1.0) -> None:
        """The cloud acted, and nobody hears of it."""
        if self._meets(0.6 * share):
            raise LauncherDies
        if self._meets(0.6 * share):
            self.world.now_s += 5.0
            raise CloudUnavailable("the answer was lost")


def begin(provider: FakeProvider, intents: Path, world: World) -> Fleet:
    """A launcher's fleet, as the launcher makes it."""
    return Fleet(
        provider,
        run=RUN,
        intents=intents,
        now=world.now,
        sleep=world.sleep,
        chance=random.Random(world.chance.random()),
    )


def history(seed: int, folder: Path, *, begin: Begin = begin) -> str:
    """Play a history; what is wrong with it, or "" when all holds."""
    chance = random.Random(seed)
    world = World(chance)
    provider = StormyProvider(
        listed=OFFERS,
        several_pools=chance.random() < 0.5,
        leaves_volumes=chance.random() < 0.3,
        world=world,
        trouble=chance.choice([0.05, 0.2, 0.4]),
    )
    intents = folder / f"{seed}.jsonl"
    wanted = chance.randrange(1, 7)
    anchors = chance.choice([0, 0, 1, 2])
    gang = chance.choice([None, Gang(nodes=wanted, within_s=60.0)])
    anew = lambda: begin(provider, intents, world)  # noqa: E731
    fleet = anew()
    for _ in range(TURNS):
        provider.wanted = wanted
        try:
            fleet.ensure(wanted, anchors=anchors, gang=gang)
            if provider.live() and chance.random() < 0.1:
                one = chance.choice(provider.live()).instance
                if chance.random() < 0.5:
                    provider.interrupt(one)
                else:
                    fleet.terminate(one, reason="lost")
        except (CloudThrottled, CloudUnavailable, CloudRefused):
            pass
        except LauncherDies:
            world.now_s += chance.choice([0.1, 3.0, 50.0, 400.0])
            fleet = anew()
        world.now_s += chance.choice([0.5, 2.0, 30.0])
        if chance.random() < 0.1:
            wanted = chance.randrange(1, 7)
            gang = None if gang is None else Gang(nodes=wanted, within_s=60.0)
    return (
        _not_as_wanted(provider, fleet, world, wanted, anchors)
        or _duplicated(provider)
        or _not_ended(provider, anew, world, folder, chance)
    )


def _duplicated(provider: StormyProvider) -> str:
    """A wish may be made as often as it takes, and is granted once; and no two wishes are ever open
    for the same node."""
    wishes = {what.token: what for name, what in provider.calls if name == "launch"}  # type: ignore[attr-defined]
    started = Counter(o.token for _, o in provider._instances.values())
    for token, number in started.items():
        if number > wishes[token].count:
            return f"{number} instances of a wish for {wishes[token].count}"
    return provider.too_many


def _not_as_wanted(
    provider: StormyProvider, fleet: Fleet, world: World, wanted: int, anchors: int
) -> str:
    """When the trouble is over the fleet comes to what is wanted: nothing is lost from sight."""
    provider.calm, provider.wanted = True, wanted
    for _ in range(CALM_TURNS):
        world.now_s += SHOWN_WITHIN_S
        fleet.ensure(wanted, anchors=anchors)
    live = provider.live()
    fixed = sum(o.pool.market is Market.ON_DEMAND for o in live)
    if len(live) != wanted:
        return f"{len(live)} instances live and {wanted} are wanted"
    if anchors and fixed != min(anchors, wanted):
        return f"{fixed} anchors live and {anchors} are wanted"
    return ""


def _not_ended(
    provider: StormyProvider,
    anew: Callable[[], Fleet],
    world: World,
    folder: Path,
    chance: random.Random,
) -> str:
    """One more wish whose launcher dies, then `stop`, on this machine or one without the file."""
    provider.calm, provider.wanted = False, 6
    with suppress(LauncherDies, CloudThrottled, CloudUnavailable, CloudRefused):
        anew().ensure(6)
    if chance.random() < 0.3:
        for file in folder.glob("*.jsonl"):
            file.unlink()
        world.now_s += SHOWN_WITHIN_S  # whoever has lost the file is not that quick
    for attempt in range(40):
        provider.calm = attempt > 30
        try:
            anew().terminate_all()
            break
        except (LauncherDies, StillLive):
            continue
    live = [o.instance for o in provider.live() if o.state is not InstanceState.TERMINATED]
    if live or provider.others:
        return f"after the stop are left: {live} {[one.id for one in provider.others]}"
    provider.calm = True
    anew().terminate_all()  # does no harm
    return ""
