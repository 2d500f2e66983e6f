"""Options of a job: ranked by the definition of value, none left out, break-even a root."""

from dataclasses import replace
from math import inf, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.errors import InputError
from bamboo.planner.plans.ranking import SAME
from bamboo.planner.renting.chosen import (
    LEAST_RATE,
    MOST_RATE,
    PAYS,
    Outcome,
    break_even,
    choose,
    gain_at,
    on_spot,
)
from bamboo.planner.renting.option import (
    MIXED,
    ON_DEMAND,
    SPOT,
    Line,
    Offer,
    Option,
    Options,
    Question,
)
from bamboo.planner.renting.options import anchors, options, shared_out, together
from bamboo.planner.risks.hazards import LossRate, said
from bamboo.topology.grid import Grid
from bamboo.value import samples_per_usd
from tests.planner.workloads import workload

QUESTION = Question(nodes=range(2, 5), steps=1000, checkpoint_every=50)


FEW = replace(QUESTION, modes=("off", "stash"))


OFTEN = 0.6


def offer(
    name: str = "t",
    price: float = 1.0,
    *,
    spot: float = 0.4,
    memory: int = 10**6,
    hazard: float = OFTEN,
) -> Offer:
    return Offer(
        name=name,
        gpu="G",
        memory_bytes=memory,
        workload=replace(workload(layers=4, microbatches=2), bytes_per_s=1e6),
        on_demand_usd_per_hour=price,
        spot_usd_per_hour={"a": spot, "b": spot * 1.1} if spot else {},
        rate=said(hazard),
    )


def sending(one: Offer, node_bytes_per_s: float) -> Offer:
    return replace(one, workload=replace(one.workload, node_bytes_per_s=node_bytes_per_s))


def found(*offers: Offer, most: int = 0, question: Question = QUESTION) -> Options:
    return options(offers or (offer(),), question, most=most)


def outcome(option: Option, *, hours: float = 1.0, usd: float = 2.0, worse: float = 1.0) -> Outcome:
    return Outcome(
        option=option,
        hours_p50=hours,
        hours_p90=hours * worse,
        usd_p50=usd,
        usd_p90=usd * worse,
        preemptions=1.0,
        restores=0.0,
        runs=4,
        unfinished=0,
    )


def test_every_line_is_there_and_in_order_of_value() -> None:
    table = found()
    values = [one.value for one in table.found]
    assert values == sorted(values, reverse=True)
    assert len(table.found) == table.lines
    assert {one.line.market for one in table.found} == {ON_DEMAND, SPOT, MIXED}
    assert {one.line.spread for one in table.found} == {"one", "pipelines", "neighbours"}
    assert {one.line.mode for one in table.found} == set(QUESTION.modes)
    for one in table.found:
        plan = one.plan
        assert one.value == samples_per_usd(plan.expected_samples_per_s, plan.usd_per_hour)
        assert one.usd == pytest.approx(one.hours * plan.usd_per_hour)
        assert one.usd_per_million(10) == pytest.approx(1e5 / one.value)


def test_on_demand_nothing_is_lost_and_anchors_save_every_stage() -> None:
    table = found()
    for one in table.found:
        if one.line.market == ON_DEMAND:
            assert one.plan.losses.share == one.preemptions == 0
        if one.line.market == MIXED:
            assert one.anchors == anchors(one.plan.choice.grid)
            assert one.plan.losses.fatal_per_hour == 0
            assert one.plan.losses.survived_per_hour > 0
    assert anchors(Grid(pipelines=1, stages=5)) == 3
    assert anchors(Grid(pipelines=3, stages=5)) == 5


@settings(max_examples=8, deadline=None)
@given(
    prices=st.lists(st.floats(min_value=0.5, max_value=5.0), min_size=1, max_size=2),
    extra=st.floats(min_value=0.5, max_value=5.0),
    most=st.integers(min_value=1, max_value=6),
)
def test_a_further_offer_never_lowers_what_is_first(
    prices: list[float], extra: float, most: int
) -> None:
    offers = [offer(f"t{n}", price, spot=price * 0.5) for n, price in enumerate(prices)]
    before = found(*offers, most=most, question=FEW)
    more = offer("more", extra, spot=extra * 0.5)
    after = found(*offers, more, most=most, question=FEW)
    assert after.found[0].value >= before.found[0].value
    whole = found(*offers, question=FEW)
    assert [x.value for x in before.found[:most]] == [x.value for x in whole.found[:most]]
    for line, at_most in before.behind:
        exact = next(one.value for one in whole.found if one.line == line)
        assert exact <= at_most * (1 + 1e-7)


