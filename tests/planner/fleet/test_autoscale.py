"""The autoscaler comes to the best size with few resizes, and stays there; odd cases."""

import json
import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from bamboo.errors import CoreMisuse
from bamboo.planner.fleet.autoscale import (
    RESIZES,
    Resize,
    Scaling,
    decide,
    with_times,
    without_capacity,
)
from bamboo.planner.fleet.fleet_size import Rule, Situation, Utility, best_size, marginal_value
from bamboo.planner.fleet.scaling_curve import LEAST, MOST
from tests.planner.fleet.scaling import curve, play, sizes

CURVES = 200
RULE = Rule(sizes=(2, 4, 6, 8), batch=10)
NOW = Situation(at_s=0.0, passed_s=0.0, steps_left=10_000, node_usd_per_hour=1.0)


def seen(nodes: int, **times_s: float) -> Scaling:
    """At `nodes`; `n4=0.5`: steps at 4 nodes were seen to take half a second."""
    scaling = Scaling(nodes=nodes)
    for name, took_s in times_s.items():
        scaling = with_times(scaling, int(name[1:]), [took_s] * LEAST)
    return scaling


def resized(scaling: Scaling, rule: Rule = RULE, now: Situation = NOW) -> Resize | None:
    return decide(scaling, rule, now, step=5)[1]


# ------------------------------------------------------------------------------ random curves


def test_the_curves_are_what_they_are_said_to_be() -> None:
    """Step times convex, throughput concave up to its peak, and once the next nodes are not worth
    it none are."""
    for seed in range(CURVES):
        chance = random.Random(seed)
        step_s = curve(chance)
        rate = {k: 1 / step_s(k) for k in range(1, 100)}
        peak = max(rate, key=lambda k: rate[k])
        for k in range(2, 99):
            assert step_s(k + 1) + step_s(k - 1) >= 2 * step_s(k) - 1e-12
            assert k >= peak or rate[k + 1] + rate[k - 1] <= 2 * rate[k] + 1e-12
        able = sizes(chance)
        rule = Rule(sizes=able, batch=1)
        times_s = {k: step_s(k) for k in able}
        worth = [marginal_value(rule, times_s, a, b) > rule.marginal for a, b in pairwise(able)]
        assert worth == sorted(worth, reverse=True)


@pytest.mark.parametrize("utility", ["none", "linear"])
def test_without_noise_it_always_comes_to_the_best_size(utility: str) -> None:
    played = [play(seed, noise=0.0, utility=utility) for seed in range(CURVES)]
    assert [p.off for p in played] == [0] * CURVES
    assert len({p.best for p in played}) > 20
    counts = [len(p.resizes) for p in played]
    assert max(counts) <= RESIZES
    assert sum(counts) / CURVES < 5


@pytest.mark.parametrize(
    "utility", [*(pytest.param(one, marks=pytest.mark.full) for one in ("none", "linear")), "step"]
)
def test_with_noise_it_comes_within_one_size_of_it(utility: str) -> None:
    """By a deadline a size that is a little too slow is worth nothing: where two sizes finish about
    when it is over, noise may lead to another one far from the best."""
    played = [play(seed, noise=0.03, utility=utility) for seed in range(CURVES)]
    assert sum(p.off <= 1 for p in played) >= 0.95 * CURVES
    counts = [len(p.resizes) for p in played]
    assert max(counts) <= RESIZES + 1
    assert sum(counts) / CURVES < 5


def test_a_deadline_is_met_where_the_rule_says_so() -> None:
    """Predictions of sizes that were never seen decide here, so a few are one or two sizes off."""
    played = [play(seed, noise=0.0, utility="step") for seed in range(CURVES)]
    assert sum(p.off == 0 for p in played) >= 0.95 * CURVES
    assert max(len(p.resizes) for p in played) <= RESIZES + 1


# ------------------------------------------------------------------------------ single decisions


def test_nothing_is_decided_without_data() -> None:
    for nodes, times_s in ((2, []), (2, [0.5] * (LEAST - 1)), (4, [])):
        scaling = with_times(Scaling(nodes=nodes), nodes, times_s)
        assert decide(scaling, RULE, NOW, step=0) == (scaling, None)
    elsewhere = seen(4, n2=0.5)
    assert decide(elsewhere, RULE, NOW, step=0) == (elsewhere, None)


