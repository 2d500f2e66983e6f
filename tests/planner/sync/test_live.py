"""The search in a run: it ends with the best, spends little, learns from its log, and believes no
line that is none."""

import itertools
import json
import math
import random
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync import ranking
from bamboo.planner.sync.builders import build
from bamboo.planner.sync.candidates import Candidate, candidates, neighbours
from bamboo.planner.sync.guesses import gain, loss, risk
from bamboo.planner.sync.live import MOST_SPENT, LiveSearch
from bamboo.planner.sync.price import price
from bamboo.planner.sync.ranking import Guess, Ranking, accuracy, are_ranked
from bamboo.planner.sync.repriced import Case, Repriced, log_steps, steps_s
from bamboo.planner.sync.resolved import resolve
from bamboo.planner.sync.situation import Slow
from bamboo.planner.sync.slowness import Slowness, in_words
from bamboo.planner.sync.trials import Finding, Measured, Trial, measured_of, read_log
from bamboo.topology.sync import FACTORS, Sync
from testbed.hidden_costs import WIDE, Fleet, Hidden, wide_search, wide_situation, wide_trials

SLOW = Hidden(link=(0, 1), link_times=4, node=0, node_times=3)


def test_a_search_ends_with_the_best_and_spends_little() -> None:
    search, found = wide_search(2, "tree", steps=300)
    fleet = Fleet(WIDE, wide_situation(2), SLOW, seed=1)
    played = fleet.play(search, 300)
    best_s = min(fleet.step_s(one.sync) for one in found)
    assert played.ended_s <= 1.02 * best_s < 0.8 * played.first_s
    assert played.excess_s <= 0.05 * played.total_s
    assert played.trials > 1
    assert played.stopped
    assert search.excess_s > 0


def test_what_was_slow_in_another_fleet_is_not_taken_for_a_habit_of_all_fleets() -> None:
    """Prices of its trials count as they are with what was slow there."""
    there, _ = wide_search(2, "auto", fleet="elsewhere", steps=120)
    elsewhere = Hidden(link=(1, 0), link_times=4, node=1, node_times=4)
    Fleet(WIDE, wide_situation(2), elsewhere, seed=99).play(there, 120)
    finding = there.finding()
    assert finding is not None
    log = read_log([one.line() for one in (*there.close(), finding)])
    assert log.passed_over == 0
    search, found = wide_search(2, "auto", log=log, steps=120)
    fleet = Fleet(WIDE, wide_situation(2), Hidden(link=(0, 1), link_times=4), seed=0)
    played = fleet.play(search, 120)
    assert played.ended_s <= 1.05 * min(fleet.step_s(one.sync) for one in found)
    assert played.excess_s <= 0.05 * played.total_s


@pytest.mark.parametrize("sums_early", [False, True])
@pytest.mark.parametrize("copied_bytes_per_s", [0.0, 1e8])
def test_many_cases_are_priced_at_once_as_one_by_one(
    sums_early: bool, copied_bytes_per_s: float
) -> None:
    here = replace(
        wide_situation(3),
        sums_early=sums_early,
        node_bytes_per_s=2e8,
        replica=copied_bytes_per_s > 0,
        copied_bytes_per_s=copied_bytes_per_s,
    )
    node, link = Slow(stage=0, pipeline=1, times=4), Slow(stage=0, pipeline=2, to=0, times=3)
    cases = [(), (node,), (link,), (link, node)]
    some = [build(name, WIDE, here) for name in ("tree", "owner", "auto")]
    some.append(Sync(bucket=0))
    found = steps_s([Repriced(resolve(one, WIDE, here)) for one in some], cases)
    for sync, own in zip(some, found, strict=True):
        for slow, step_s in zip(cases, own, strict=True):
            there = resolve(sync, WIDE, replace(here, slow=slow))
            assert step_s == pytest.approx(price(there).step_s, rel=1e-12)


@pytest.mark.parametrize("sums_early", [False, True])
def test_phases_take_at_least_as_long_as_what_overlaps_and_of_one_bucket_as_long(
    sums_early: bool,
) -> None:
    here = replace(wide_situation(3), sums_early=sums_early, node_bytes_per_s=2e8)
    cases = [(), (Slow(stage=0, pipeline=1, times=4),), (Slow(stage=0, pipeline=2, to=0, times=3),)]
    one_bucket = [build(name, WIDE, here) for name in ("tree", "owner")]
    several = [build("auto", WIDE, here), Sync(bucket=0)]
    some = [Repriced(resolve(one, WIDE, here)) for one in (*one_bucket, *several)]
    found, in_phases = steps_s(some, cases), steps_s(some, cases, in_phases=True)
    whole_s = pytest.approx(found[:2, :2], rel=1e-9)
    assert in_phases[:2, :2] == whole_s, "with no link slower than the others"
    assert (in_phases[:2] >= found[:2] * (1 - 1e-9)).all()
    assert (in_phases[2:] > found[2:]).all()
    half = log_steps(some, [Case(slow=slow, in_phases=0.5) for slow in cases])
    assert half == pytest.approx(np.log((found + in_phases) / 2), rel=1e-9)