def test_in_parts_the_same_is_found() -> None:
    offers = [offer("a"), offer("b", 1.5, spot=0.3), offer("c", 0.6, spot=0.5)]
    at_once = found(*offers, most=4)
    parts = together([found(*offers[::2], most=4), found(*offers[1::2], most=4)], most=4)
    assert [one.line for one in parts.found[:4]] == [one.line for one in at_once.found[:4]]
    assert parts.lines == at_once.lines


def test_of_one_gpu_all_are_in_one_part() -> None:
    slow = offer("s")
    slow = replace(slow, workload=replace(slow.workload, forward_s=(2.0,) * 4))
    offers = [offer("a"), slow, offer("b", memory=10**7), offer("c"), offer("d")]
    parts = shared_out(offers, 2)
    assert [[one.name for one in part] for part in parts] == [["a", "c", "d"], ["s", "b"]]
    assert [len(part) for part in shared_out(offers[:1], 2)] == [1]


def test_offers_that_share_their_dry_runs_are_worth_what_they_are_alone() -> None:
    several = [
        offer("a"),
        sending(offer("sends slowly", 1.1), 2e3),
        sending(offer("fast", 1.2), 1e7),
        on_links_of(3e4),
    ]
    several[3] = replace(several[3], name="far", on_demand_usd_per_hour=1.3)
    together_ = {one.line: one for one in found(*several, question=FEW).found}
    alone = {one.line: one for each in several for one in found(each, question=FEW).found}
    assert together_ == alone
    # The cases differ, or sharing too much would not show.
    best = {
        name: max(o.plan.samples_per_s for line, o in alone.items() if line.instance_type == name)
        for name in ("a", "sends slowly", "far")
    }
    assert best["sends slowly"] < best["a"]
    assert best["far"] < best["a"]


def test_what_does_not_fit_is_counted_and_said() -> None:
    table = found(offer("big"), offer("small", memory=4000))
    assert table.misfits.lines > 0
    assert "small (G): layer" in table.misfits.nearest
    assert "bytes" in table.misfits.nearest
    assert {one.line.instance_type for one in table.found} == {"big"}
    nothing = found(offer("small", memory=4000))
    assert nothing.found == ()
    assert nothing.misfits.lines == nothing.lines
    with pytest.raises(InputError, match="no instance type"):
        options((), QUESTION, most=1)


