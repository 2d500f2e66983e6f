"""What the trial of a strategy may win and lose, from what is known before it.

Rule: pure. A guess is a normal distribution of the log of a strategy's step less the log of the
incumbent's step. Gains, losses and risks are shares of the incumbent's step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from bamboo.planner.sync.candidates import Candidate
from bamboo.planner.sync.ranking import Guess
from bamboo.planner.sync.slowness import Explanation, Slowness
from bamboo.planner.sync.trials import Measured

UNLIKELY = 0.1
"""The probability with which a trial may lose more than its risk."""
MOST_LOG = 50.0
"""The largest log of a mean that is computed: a step that takes e to this times as long is as bad
as any."""
Guesses = Sequence[tuple[float, Guess]]
"""The guesses for one strategy: one under each explanation, with the weight of that explanation.
The weights sum to 1."""
Ranked = Callable[[Measured, Measured], Guess]
"""`Ranking.guess` in one context."""


def by_ranking(ranked: Ranked, some: Sequence[Candidate]) -> Sequence[Guesses]:
    """By the ranking alone, the guesses for each strategy after the first; the first one is the
    incumbent."""
    first, *others = map(_priced, some)
    return [[(1.0, ranked(one, first))] for one in others]


def by_slowness(
    slowness: Slowness,
    explanations: Sequence[Explanation],
    ranked: Ranked,
    measured: Sequence[tuple[Candidate, Measured]],
    some: Sequence[Candidate],
) -> Sequence[Guesses]:
    """The same under each explanation, from `measured` and from prices, to which is added what the
    ranking has learned."""
    once = {one.hash: one for one in (*(x for x, _ in measured), *some)}
    prices = mean_prices(slowness, explanations, list(once.values()))
    first = prices[some[0].hash]
    learned = {
        hash: ranked(one, first).mean - math.log(one.price_s / first.price_s)
        for hash, one in prices.items()
    }
    means, spreads = slowness.differences(explanations, measured, some, learned)
    weights = [one.weight for one in explanations]
    return [
        [
            (weight, Guess(mean=mean, spread=spread))
            for weight, mean in zip(weights, own, strict=True)
        ]
        for own, spread in zip(means.T.tolist()[1:], spreads.tolist()[1:], strict=True)
    ]


def mean_prices(
    slowness: Slowness, explanations: Sequence[Explanation], some: Sequence[Candidate]
) -> dict[str, Measured]:
    """Strategy -> what is known of it without a measurement, with the mean of its log prices under
    all explanations."""
    if not some:
        return {}
    logs = slowness.log_prices([one.case for one in explanations], some)
    means = np.exp(np.array([one.weight for one in explanations]) @ logs)
    return {
        one.hash: replace(_priced(one), price_s=mean)
        for one, mean in zip(some, means.tolist(), strict=True)
    }


def _priced(one: Candidate) -> Measured:
    """A strategy as the ranking takes it, before any measurement: `seconds` means nothing."""
    return Measured(price_s=one.price_s, features=one.features, seconds=1.0, noise=0.0)


def measured_difference(one: Measured, other: Measured) -> Guess:
    """The log of the first one's step less that of the second one's, both measured."""
    mean = math.log(one.seconds / other.seconds)
    return Guess(mean=mean, spread=math.hypot(one.noise, other.noise))


def gain(guesses: Guesses) -> float:
    """The expected improvement of a step (Mockus, 1975): what it wins where it is faster, and 0
    where it is slower."""
    return sum(weight * _expected_gain(one) for weight, one in guesses)


def loss(guesses: Guesses) -> float:
    """What a step is expected to lose: 0 where it is faster."""
    return sum(weight * _expected_loss(one) for weight, one in guesses)


def risk(guesses: Guesses) -> float:
    """What a step may lose: the expected loss under the worst explanation, where explanations that
    are worse still may have the probability UNLIKELY together; at least the loss expected over all.
    """
    left = UNLIKELY
    for weight, one in sorted(guesses, key=lambda guess: -guess[1].mean):
        left -= weight
        if left <= 0:
            return max(loss(guesses), _expected_loss(one))
    return loss(guesses)


def _expected_gain(guess: Guess) -> float:
    """The expected value of the positive part of 1 - exp(x), for x distributed as the guess."""
    mean, spread = guess.mean, guess.spread
    if spread <= 0:
        return max(0.0, -math.expm1(min(0.0, mean)))
    at = -mean / spread
    beyond = _probability_below(at - spread)
    return max(0.0, _probability_below(at) - math.exp(_log_of_mean(guess)) * beyond)


def _expected_loss(guess: Guess) -> float:
    """The expected value of the positive part of exp(x) - 1."""
    return math.expm1(_log_of_mean(guess)) + _expected_gain(guess)


def _log_of_mean(guess: Guess) -> float:
    """The log of the expected value of exp(x), at most MOST_LOG."""
    return min(MOST_LOG, guess.mean + guess.spread**2 / 2)


def _probability_below(z: float) -> float:
    """The probability that a standard normal value is less than `z`."""
    return 0.5 * math.erfc(-z / math.sqrt(2))
