"""Bills of random runs: real decisions on random markets, every micro-dollar in its place."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from bamboo.core import events
from bamboo.core.state import State, initial_state
from bamboo.core.transition import Transition
from bamboo.ids import InstanceId, ZoneId, run_id
from bamboo.planner.attribution import Spent, Tenure, Use, Work, attribute
from bamboo.planner.duties import Duty, Roster
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.market.prices import Prices
from bamboo.sim.market.trace import Trace, TraceEvent
from bamboo.sim.ours import Ours
from bamboo.sim.run import figures_of
from bamboo.sim.world import World
from tests.planner.test_attribution import T0, by_hand
from tests.sim.worlds import asked

PRICES = (0.1937, 0.36, 1.006, 3.0612, 0.0731)
"""Of the zones, in turn."""


class Watched(Ours):
    """Tells a roster of every decision, and of the steps that all go back to."""

    roster: Roster
    said: events.Event = events.StoreRefilled(reporter="nobody")

    def _decide(self, event: events.Event) -> Transition:
        self.said = event
        return super()._decide(event)

    def say_all(self, told: Sequence[events.Event]) -> None:
        self.said = told[-1]
        super().say_all(told)

    def _follow(self, before: State, decided: Transition) -> None:
        now_s, after = self.world.kernel.now_s, self.state
        reconfiguration = after.reconfiguration
        if reconfiguration is not None and reconfiguration.base is not None:
            self.roster.stepped(
                reconfiguration.base, T0 + self._reached_at_s(reconfiguration.base, now_s)
            )
        self.roster.decided(before, after, self.said, T0 + now_s)
        super()._follow(before, decided)

    def _reached_at_s(self, step: int, now_s: float) -> float:
        """When it stood there last: by halves, between a time before and one after."""
        progress = self.world.progress
        early_s, late_s = max(0.0, now_s - 1800.0), now_s
        while late_s - early_s > 1e-3:
            middle_s = (early_s + late_s) / 2
            if progress.was(middle_s) < step - 1e-6:
                early_s = middle_s
            else:
                late_s = middle_s
        return late_s


def market(chance: random.Random, *, hours: float) -> Trace:
    """Up to 14 nodes of five zones come and go, also several at one instant."""
    found: list[TraceEvent] = []
    here: list[tuple[str, str]] = []
    at_s, number = 0.0, 0
    while at_s < hours * 3600:
        coming = not found or (chance.random() < 0.55 and len(here) < 14) or not here
        for _ in range(9 if not found else chance.choice((1, 1, 2, 3))):
            if coming:
                here.append((f"m{number}", f"z{number % len(PRICES)}"))
                number += 1
                name, zone = here[-1]
            elif here:
                name, zone = here.pop(chance.randrange(len(here)))
            else:
                break
            event = TraceEvent(at_s=at_s, node=name, comes=coming, zone=ZoneId(zone))
            found.append(event)
        at_s += chance.expovariate(1 / 240)
    return Trace(source="drawn", events=tuple(found), length_s=hours * 3600)


def play(seed: int, every: int = 20) -> tuple[World, Roster, list[Tenure]]:
    chance = random.Random(seed)
    one = asked(
        pipelines=2, max_pipelines=3, every=every, standbys=1, patience_s=20.0, surplus_s=300.0,
        horizon_s=2.0 * 3600,
    )  # fmt: skip
    one = replace(one, terms=replace(one.terms, notice_s=chance.choice((0.0, 30.0))))
    world = World(trace=market(chance, hours=2.0), terms=one.terms, horizon_s=one.horizon_s)
    ours = Watched(
        world, one.workload, StepTimes(one.workload, one.redundancy),
        state=initial_state(run=run_id("r"), grid=one.grid, redundancy=one.redundancy),
        policy=one.policy, standbys=one.standbys, patience_s=one.patience_s,
        park_s=one.park_s, surplus_s=one.surplus_s, pauses=one.pauses,
    )  # fmt: skip
    ours.roster = Roster()
    world.play(ours)
    tenures = []
    for rental in world.rentals:
        assert rental.until_s is not None
        tenures.append(
            Tenure(
                instance=InstanceId(rental.node),
                started_s=T0 + rental.from_s,
                ended_s=T0 + rental.until_s,
                usd_per_hour=PRICES[int(rental.zone[1:])],
                free_first_hour=rental.interrupted and chance.random() < 0.8,
            )
        )
    return world, ours.roster, tenures


def busy(chance: random.Random, tenures: Sequence[Tenure]) -> list[Work]:
    """Measurements as leases give them, and of some instances the one at the end."""
    found = []
    for one in tenures:
        at_s = one.started_s
        useful_s = redundant_s = 0.0
        while (at_s := at_s + chance.uniform(20, 90)) < one.ended_s:
            useful_s += chance.uniform(0, 40)
            redundant_s += chance.uniform(0, 20)
            work = Work(
                at_s=at_s, instance=one.instance, useful_s=useful_s, redundant_s=redundant_s
            )
            found.append(work)
        if found and chance.random() < 0.5:
            found.append(
                Work(
                    at_s=chance.choice((found[-1].at_s, one.ended_s)),
                    instance=one.instance,
                    useful_s=useful_s * 1.1,
                    redundant_s=redundant_s * 0.9,
                    exact=True,
                )
            )
    return found


def test_random_runs_sum_to_the_bill_to_the_micro_dollar() -> None:
    seen: Counter[str] = Counter()
    for seed in range(15):
        world, roster, tenures = play(seed)
        changes = roster.changes()
        spent = attribute(tenures, changes, busy(random.Random(seed), tenures))
        for one, part in zip(tenures, spent, strict=True):
            assert sum(part.micro_usd.values()) == part.bill_micro_usd == by_hand(one)
            assert abs(sum(part.us.values()) - (one.ended_s - one.started_s) * 1e6) <= 2
            seen.update(use.name for use in part.micro_usd)
        assert sum(one.bill_micro_usd for one in spent) == sum(map(by_hand, tenures))
        seen.update(world.counts)
        seen["mixed"] += len({one.usd_per_hour for one in tenures}) > 3
    for kind in ("preemption", "failover", "reconfiguration", "restore", "mixed"):
        assert seen[kind] > 0, f"no run had a {kind}"
    trained = {"USEFUL", "REDUNDANCY", "BUBBLE", "RECOVERY", "LOST", "STANDBY"}
    waited = {"BOOTING", "PARKED", "LEAVING", "MINIMUM", "ROUNDING", "FREE"}
    assert trained | waited <= set(seen), "what was never spent was never tried"


def test_the_simulator_bills_the_same() -> None:
    for seed in range(3):
        world, roster, tenures = play(seed)
        taken = [one.interrupted for one in world.rentals]
        spot = [
            replace(one, free_first_hour=free) for one, free in zip(tenures, taken, strict=True)
        ]
        zones = {ZoneId(f"z{n}"): ((0.0, price),) for n, price in enumerate(PRICES)}
        one = replace(asked(), free_first_hour=True)
        prices = Prices(source="test", by_zone=zones)
        found = figures_of(world, one, prices=prices, spot=True)
        spent = attribute(spot, roster.changes(), [])
        micro_usd = sum(part.bill_micro_usd for part in spent)
        assert micro_usd == round((found.usd - found.transfer_usd) * 1e6)


def test_lost_work_is_as_long_as_the_steps_that_are_done_again() -> None:
    """At least the whole steps; at most those, and a part of a step in hand each time."""
    tried = 0
    for seed in range(8):
        world, roster, tenures = play(seed)
        if not world.progress.lost_steps:
            continue
        again = [change.again for change in roster.changes() if change.again is not None]
        lost_s = sum(one.until_s - one.since_s for one in again)
        steps = world.progress.lost_steps
        step_s = world.progress.trained_s / (world.progress.steps + steps)
        assert lost_s > 0.4 * steps * step_s
        spent = attribute(tenures, roster.changes(), [])
        assert 0 < in_use(spent, Use.LOST) <= lost_s * max(map(alive, changes_of(roster)))
        tried += 1
    assert tried


def in_use(spent: Sequence[Spent], use: Use) -> float:
    return sum(one.us.get(use, 0) for one in spent) / 1e6


def changes_of(roster: Roster) -> list[dict[InstanceId, Duty]]:
    """Who had which duty after each change."""
    found: list[dict[InstanceId, Duty]] = [{}]
    for change in roster.changes():
        found.append({**found[-1], **{one.instance: one.duty for one in change.changed}})
    return found


def alive(duties: dict[InstanceId, Duty]) -> int:
    return sum(duty is Duty.STEPS for duty in duties.values())
