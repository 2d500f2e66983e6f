"""Which of two strategies is faster, learned from trials on top of the analytic price.

The model is pairwise and logistic (Bradley and Terry, 1952): the log of a strategy's step time is
taken to be the log of its price and a weighted sum of features, and one strategy is faster than
another with a probability that follows from the difference. A pair that was measured counts with
the probability that its measured difference gives, so that weights are in units of log time; a pair
that differs by less than the noise does not count. Weights are normal around 0, and what is not
known of them is the curvature at their best value (MacKay, "The evidence framework applied to
classification networks", 1992).

Rule: features are compared by their logs, so that a log of one job and fleet helps another. What is
measured of a node or a link by its number holds on its own fleet alone (`is_local`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count

import numpy as np
from numpy.typing import NDArray

from bamboo.planner.sync.trials import Measured

Vector = NDArray[np.float64]
Context = tuple[str, str]
SHARP = 0.1
"""The difference of log times at which one strategy is faster with odds of e to 1."""
WEIGHT = 0.15
"""How large a weight is taken to be, before anything is known: the standard deviation."""
UNEXPLAINED = 0.07
"""What no feature explains of a strategy's log time: the standard deviation."""
RANKED = 2.0
"""Two strategies are ranked if they differ by more than so many standard errors."""
MOST_WRONG = 0.3
"""How far a price may be off at most: the standard deviation of log time."""
UNITS = {"bytes": 65536.0, "flops": 1e7, "added": 16384.0}
"""The unit in which features with this word in their name are counted: values far below it hardly
differ from 0."""
ROUNDS = 30
"""The most steps of Newton's method."""
MOST_STRATEGIES = 100
"""The newest of one context, which are compared with each other."""
MOST_PAIRS = 5000
MOST_NAMES = 800
"""Of features. With these the fit takes about a second, however long the log is; what does not fit
is that of the oldest contexts."""
PRICE = "price"
"""The feature that lets the price count for more, or less, than it says."""


def is_local(feature: str) -> bool:
    """Whether a feature is of a node or a link by its number: `bytes@2`, `bytes@2-0`."""
    return "@" in feature


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """The log time of a strategy less that of another one, as the model sees it."""

    mean: float
    spread: float
    """Standard deviation."""


