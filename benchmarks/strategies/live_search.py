"""The search while a run trains, against costs that the planner's model does not know.

    python -m benchmarks.strategies.live_search [--seeds 3]

The job with a wide embedding and wide layers, by its shapes, on 2 and 4 pipelines, 300 steps; one
link is slow, or one node, or both. In the last fleet all links and nodes are uneven as well, which
is none of the cases that a search weighs. Modelled: a step takes what a formula says, with 1 % of
noise; a strategy counts four steps after it was asked for. The launcher's own machine decides what
is tried.

Beside it stands the best strategy that knows the true times: that of a descent, one group of
parameters after the other, or the best candidate with which the search begins.

*ranking*    half of the candidates are measured, five steps each; of the pairs of the other half,
             those that differ by more than the noise, how many are put in their order by all that
             the search knows then, by the pairwise ranking alone, and by the price
*log*        the same search where the log has the trials of one other fleet
"""

import argparse
import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from bamboo.planner.sync.builders import Pricing
from bamboo.planner.sync.guesses import by_slowness
from bamboo.planner.sync.ranking import Ranking, accuracy, are_ranked
from bamboo.planner.sync.search import space_of
from bamboo.planner.sync.slowness import Slowness
from bamboo.planner.sync.trials import Log, measured_of, read_log
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import command_of, write_result
from testbed.hidden_costs import (
    WIDE,
    Fleet,
    Hidden,
    wide_search,
    wide_situation,
    wide_trials,
)

STEPS = 300
COSTS = {
    "slow link": Hidden(link=(0, 1), link_times=4),
    "slow node": Hidden(node=1, node_times=5),
    "both": Hidden(link=(1, 0), link_times=3, node=0, node_times=4),
    "uneven": Hidden(link=(0, 1), link_times=2.5, node=1, node_times=2.5, uneven=0.3),
}
ELSEWHERE = Hidden(link=(1, 0), link_times=4, node=1, node_times=4)
"""The fleet whose log helps."""
ROUNDS = 3
"""Times that the descent goes through all groups."""


def by_hand_s(pipelines: int, hidden: Hidden) -> float:
    """The step of the best strategy that is found with the true times known."""
    here = wide_situation(pipelines)
    fleet = Fleet(WIDE, here, hidden, seed=0)
    pricing = Pricing(WIDE, here)
    space = space_of(pricing.facts, here, bounds=(None, 0))
    _, found = wide_search(pipelines, "auto")
    best_s = min(fleet.step_s(one.sync) for one in found)
    chosen = [0] * len(space.groups)
    whole_s = fleet.step_s(pricing.sync(pricing.priced(space.entries(chosen))))
    for _ in range(ROUNDS):
        for place, options in enumerate(space.options):
            for number in range(len(options)):
                changed = [*chosen[:place], number, *chosen[place + 1 :]]
                step_s = fleet.step_s(pricing.sync(pricing.priced(space.entries(changed))))
                if step_s < whole_s:
                    whole_s, chosen = step_s, changed
    return min(best_s, whole_s)


def searched(pipelines: int, name: str, seed: int, log: Log) -> dict[str, Any]:
    """One run with a search."""
    search, found = wide_search(pipelines, "auto", log=log, steps=STEPS)
    fleet = Fleet(WIDE, wide_situation(pipelines), COSTS[name], seed)
    played = fleet.play(search, STEPS)
    return {
        "pipelines": pipelines,
        "costs": name,
        "seed": seed,
        "with_a_log": bool(log.trials),
        "candidates": len(found),
        "trials": played.trials,
        "first_s": played.first_s,
        "ended_s": played.ended_s,
        "spent": played.excess_s / played.total_s,
        "total_s": played.total_s,
        "stopped": played.stopped,
    }


def log_of(pipelines: int) -> Log:
    """That of a run with a search on another fleet."""
    search, _ = wide_search(pipelines, "auto", fleet="elsewhere", steps=STEPS)
    Fleet(WIDE, wide_situation(pipelines), ELSEWHERE, seed=99).play(search, STEPS)
    trials, finding = search.close(), search.finding()
    return read_log([one.line() for one in (*trials, *([finding] if finding else ()))])