def test_a_fleet_that_overlaps_less_than_its_price_is_found_out() -> None:
    _, found = wide_search(2, "auto")
    measured = measured_of(wide_trials(2, Hidden(), fleet="here", seed=1))["wide", "here"]
    known = [(one, measured[one.hash]) for one in found]
    first = Slowness(WIDE, wide_situation(2)).explanations(known)[0]
    assert first.case.slow == ()
    assert first.case.in_phases >= 0.5
    assert in_words(first.case).startswith("exchanges overlap by ")


def test_trials_teach_what_the_price_does_not_know() -> None:
    trials = wide_trials(2, SLOW, fleet="here", seed=2)
    learned, priced = [], []
    for seed in range(8):
        random.Random(seed).shuffle(trials)
        context, half = trials[0].context, len(trials) // 2
        pairs = list(itertools.combinations(measured_of(trials[half:])[context].values(), 2))
        learned.append(accuracy(Ranking(measured_of(trials[:half])), context, pairs))
        priced.append(accuracy(Ranking({}), context, pairs))
    assert fmean(learned) >= 0.8
    assert fmean(learned) > fmean(priced)


def measured(seconds: float, noise: float = 0.01) -> Measured:
    return Measured(price_s=1.0, features={}, seconds=seconds, noise=noise)


def test_a_pair_within_the_noise_is_not_ranked() -> None:
    assert are_ranked(measured(1.0), measured(1.1))
    assert not are_ranked(measured(1.0), measured(1.02))
    with pytest.raises(ValueError, match="by more than the noise"):
        accuracy(Ranking({}), ("j", "f"), [(measured(1.0), measured(1.01))])