class Ranking:
    """What trials have taught. `contexts`: context -> strategy -> what was measured, the context
    with the newest trial last."""

    def __init__(
        self,
        contexts: Mapping[Context, Mapping[str, Measured]],
        *,
        unexplained: float = UNEXPLAINED,
        most: float = MOST_WRONG,
    ) -> None:
        self._unexplained = unexplained
        self._most = most
        self._names: dict[str, int] = {}
        pairs: list[tuple[Context, Measured, Measured, float]] = []
        for context, all_of_it in reversed(list(contexts.items())):
            own = list(all_of_it.values())[-MOST_STRATEGIES:]
            some = [
                (context, first, second, 1.0 / max(1, len(own) - 1))
                for first, second in combinations(own, 2)
                if are_ranked(first, second)
            ]
            new = {name for pair in some for x in pair[1:3] for name in _named(context, x)}
            new.difference_update(self._names)
            if len(pairs) + len(some) > MOST_PAIRS or len(self._names) + len(new) > MOST_NAMES:
                break
            pairs += some
            self._names |= zip(sorted(new), count(len(self._names)), strict=False)
        rows = [self._difference(context, first, second) for context, first, second, _ in pairs]
        self._x = np.array(rows).reshape(len(rows), len(self._names))
        self._prices = np.array([_log(a.price_s, b.price_s) for _, a, b, _ in pairs])
        told = np.array([_log(a.seconds, b.seconds) for _, a, b, _ in pairs])
        self._target = _sigmoid(told / SHARP)
        self._counts = np.array([weight for *_, weight in pairs])
        self._weights, self._covariance = self._fitted()

    # ------------------------------------------------------------------ questions

    @property
    def names(self) -> Sequence[str]:
        """The features of which something was learned."""
        return [*self._names]

    def guess(self, context: Context, one: Measured, other: Measured) -> Guess:
        """The log of the first one's time less that of the second one's, by price and features
        alone."""
        row = self._difference(context, one, other)
        unknown = sum(
            (WEIGHT * difference) ** 2
            for name, difference in _differences(context, one, other).items()
            if name not in self._names
        )
        known = float(row @ self._covariance @ row) if len(row) else 0.0
        learned, spread = float(row @ self._weights), math.sqrt(known + unknown)
        # A price is off by `most`, by all that is known without trials: both are weighed.
        share = self._most**2 / (self._most**2 + spread**2)
        return Guess(
            mean=_log(one.price_s, other.price_s) + share * learned,
            spread=math.sqrt(share * spread**2 + self._unexplained**2),
        )

    # ------------------------------------------------------------------ the fit

    def _fitted(self) -> tuple[Vector, Vector]:
        names = len(self._names)
        weights = np.zeros(names)
        prior = np.eye(names) / WEIGHT**2
        if not names:
            return weights, np.zeros((0, 0))
        for _ in range(ROUNDS):  # Newton's method, whose steps are bounded
            chance = _sigmoid((self._prices + self._x @ weights) / SHARP)
            slope = self._x.T @ (self._counts * (chance - self._target)) / SHARP
            curves = self._curvature(chance)
            step = np.linalg.solve(curves + prior, slope + prior @ weights)
            weights = weights - step * min(1.0, 0.5 / max(np.abs(step).max(), 1e-12))
            if np.abs(step).max() < 1e-6:
                break
        chance = _sigmoid((self._prices + self._x @ weights) / SHARP)
        return weights, np.asarray(np.linalg.inv(self._curvature(chance) + prior))

    def _curvature(self, chance: Vector) -> Vector:
        # A pair whose order is certain still tells how certain: the floor keeps a step finite.
        odds = np.maximum(chance * (1 - chance), 1e-3)
        return np.asarray(self._x.T @ (self._x * (self._counts * odds)[:, None]) / SHARP**2)

    def _difference(self, context: Context, one: Measured, other: Measured) -> Vector:
        row = np.zeros(len(self._names))
        for name, difference in _differences(context, one, other).items():
            if (at := self._names.get(name)) is not None:
                row[at] = difference
        return row


def are_ranked(first: Measured, second: Measured) -> bool:
    """Whether two strategies of one context differ by more than the noise."""
    noise = math.hypot(first.noise, second.noise)
    return abs(_log(first.seconds, second.seconds)) > RANKED * noise


def accuracy(
    ranking: Ranking, context: Context, held_out: Sequence[tuple[Measured, Measured]]
) -> float:
    """Share of the pairs of one context, measured and not learned from, that are put in their
    order; those that differ by less than the noise have none. Raises ValueError if none has."""
    ranked = [pair for pair in held_out if are_ranked(*pair)]
    if not ranked:
        raise ValueError("no pair differs by more than the noise")
    right = [(ranking.guess(context, a, b).mean < 0) == (a.seconds < b.seconds) for a, b in ranked]
    return sum(right) / len(ranked)


def _named(context: Context, one: Measured) -> dict[str, float]:
    """The logs of the features, those of a node or link under the name of their context."""
    own = {
        (f"{'/'.join(context)}/{name}" if is_local(name) else name): _scaled(name, figure)
        for name, figure in one.features.items()
    }
    return {**own, PRICE: math.log(one.price_s)}


def _scaled(name: str, figure: float) -> float:
    return math.log1p(figure / next((unit for what, unit in UNITS.items() if what in name), 1.0))


def _differences(context: Context, one: Measured, other: Measured) -> dict[str, float]:
    first, second = _named(context, one), _named(context, other)
    names = first.keys() | second.keys()
    return {name: first.get(name, 0.0) - second.get(name, 0.0) for name in names}


def _log(one: float, other: float) -> float:
    return math.log(one) - math.log(other)  # a quotient might be too large, or 0


def _sigmoid(x: Vector) -> Vector:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -40.0, 40.0))))