@pytest.mark.parametrize("odd", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_what_cannot_be_a_time_is_no_time(odd: float) -> None:
    empty = Scaling(nodes=2)
    assert with_times(empty, 2, [odd] * 20) == empty
    mixed = with_times(empty, 2, [odd, 0.5, odd])
    assert mixed.times_s == ((2, (0.5,)),)


def test_one_size_alone_tells_nothing_so_another_is_looked_at() -> None:
    grown = resized(seen(2, n2=0.5))
    assert grown is not None
    assert (grown.before, grown.nodes, grown.expected_samples_per_s) == (2, 4, 0.0)
    assert grown.reason == "grow from 2 to 4 nodes: no other size has been measured yet"
    assert grown.samples_per_s == 20.0
    shrunk = resized(seen(8, n8=0.5))
    assert shrunk is not None
    assert shrunk.nodes == 4


def test_a_fleet_of_one_size_stays() -> None:
    only = replace(RULE, sizes=(4,))
    after, resize = decide(seen(4, n4=0.5), only, NOW, step=0)
    assert resize is None
    assert decide(after, only, NOW, step=0) == (after, None)


def test_it_grows_and_shrinks_by_the_marginal_value() -> None:
    grown = resized(seen(4, n2=1.0, n4=0.6))
    assert grown is not None
    assert grown.nodes > 4
    assert "above autoscale.marginal = 0.1" in grown.reason
    shrunk = resized(seen(4, n2=1.0, n4=0.99))
    assert shrunk is not None
    assert shrunk.nodes == 2
    assert shrunk.reason == (
        "shrink from 4 to 2 nodes: from 2 to 4 nodes samples/s go from 10 to 10.1, a marginal "
        "value of 0.01, not above autoscale.marginal = 0.1"
    )


def test_finishing_sooner_may_be_worth_more_than_it_costs() -> None:
    """10,000 steps: 2.78 h at 2 nodes and 2.5 h at 4, $5.56 and $10."""
    times = seen(2, n2=1.0, n4=0.9, n6=0.89, n8=0.89)
    dear = replace(RULE, marginal=0.5)
    assert resized(times, dear) is None
    for kind, usd, nodes in (
        ("step", 5.0, 4),
        ("step", 4.0, 2),
        ("linear", 100.0, 4),
        ("linear", 10.0, 2),
    ):
        wish = Utility(kind=kind, usd=usd, deadline_s=9500.0)
        resize = resized(times, replace(dear, utility=wish))
        assert (2 if resize is None else resize.nodes) == nodes, (kind, usd)
        if resize is not None:
            assert "s sooner with 4 is worth $" in resize.reason


def test_it_does_not_flap() -> None:
    """Once it has come to rest, a thousand noisy steps move it no more."""
    chance = random.Random(1)
    for nodes in RULE.sizes:
        scaling, resizes = Scaling(nodes=nodes), 0
        for turn in range(200):
            took_s = 0.2 + 1 / scaling.nodes
            noisy = [took_s * math.exp(chance.gauss(0, 0.05)) for _ in range(10)]
            scaling, resize = decide(
                with_times(scaling, scaling.nodes, noisy), RULE, NOW, step=turn
            )
            resizes += resize is not None
            assert resize is None or turn < 120
        assert resizes <= RESIZES


@pytest.mark.parametrize(("off", "moves"), [(0.0, True), (0.02, False)])
def test_what_noise_alone_may_decide_is_no_reason_to_move(off: float, moves: bool) -> None:
    """From 4 to 6 nodes a marginal value of 0.101, or one that noise may have made of 0.099."""
    rate = {2: 7.0, 4: 10.0, 6: 10.505, 8: 10.6}
    scaling = Scaling(nodes=4)
    for size, samples_per_s in rate.items():
        times_s = [share / samples_per_s for share in (1 - off, 1 + off)] * (MOST // 2)
        scaling = with_times(scaling, size, times_s)
    resize = resized(scaling)
    assert (resize is not None) is moves


def test_another_pace_is_another_run() -> None:
    """All is twice as slow, and nodes bring nothing any more: what was learned is forgotten."""
    scaling, _ = decide(seen(8, n2=1.0, n4=0.55, n6=0.4, n8=0.32), RULE, NOW, step=0)
    assert scaling.kept_step_s > 0
    scaling = with_times(scaling, 8, [0.8] * 2 * LEAST)
    for _ in range(10):
        scaling, resize = decide(scaling, RULE, NOW, step=9)
        if resize is not None:
            scaling = with_times(scaling, scaling.nodes, [0.8] * LEAST)
    assert scaling.nodes == 2
    assert dict(scaling.times_s)[2] == (0.8,) * LEAST


def test_the_last_steps_are_left_alone() -> None:
    assert resized(seen(2, n2=0.5), now=replace(NOW, steps_left=LEAST)) is None


# ------------------------------------------------------------------------------ money and capacity


def test_growing_never_goes_beyond_the_budget() -> None:
    """10,000 steps of 1 s at 2 nodes and $1/h: $5.56 to the end; to look at 4 costs more."""
    learned = seen(2, n2=1.0, n4=0.9)
    paid = replace(RULE, marginal=0.0)
    assert resized(learned, paid, replace(NOW, max_usd=100.0)) is not None
    assert resized(learned, paid, replace(NOW, max_usd=9.9)) is None
    spent = replace(NOW, max_usd=100.0, spent_usd=91.0)
    assert resized(learned, paid, spent) is None
    alone = seen(2, n2=1.0)
    assert resized(alone, paid, replace(NOW, max_usd=5.57)) is None
    assert resized(alone, paid, replace(NOW, max_usd=5.7)) is not None


def test_a_size_that_does_not_fit_the_budget_is_left() -> None:
    for max_usd, nodes in ((12.0, 4), (6.0, 2), (1.0, 2)):
        resize = resized(seen(8, n2=1.0, n4=0.8, n8=0.7), now=replace(NOW, max_usd=max_usd))
        assert resize is not None
        assert resize.nodes == nodes
        assert f"$15.56, and budget.max_usd = {max_usd:g}" in resize.reason


def test_a_wish_without_capacity_is_not_repeated_before_its_time() -> None:
    scaling = replace(seen(2, n2=1.0), nodes=4)
    fallen, reason = without_capacity(scaling, RULE, here=3, now_s=100.0, until_s=280.0)
    assert fallen.nodes == 2
    assert reason == "3 of 4 nodes could be had; not asked again for 180 s"
    again = without_capacity(fallen, RULE, here=3, now_s=101.0, until_s=281.0)
    assert again == (fallen, "")
    for at_s, grows in ((101.0, False), (279.0, False), (280.0, True)):
        resize = resized(fallen, now=replace(NOW, at_s=at_s))
        assert (resize is not None) is grows


def test_a_settled_size_is_thought_over_when_there_is_capacity_again() -> None:
    scaling = replace(seen(2, n2=1.0), nodes=4)
    fallen, _ = without_capacity(scaling, RULE, here=2, now_s=0.0, until_s=180.0)
    kept, resize = decide(fallen, RULE, NOW, step=0)
    assert resize is None
    assert kept.kept_for == (2,)
    assert resized(kept, now=replace(NOW, at_s=181.0)) is not None


# ------------------------------------------------------------------------------ the value


def test_what_is_known_comes_back_from_json() -> None:
    scaling = replace(
        seen(4, n2=1.0, n4=0.6), barred=((6, 99.5),), kept_step_s=0.6, kept_for=(2, 4), kept_left=7
    )
    text = json.dumps(scaling.to_body())
    assert Scaling.of_body(json.loads(text)) == scaling
    with pytest.raises(KeyError):
        Scaling.of_body({"nodes": 2})


def test_a_successor_decides_as_its_predecessor_would() -> None:
    scaling = seen(4, n2=1.0, n4=0.6)
    read = Scaling.of_body(json.loads(json.dumps(scaling.to_body())))
    assert decide(read, RULE, NOW, step=5) == decide(scaling, RULE, NOW, step=5)


def test_of_many_times_the_last_count() -> None:
    scaling = with_times(Scaling(nodes=2), 2, [0.5] * 1000)
    assert len(dict(scaling.times_s)[2]) == MOST


@pytest.mark.parametrize("wrong", [(), (0, 2), (4, 2), (2, 2)])
def test_sizes_ascend(wrong: tuple[int, ...]) -> None:
    with pytest.raises(CoreMisuse, match="not ascending"):
        Rule(sizes=wrong, batch=1)


def test_the_best_size_is_the_first_that_nothing_beyond_is_worth() -> None:
    falling = {2: 1.0, 4: 0.6, 6: 0.58, 8: 0.3}
    assert best_size(RULE, falling, NOW) == 4
    assert best_size(replace(RULE, marginal=0.9), falling, NOW) == 2
    assert best_size(replace(RULE, marginal=0.0), falling, NOW) == 8