def ranked(pipelines: int, name: str, seed: int) -> dict[str, Any]:
    """How well strategies are put in order that were not tried: by all that the search knows, by
    the pairwise ranking alone, and by the price."""
    trials = wide_trials(pipelines, COSTS[name], fleet="here", seed=seed)
    random.Random(seed).shuffle(trials)
    half = len(trials) // 2
    context = trials[0].context
    tried, rest = (measured_of(some)[context] for some in (trials[:half], trials[half:]))
    search, found = wide_search(pipelines, "auto", log=Log(trials=trials[:half]), steps=STEPS)
    by_hash = {one.hash: one for one in found}
    known = [(by_hash[hash], one) for hash, one in tried.items()]
    slowness = Slowness(WIDE, wide_situation(pipelines))
    search.explanations = slowness.explanations(known)
    asked = [by_hash[hash] for hash in (next(iter(tried)), *rest)]
    guess = partial(search.ranking().guess, context)
    guesses = by_slowness(slowness, search.explanations, guess, known, asked)
    means = {
        hash: sum(weight * one.mean for weight, one in own)
        for hash, own in zip(rest, guesses, strict=True)
    }
    both = itertools.combinations(rest.items(), 2)
    pairs = [pair for pair in both if are_ranked(pair[0][1], pair[1][1])]
    right = [
        (means[one] < means[other]) == (a.seconds < b.seconds) for (one, a), (other, b) in pairs
    ]
    measured = [(a, b) for (_, a), (_, b) in pairs]
    return {
        "pipelines": pipelines,
        "costs": name,
        "seed": seed,
        "pairs": len(pairs),
        "learned": sum(right) / len(right),
        "pairwise_alone": accuracy(Ranking(measured_of(trials[:half])), context, measured),
        "price_alone": accuracy(Ranking({}), context, measured),
    }


def claims(rows: Sequence[dict[str, Any]], ranks: Sequence[dict[str, Any]]) -> list[Claim]:
    """Distances and costs of all searches, accuracies, and trials with a log."""
    alone = [one for one in rows if not one["with_a_log"]]
    helped = [one for one in rows if one["with_a_log"]]
    best_s: dict[tuple[int, str], float] = {}
    for one in rows:
        case = one["pipelines"], one["costs"]
        best_s[case] = min(one["by_hand_s"], one["ended_s"], best_s.get(case, math.inf))
    behind = [100 * (one["ended_s"] / best_s[one["pipelines"], one["costs"]] - 1) for one in rows]
    learned = statistics.fmean(one["learned"] for one in ranks)
    priced = statistics.fmean(one["price_alone"] for one in ranks)
    fewer = sum(one["trials"] for one in helped) / sum(one["trials"] for one in alone)
    return [
        Claim(
            about="% behind the best by hand or of any search, worst", found=max(behind), limit=5
        ),
        Claim(
            about="% of the run that trials cost, most",
            found=100 * max(one["spent"] for one in rows),
            limit=5,
        ),
        Claim(about="accuracy of the ranking", found=learned, limit=0.8, at_most=False),
        Claim(about="above that of the price", found=learned - priced, limit=0, at_most=False),
        Claim(about="trials with a log, over those without", found=fewer, limit=1),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=at_least(1), default=3)
    options = parsed(parser)
    rows, ranks = [], []
    for pipelines, name in itertools.product((2, 4), COSTS):
        hand_s = by_hand_s(pipelines, COSTS[name])
        past = log_of(pipelines)
        for seed, log in itertools.product(range(options.seeds), (Log(), past)):
            one = searched(pipelines, name, seed, log) | {"by_hand_s": hand_s}
            rows.append(one)
            print(
                f"{pipelines} pipelines, {name:9} {'with a log' if log.trials else 'alone':10} "
                f"from {one['first_s']:.3f} s to {one['ended_s']:.3f} s (by hand {hand_s:.3f} s), "
                f"{one['trials']} trials cost {one['spent']:.1%}",
                flush=True,
            )
        ranks += [ranked(pipelines, name, seed) for seed in range(options.seeds)]
    found = claims(rows, ranks)
    for claim in found:
        print(claim.line())
    body = {
        "modelled": True,
        "searches": rows,
        "rankings": ranks,
        "claims": [asdict(claim) for claim in found],
    }
    print(write_result("live-search", command_of("strategies.live_search", options), body))


if __name__ == "__main__":
    main()
