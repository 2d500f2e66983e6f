"""What a run is going to have spent when it is over: the reserve that its limit is held against."""

from dataclasses import replace

import pytest

from bamboo.billing.money import Rented, beside_of
from bamboo.config.catalogue import installed_catalogue
from bamboo.config.tree import BudgetConfig
from bamboo.controller.ending import stop_event
from bamboo.controller.spending import LEAVING_S, STEPS_TO_STOP, Spending, short_of
from bamboo.core.state import State
from bamboo.runs.progress import Progress, Reported
from bamboo.value import MICRO
from tests.controller.sized import job, progress, trains
from tests.controller.world import START_S

PRICES = installed_catalogue().auxiliary
HOUR_S = 3600.0


def rented(name: str, *, from_s: float = 0.0, until_s: float | None = None) -> Rented:
    return Rented(
        instance=name,
        instance_type="g4dn.xlarge",
        zone="a",
        market="on-demand",
        started_at_s=START_S + from_s,
        ended_at_s=None if until_s is None else START_S + until_s,
        usd_per_hour=3.6,
        on_demand_usd_per_hour=3.6,
    )


def seen(state: State | None = None, *, step_s: float = 0.0, steps: int = 0) -> Progress:
    recent = tuple(
        Reported(steps=n + 1, at_s=START_S + (n + 1) * step_s, loss=1.0) for n in range(steps)
    )
    return replace(progress(state or trains("a.1", "b.1"), step=steps), recent=recent)


def at(now_s: float, *those: Rented, spending: Spending, **more: int) -> Progress:
    return spending.at(seen(), those, now_s=START_S + now_s, **more)


def test_what_stands_beside_the_instances_is_counted_while_they_are_there() -> None:
    """A gap between two parts of a run has no disks, no addresses and no coordinator."""
    apart = [rented("a", until_s=HOUR_S), rented("b", from_s=9 * HOUR_S, until_s=10 * HOUR_S)]
    beside = [rented("a", until_s=HOUR_S), rented("b", until_s=HOUR_S)]
    now_s = START_S + 20 * HOUR_S
    two, one = (beside_of(r, PRICES, now_s=now_s, crossed_bytes=0.0) for r in (apart, beside))
    assert two.disks_micro_usd == one.disks_micro_usd > 0
    assert two.addresses_micro_usd == one.addresses_micro_usd > 0
    assert two.coordinator_micro_usd == pytest.approx(2 * one.coordinator_micro_usd, abs=1)
    crossed = beside_of([], PRICES, now_s=now_s, crossed_bytes=50e9)
    assert crossed.micro_usd == crossed.transfer_micro_usd == round(50 * 0.02 * MICRO)
    without = beside_of(beside, {}, now_s=now_s, crossed_bytes=50e9)
    assert without == crossed, "a run of before the prices were kept"


def test_the_reserve_is_what_a_stop_in_order_adds() -> None:
    """Steps of 10 s, 5 s for the state: an instance at $3.6/h that is older than a minute costs a
    tenth of a cent for each of those seconds."""
    spending = Spending(step_s=10.0, state_s=5.0)
    stop_s = STEPS_TO_STOP * 10.0 + 5.0 + LEAVING_S
    old = at(100.0, rented("a"), spending=spending)
    assert old.usd == pytest.approx(0.1)
    assert old.reserve_usd == pytest.approx(stop_s * 0.001)
    both = at(100.0, rented("a"), rented("b"), spending=spending)
    assert both.reserve_usd == pytest.approx(2 * old.reserve_usd)


def test_the_least_that_is_billed_is_reserved_once() -> None:
    """A young instance is paid for a minute anyhow; one that is to be rented will be."""
    spending = Spending(step_s=10.0, state_s=5.0)
    young = at(10.0, rented("a"), spending=spending)
    assert (young.usd, young.reserve_usd) == (pytest.approx(0.06), pytest.approx(0.0))
    late = at(50.0, rented("a"), spending=spending)
    stop_s = STEPS_TO_STOP * 10.0 + 5.0 + LEAVING_S
    assert late.usd + late.reserve_usd == pytest.approx((50.0 + stop_s) * 0.001)
    short = at(10.0, rented("a"), spending=spending, missing=2)
    assert short.reserve_usd == pytest.approx(0.12)


def test_steps_that_were_seen_count_and_the_longest_of_them() -> None:
    spending = Spending(step_s=1.0)
    assert spending.stop_s(seen(), now_s=START_S) == STEPS_TO_STOP * 1.0 + LEAVING_S
    slow = seen(step_s=30.0, steps=3)
    assert spending.stop_s(slow, now_s=START_S) == STEPS_TO_STOP * 30.0 + LEAVING_S


def test_a_run_stops_before_the_limit_by_its_reserve_and_says_both_parts() -> None:
    spending = Spending(prices=PRICES, step_s=10.0, state_s=5.0)
    said = []
    for now_s in range(60, 400):
        found = at(float(now_s), rented("a"), rented("b"), spending=spending)
        event = stop_event(
            BudgetConfig(max_usd=0.5), found, None, interrupted=False, now_s=found.now_s
        )
        if event is not None:
            said.append((now_s, found, event.reason))
    now_s, found, reason = said[0]
    stop_s = spending.stop_s(found, now_s=found.now_s)
    over = at(now_s + stop_s, rented("a"), rented("b"), spending=spending)
    assert 0.49 < over.usd + over.beside_usd <= 0.505
    before = at(now_s - 1 + stop_s, rented("a"), rented("b"), spending=spending)
    assert before.usd + before.beside_usd < 0.5
    assert f"${found.usd:.4f} for instances, ${found.beside_usd:.4f} beside them" in reason
    assert "a stop in order takes up to $" in reason
    assert reason.endswith("budget.max_usd = 0.5")


def test_the_fleet_is_short_of_what_it_may_rent() -> None:
    state = trains("a.1", "b.1")  # of three pipelines of two that the job may have
    those = [rented(node.instance) for node in state.nodes]
    assert short_of(job(), state, those, wanted=None) == (2, 4)
    assert short_of(job(), state, those, wanted=2) == (2, 0)
    few = job(budget=BudgetConfig(max_instances=3))
    assert short_of(few, state, those, wanted=None) == (2, 1)
    ended = [*those[:1], rented(those[1].instance, until_s=5.0)]
    assert short_of(job(), state, ended, wanted=2) == (1, 1)