def test_what_is_too_slow_is_left_out() -> None:
    table = found()
    limit = sorted(one.hours for one in table.found)[len(table.found) // 2]
    quick = found(question=replace(QUESTION, most_hours=limit))
    assert quick.found
    assert all(one.hours <= limit for one in quick.found)
    none = found(question=replace(QUESTION, most_hours=table.least_hours / 2))
    assert none.found == ()
    assert len(none.too_slow) == none.lines


def on_links_of(bytes_per_s: float, *, hazard: float = OFTEN) -> Offer:
    whole = offer(hazard=hazard)
    return replace(whole, workload=replace(whole.workload, bytes_per_s=bytes_per_s))


def one_pipeline(bytes_per_s: float, *, hazard: float = OFTEN) -> Offer:
    """An offer that no plan of one stage is for: several pipelines of those need no replicas."""
    work = workload(layers=4, virtual_nodes=1, microbatches=4)
    return replace(offer(hazard=hazard), workload=replace(work, bytes_per_s=bytes_per_s))


def test_redundancy_that_costs_nothing_pays_only_where_nodes_are_taken() -> None:
    table = found(one_pipeline(1e6), question=FEW)
    assert abs(gain_at(table.found, LEAST_RATE, FEW)) < PAYS
    even = break_even(table.found, FEW)
    assert even.per_node_hour is not None, even.says
    assert LEAST_RATE < even.per_node_hour < OFTEN
    assert "the best plan without is worth as much" in even.says


def test_redundancy_that_never_pays() -> None:
    even = break_even(found(one_pipeline(2e3), question=FEW).found, FEW)
    assert even.per_node_hour is None
    assert "does not pay up to 20" in even.says


@pytest.mark.parametrize(("fatal", "ends"), [(0.0, False), (50.0, True)])
def test_redundancy_that_pays_where_nothing_is_taken(fatal: float, *, ends: bool) -> None:
    def better(one: Option) -> Option:
        plan, losses = one.plan, one.plan.losses
        losses = replace(losses, fatal_per_hour=losses.fatal_per_hour + fatal)
        return replace(
            one, plan=replace(plan, samples_per_s=1.2 * plan.samples_per_s, losses=losses)
        )

    rows = found(one_pipeline(1e6), question=FEW).found
    rows = tuple(better(one) if one.line.redundant else one for one in rows)
    even = break_even(rows, FEW)
    assert even.per_node_hour is None
    assert "pays even where no node is taken" in even.says
    assert ("up to" in even.says) is ends is (gain_at(rows, MOST_RATE, FEW) <= PAYS)


@settings(max_examples=10, deadline=None)
@given(hazard=st.floats(min_value=0.05, max_value=5.0), every=st.integers(500, 1000))
def test_the_break_even_is_a_root(hazard: float, every: int) -> None:
    question = replace(FEW, checkpoint_every=every)
    # So slow a link that a gradient takes longer than a step.
    table = found(one_pipeline(5e3, hazard=hazard), question=question)
    even = break_even(table.found, question)
    assert even.per_node_hour is not None, even.says
    rate = even.per_node_hour
    # As in the table's cases: what is the same as far as anybody knows does not pay.
    assert gain_at(table.found, rate, question) == pytest.approx(log(1 + SAME), abs=1e-9)
    assert gain_at(table.found, rate / 2, question) < 0
    assert f"{rate:.3g}" in even.says
    assert "the best plan without is worth more" in even.says


def test_without_losses_there_is_no_break_even() -> None:
    even = break_even(found(offer(hazard=0.0)).found, QUESTION)
    assert even.per_node_hour is None
    assert "nothing to save" in even.says
    assert "No plan with redundancy is left on spot" in break_even((), QUESTION).says
    redundant = on_spot(found().found, redundant=True)
    assert "No plan without redundancy is left" in break_even(redundant, QUESTION).says


def test_the_most_value_is_chosen_or_under_limits_the_cheapest_that_keeps_them() -> None:
    first, second, third = [one for one in found().found if one.launchable][:3]
    fast = outcome(first, hours=1, usd=9)
    cheap = outcome(second, hours=5, usd=3, worse=2)
    some = [fast, cheap, outcome(third, hours=2, usd=5)]
    assert choose(some).outcome is cheap
    assert choose(some, budget_usd=5.5).outcome is some[2]
    assert choose(some, deadline_h=1.5).outcome is fast
    tiny = replace(cheap, hours_p90=0.000771, usd_p90=0.00412)
    none = choose(some, deadline_h=1.5, budget_usd=4)
    assert none.outcome is None
    assert none.why.startswith("Not enough: no option is done within 1.5 h and for $4.00")
    assert "enough would be $5.00 and 2.0 h" in none.why
    assert "$0.0042 and 0.00078 h (" in choose([tiny], budget_usd=0.000001).why
    assert "for $0.0000010 in nine" in choose([tiny], budget_usd=0.000001).why
    lost = replace(fast, hours_p50=inf, hours_p90=inf, usd_p50=inf, usd_p90=inf)
    assert lost.value == 0
    assert choose([lost]).outcome is None
    assert lost.samples_for(300.0) == (0.0, 0.0)


def test_a_budget_is_held_against_what_stands_beside_the_instances_too() -> None:
    first, second = [one for one in found().found if one.launchable][:2]
    alone = outcome(first, hours=10, usd=3, worse=2)
    one = replace(alone, beside_usd_per_hour=0.1)
    assert (one.whole_usd_p50, one.whole_usd_p90) == (4.0, 8.0)
    assert one.value == alone.value
    assert choose([alone], budget_usd=7).outcome is alone
    refused = choose([one], budget_usd=7)
    assert refused.outcome is None
    assert "enough would be $8.00 and 20.0 h" in refused.why
    assert one.samples_for(8.0) == (2 * one.samples, one.samples)
    # The slower pays longer for its disks: it is cheaper by its instances alone.
    fast = replace(outcome(second, hours=1, usd=7), beside_usd_per_hour=0.1)
    assert choose([one, fast], budget_usd=9).outcome is fast
    assert choose([alone, fast], budget_usd=9).outcome is alone


def mixed_of(grid: Grid, *, standbys: int = 0) -> Option:
    one = next(one for one in found().found if one.line.market == MIXED)
    choice = replace(one.plan.choice, grid=grid)
    plan = replace(one.plan, choice=choice, nodes=grid.size + standbys)
    return replace(one, plan=plan, anchors=anchors(grid))


@pytest.mark.parametrize(
    ("pipelines", "stages", "launchable"),
    [(1, 2, True), (1, 3, True), (1, 4, False), (2, 2, False)],
)
def test_a_mixed_option_can_be_launched_where_anchors_may_have_any_slots(
    pipelines: int, stages: int, launchable: bool
) -> None:
    grid = Grid(pipelines=pipelines, stages=stages)
    assert mixed_of(grid).launchable is launchable
    assert not mixed_of(grid, standbys=1).launchable


def test_a_mixed_option_is_chosen_only_where_a_launch_rents_what_is_meant() -> None:
    plain = outcome(next(one for one in found().found if one.line.market == ON_DEMAND), usd=2)
    for stages, launchable in ((2, True), (4, False)):
        mixed = outcome(mixed_of(Grid(pipelines=1, stages=stages)), usd=1)
        assert choose([mixed, plain]).outcome is (mixed if launchable else plain)


def test_of_options_worth_the_same_the_one_with_less_redundancy_is_chosen() -> None:
    table = [one for one in found().found if one.launchable]
    redundant = next(one for one in table if one.line.redundant)
    bare = next(one for one in table if not one.line.redundant)
    near = [outcome(redundant, usd=2), outcome(bare, usd=2 * (1 + SAME / 2))]
    chosen = choose(near)
    assert chosen.outcome is near[1]
    assert chosen.why.startswith("The most samples per dollar, to within 0.5 % as many as ")
    far = [outcome(redundant, usd=2), outcome(bare, usd=2 * (1 + SAME * 2))]
    assert choose(far).outcome is far[0]


def test_offers_with_rates_of_their_own_are_priced_as_each_would_be_alone() -> None:
    """All share their dry runs, and those whose zones are alike what is fatal on a grid."""
    rate = LossRate(per_node_hour=OFTEN, by_zone={"a": 0.1, "b": 3.0})
    zoned = replace(offer("zoned"), rate=rate)
    elsewhere = replace(offer("elsewhere"), rate=replace(rate, by_zone={"a": 3.0, "b": 0.1}))
    offers = (offer("plain"), offer("calm", hazard=0.01), zoned, elsewhere)
    together_ = {one.line: one for one in found(*offers, question=FEW).found}
    for each in offers:
        alone = {one.line: one for one in found(each, question=FEW).found}
        assert alone.items() <= together_.items()

    def lost(name: str) -> float:
        line = Line(instance_type=name, market=SPOT, spread="one", mode="stash")
        return together_[line].preemptions_per_node_hour

    # All in the cheaper zone.
    assert [lost(one.name) for one in offers] == pytest.approx([OFTEN, 0.01, 0.1, 3.0])


def test_where_no_plan_can_be_worth_enough_none_is_looked_at_closely() -> None:
    whole = found()
    best = whole.found[0].value
    hopeless = found(question=replace(QUESTION, least_value=100 * best))
    assert hopeless.found == ()
    at_most = dict(hopeless.behind)
    assert at_most.keys() == {one.line for one in whole.found}
    assert all(at_most[one.line] >= one.value for one in whole.found)
    assert found(question=replace(QUESTION, least_value=best)) == whole