def test_a_long_log_is_learned_from_as_far_as_it_can_be_fitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every loss makes another fleet, whose links and nodes have features of their own: the newest
    fleets count, and the one of which a trial is newest is the last."""
    features = {f"bytes@{number}": 1e6 for number in range(10)}
    trials = [
        Trial(
            job="j",
            fleet=f"f{fleet}",
            strategy=strategy,
            price_s=1.0,
            features=features,
            seconds=(seconds,) * 6,
        )
        for fleet in (0, *range(1, 40), 0)
        for strategy, seconds in (("a", 1.0), ("b", 2.0))
    ]
    contexts = measured_of(trials)
    assert [*contexts][-1] == ("j", "f0")
    monkeypatch.setattr(ranking, "MOST_NAMES", 35)
    found = Ranking(contexts)
    assert {name.split("/")[1] for name in found.names if "/" in name} == {"f0", "f39", "f38"}
    monkeypatch.setattr(ranking, "MOST_PAIRS", 2)
    assert len(Ranking(contexts).names) == 21


def test_what_no_node_has_the_memory_for_is_not_tried() -> None:
    """A run that begins within its memory stays so: factors are held beside all else."""
    situation, now = wide_situation(2), Sync()
    roomy = candidates(WIDE, situation, now=now, now_words="tree")
    tight = replace(situation, spare_bytes=(1000,) * situation.stages)
    found = candidates(WIDE, tight, now=now, now_words="tree")
    found += neighbours(WIDE, tight, now)
    assert any(rule.exchange == FACTORS for one in roomy for rule in one.sync.rules)
    assert not any(rule.exchange == FACTORS for one in found for rule in one.sync.rules)


@pytest.mark.parametrize("pipelines", [1, 2])
def test_words_of_a_candidate_tell_what_it_changes(pipelines: int) -> None:
    """With one pipeline nothing is exchanged, so the kind of the ship alone is said."""
    here = replace(wide_situation(pipelines), replica=True)
    twice = [replace(one, name=f"{one.name}{n}") for n in (0, 1) for one in WIDE]
    small = [ParameterFacts(name=f"5.{name}", shape=(8,), layer=5) for name in ("a", "b")]
    found = neighbours([*twice, *small], here, Sync())
    words = [one.words.removeprefix("the fastest so far with ") for one in found]
    by = "by `factors` and " if pipelines > 1 else ""
    assert f"4.wide0 and 1 alike {by}shipped by `factors`" in words
    assert len({*words}) == len(words)
    assert pipelines > 1 or not any(" by `tree`" in one for one in words)
    tried = candidates([*WIDE, *small], here, now=Sync(), now_words="tree")
    assert not any("(all else)" in one.words for one in tried)
    rest = [one.words for one in tried if "all else of layer 5" in one.words]
    assert bool(rest) == (pipelines > 1), rest


def candidate(name: str, price_s: float) -> Candidate:
    features = {"sum of bytes": price_s}
    return Candidate(hash=name, words=name, price_s=price_s, features=features, sync=Sync())


def search(steps: int = 100) -> LiveSearch:
    names = [candidate("a", 1.0), candidate("b", 0.8), candidate("c", 0.9)]
    return LiveSearch(names, context=("j", "f"), now="a", steps=steps)


def told(of: LiveSearch, name: str, seconds: float, steps: int, at: int = 10) -> list[str]:
    """What it answers after each of so many steps; the first one of a strategy settles."""
    out = []
    for _ in range(steps):
        of.stepped(name, seconds)
        answer = of.next(at)
        out += [] if answer is None else [answer.hash]
    return out


def test_what_is_asked_for_and_never_decided_is_no_trial() -> None:
    one = search()
    assert told(one, "a", 1.0, 20) == ["b"]
    one.withdrawn()
    assert told(one, "a", 1.0, 1) == ["b"]
    assert (one.trials, one.close()[0].strategy) == (0, "a")


def test_what_wins_stays_and_what_loses_goes_at_once() -> None:
    one = search()
    assert told(one, "a", 1.0, 20) == ["b"]
    assert told(one, "a", 1.0, 5) == [], "the answer does not count yet"
    assert told(one, "b", 1.4, 2) == ["c"], "after one step that counts"
    assert told(one, "b", 1.4, 3) == []
    assert told(one, "c", 0.7, 30) == [], "it stays"
    assert one.incumbent == "c"
    assert one.stopped
    assert one.excess_s == pytest.approx(5 * 0.4)
    assert [(x.strategy, len(x.seconds)) for x in one.close()] == [("a", 24), ("b", 4), ("c", 29)]
    assert one.close() == ()


def test_what_is_faster_by_less_than_the_noise_does_not_take_the_place_of_the_best() -> None:
    one = search()
    assert told(one, "a", 1.0, 20) == ["b"]
    assert told(one, "b", 0.999, 12) == ["c"]
    assert one.incumbent == "a"


def test_what_a_node_refuses_is_not_asked_again_and_little_is_spent() -> None:
    one = search()
    assert told(one, "a", 1.0, 20) == ["b"]
    one.refused("b")
    assert told(one, "a", 1.0, 1) == ["c"]
    assert one.trials == 0, "neither is decided"
    one.chosen("c")
    assert told(one, "c", 5.0, 6) == ["a"], "no other is left"
    one.chosen("a")
    assert one.trials == 1, "the incumbent is none"
    assert one.excess_s > MOST_SPENT * 100
    short = search(steps=12)
    assert told(short, "a", 1.0, 20) == []
    assert short.stopped == "too few steps are left"
    with pytest.raises(ValueError, match="is no candidate"):
        LiveSearch([candidate("a", 1.0)], context=("j", "f"), now="x", steps=9)


@pytest.mark.parametrize("mean", [-1e6, -800.0, 0.0, 800.0, 1e6])
@pytest.mark.parametrize("spread", [0.0, 1e-9, 50.0, 1e6])
def test_a_guess_that_is_beyond_measure_still_has_a_worth(mean: float, spread: float) -> None:
    guesses = [(1.0, Guess(mean=mean, spread=spread))]
    figures = (gain(guesses), loss(guesses), risk(guesses))
    assert all(map(math.isfinite, figures))
    assert 0 <= gain(guesses) <= 1
    assert 0 <= loss(guesses) <= risk(guesses)


def test_lines_that_are_no_trials_are_passed_over_and_counted() -> None:
    trial = Trial(
        job="j", fleet="f", strategy="s", price_s=1.0, features={"a": 0.0}, seconds=(1.0, 2.0)
    )
    line, good = trial.line(), json.loads(trial.line())
    spoiled = [
        *({**good, name: None} for name in good),
        {**good, "seconds": []},
        {**good, "seconds": [1.0, -1.0]},
        {**good, "seconds": [True]},
        {**good, "features": {"a": "1"}},
        {**good, "price_s": 0.0},
        {**good, "price_s": 5e-324},  # of which a quotient is endless
        {**good, "seconds": [1e308]},
        {**good, "features": {"a": 1e300}},
        {**good, "more": 1},
        [good],
    ]
    torn = ["", line[:-9], "\x00", "[" * 100_000, '{"v": 1e999}']
    odd = [line.replace("0.0", "NaN"), line.replace("1.0", "1e999")]
    finding = Finding(job="j", fleet="f", links=(4.0,), prices_s={"s": 1.0}, error=0.05, degrees=3)
    kept = json.loads(finding.line())
    spoiled += [{**kept, name: "x"} for name in ("links", "nodes", "prices_s", "error", "degrees")]
    spoiled += [{**kept, "in_phases": share} for share in ("x", -1.0, 1.5, True)]
    spoiled += [{**kept, "links": [-1.0]}, {**kept, "prices_s": {"s": 0.0}}, {**kept, "fleet": ""}]
    spoiled += [{**kept, "error": 1e200}, {**kept, "links": [1e300]}]
    found = read_log([line, *map(json.dumps, spoiled), *torn, *odd, line, finding.line()])
    assert found.trials == (trial, trial)
    assert found.findings == (finding,)
    assert found.passed_over == len(spoiled) + len(torn) + len(odd)
