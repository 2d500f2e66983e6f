"""What a trial may win and lose, by all that is known before it.

Rule: pure. A guess is of the log of a strategy's step less that of the incumbent; gains, losses and
risks are shares of the incumbent's step.
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
"""Probability with which a trial may lose more than its risk."""
MOST_LOG = 50.0
"""A step that takes e to this times as long is as bad as any."""
Guesses = Sequence[tuple[float, Guess]]
"""Weights, whose sum is 1, and what is guessed with each."""
Ranked = Callable[[Measured, Measured], Guess]
"""What the ranking says of two strategies in one context."""


def by_ranking(ranked: Ranked, some: Sequence[Candidate]) -> Sequence[Guesses]:
    """Of each strategy but the first, the difference from the first one."""
    first, *others = map(_priced, some)
    return [[(1.0, ranked(one, first))] for one in others]


def by_slowness(
    slowness: Slowness,
    explanations: Sequence[Explanation],
    ranked: Ranked,
    measured: Sequence[tuple[Candidate, Measured]],
    some: Sequence[Candidate],
) -> Sequence[Guesses]:
    """Likewise, under each explanation. What the ranking has learned is added to prices."""
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
    """Strategies with the mean of their prices under all explanations."""
    if not some:
        return {}
    logs = slowness.log_prices([one.case for one in explanations], some)
    means = np.exp(np.array([one.weight for one in explanations]) @ logs)
    return {
        one.hash: replace(_priced(one), price_s=mean)
        for one, mean in zip(some, means.tolist(), strict=True)
    }


def _priced(one: Candidate) -> Measured:
    """What is known of it without a measurement."""
    return Measured(price_s=one.price_s, features=one.features, seconds=1.0, noise=0.0)


def apart(one: Measured, other: Measured) -> Guess:
    """What was measured of both."""
    mean = math.log(one.seconds / other.seconds)
    return Guess(mean=mean, spread=math.hypot(one.noise, other.noise))


def gain(guesses: Guesses) -> float:
    """What a step is expected to win (Mockus, 1975)."""
    return sum(weight * _less(one) for weight, one in guesses)


def loss(guesses: Guesses) -> float:
    """What a step is expected to lose."""
    return sum(weight * _more(one) for weight, one in guesses)


def risk(guesses: Guesses) -> float:
    """What a step loses at most, but for explanations that are UNLIKELY together; the expected loss
    if that is more."""
    left = UNLIKELY
    for weight, one in sorted(guesses, key=lambda guess: -guess[1].mean):
        left -= weight
        if left <= 0:
            return max(loss(guesses), _more(one))
    return loss(guesses)


def _less(guess: Guess) -> float:
    """The expected value of the positive part of 1 - exp(x), for a normal x."""
    mean, spread = guess.mean, guess.spread
    if spread <= 0:
        return max(0.0, -math.expm1(min(0.0, mean)))
    beyond = _below(-mean / spread - spread)
    return max(0.0, _below(-mean / spread) - math.exp(_log_of_mean(guess)) * beyond)


def _more(guess: Guess) -> float:
    """Likewise that of exp(x) - 1."""
    return math.expm1(_log_of_mean(guess)) + _less(guess)


def _log_of_mean(guess: Guess) -> float:
    """The log of the expected value of exp(x), as far as it makes a difference."""
    return min(MOST_LOG, guess.mean + guess.spread**2 / 2)


def _below(z: float) -> float:
    """The probability that a standard normal value is less."""
    return 0.5 * math.erfc(-z / math.sqrt(2))
