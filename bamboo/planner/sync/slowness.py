"""What is slower in a fleet than the model knows, by Bayes' rule from the steps of trials.

Rule: pure. An *explanation* names a few links or nodes and how many times as long each takes; the
empty one says that nothing is slow. Each is priced for every strategy that was measured, and counts
by how well its prices agree with the measured times, and by how rare such slowness is. The model's
own error, and one factor that all its prices are off by, are taken to be normal. What past fleets
were found to have says how rare that is, and how large the error (empirical Bayes; Robbins, 1956).

All explanations with one thing slow are weighed; those with two or three extend the best of these.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.candidates import Candidate, proposed
from bamboo.planner.sync.price import Repriced
from bamboo.planner.sync.search import search
from bamboo.planner.sync.situation import Situation, Slow
from bamboo.planner.sync.trials import Measured, Shown

TIMES = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""So many times as long as it should a slow thing may take."""
COARSE = (2.0, 4.0, 8.0)
"""Those with which an explanation is extended by another thing, before they are refined."""
OFF = 0.15
"""The factor that all prices are off by: the standard deviation of its log."""
ERROR = 0.07
"""The error of a single price, likewise, before any fleet has shown it."""
RARE = 0.3
"""Slow links of a fleet that are expected, before any was seen; and slow nodes."""
FLEETS = 4.0
"""Fleets for which these expectations count."""
FIRST_DEGREES = 12
"""Strategies for which ERROR counts, in the mean with those of past fleets."""
EXTENDED = (5, 2)
"""Explanations that are extended by a second thing, and by a third."""
FEW = 64
"""Links and nodes of a grid with more are not suspected two at a time: that would take too long."""
POOR = 15.0
"""An explanation whose odds against the likeliest are e to this is not weighed again."""
KEPT = 24
MASS = 0.97
"""Explanations that are kept have so much of the weight together, if they are no more than KEPT."""
SEARCHED = 8
"""Explanations whose best strategies are searched for, after a trial."""
EVALUATIONS = 300
"""Strategies that are priced for each."""
Slows = tuple[Slow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What may be slow, and how likely it is."""

    slow: Slows
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is expected of a fleet."""

    links: float = RARE
    nodes: float = RARE
    times: tuple[float, ...] = (1 / len(TIMES),) * len(TIMES)
    """The probability of each of TIMES."""
    error: float = ERROR


FIRST_PRIOR = Prior()
"""Before any fleet was seen."""


def prior_of(fleets: Sequence[Shown]) -> Prior:
    """What is expected after these fleets."""
    seen = len(fleets) + FLEETS
    times = np.full(len(TIMES), FLEETS / len(TIMES))
    for one in fleets:
        for factor in (*one.links, *one.nodes):
            times[_nearest(factor)] += 1
    degrees = FIRST_DEGREES + sum(one.degrees for one in fleets)
    squares = FIRST_DEGREES * ERROR**2 + sum(one.degrees * one.error**2 for one in fleets)
    return Prior(
        links=(FLEETS * RARE + sum(len(one.links) for one in fleets)) / seen,
        nodes=(FLEETS * RARE + sum(len(one.nodes) for one in fleets)) / seen,
        times=tuple(map(float, times / times.sum())),
        error=math.sqrt(squares / degrees),
    )


def _nearest(factor: float) -> int:
    return min(range(len(TIMES)), key=lambda at: abs(math.log(TIMES[at] / factor)))


class Slowness:
    """What is known of one fleet."""

    def __init__(self, facts: Sequence[ParameterFacts], situation: Situation, prior: Prior) -> None:
        self.facts = facts
        self.situation = situation
        self.prior = prior
        self._logs: dict[Slows, dict[str, float]] = {}
        self._repriced: dict[str, Repriced] = {}
        self._at_most: dict[Slows, float] = {}
        """The last score of each explanation; with more measurements it only falls."""
        self._top = -math.inf
        self._searched: dict[Slows, Candidate] = {}
        grid = [
            (stage, one) for stage in range(situation.stages) for one in range(situation.pipelines)
        ]
        several = situation.pipelines > 1
        self._things = [
            Slow(stage=stage, pipeline=one, to=to, times=1.0)
            for stage, one in (grid if several else ())
            for to in (-1, *range(situation.pipelines))
            if to != one
        ]

    def log_prices(self, slow: Slows, some: Iterable[Candidate]) -> list[float]:
        """The logs of the steps that strategies take if this is slow."""
        logs = self._logs.setdefault(slow, {})
        return [
            logs[one.hash] if one.hash in logs else logs.setdefault(one.hash, self._log(one, slow))
            for one in some
        ]

    def _log(self, one: Candidate, slow: Slows) -> float:
        if one.resolved is None or not slow:
            return math.log(one.price_s)
        if one.hash not in self._repriced:
            self._repriced[one.hash] = Repriced(one.resolved)
        return math.log(self._repriced[one.hash].step_s(slow))

    def explanations(self, known: Sequence[tuple[Candidate, Measured]]) -> list[Explanation]:
        """The likeliest, after these measurements, the likeliest first."""
        scores: dict[Slows, float] = {}
        self._top = -math.inf
        self._score([(), *_by_score(self._at_most)[:KEPT]], known, scores)
        self._score([*((replace(x, times=t),) for x in self._things for t in TIMES)], known, scores)
        for count, extended in enumerate(EXTENDED if len(self._things) <= FEW else (), start=1):
            best = [x for x in _by_score(scores) if len(x) == count][:extended]
            self._score(self._longer(best, COARSE), known, scores)
            longer = [x for x in _by_score(scores) if len(x) == count + 1][:extended]
            self._score(self._refined(longer), known, scores)
        best = _by_score(scores)[:KEPT]
        top = scores[best[0]]
        total = sum(math.exp(score - top) for score in scores.values())
        out, mass = [], 0.0
        for slow in best:
            weight = math.exp(scores[slow] - top) / total
            out.append(Explanation(slow=slow, weight=weight))
            mass += weight
            if mass >= MASS:
                break
        return [replace(one, weight=one.weight / mass) for one in out]

    def _longer(self, some: Iterable[Slows], times: Sequence[float]) -> Iterable[Slows]:
        for slow in some:
            has = {replace(one, times=1.0) for one in slow}
            for thing in self._things:
                if thing not in has:
                    for factor in times:
                        yield _ordered((*slow, replace(thing, times=factor)))

    def _refined(self, some: Iterable[Slows]) -> Iterable[Slows]:
        for slow in some:
            for place, one in enumerate(slow):
                for factor in TIMES:
                    yield _ordered((*slow[:place], replace(one, times=factor), *slow[place + 1 :]))

    def _score(
        self,
        some: Iterable[Slows],
        known: Sequence[tuple[Candidate, Measured]],
        scores: dict[Slows, float],
    ) -> None:
        new = [
            one
            for one in dict.fromkeys(some)
            if one not in scores and self._at_most.get(one, math.inf) >= self._top - POOR
        ]
        if not new:
            return
        priors = np.array([self._log_prior(slow) for slow in new])
        if known:
            measured = [one for one, _ in known]
            logs = np.array([self.log_prices(slow, measured) for slow in new])
            off = np.array([math.log(m.seconds) for _, m in known]) - logs
            noise = np.array([m.noise**2 + self.prior.error**2 for _, m in known])
            precision = np.linalg.inv(np.diag(noise) + OFF**2)
            priors = priors - 0.5 * np.einsum("es,st,et->e", off, precision, off)
        found = dict(zip(new, map(float, priors), strict=True))
        scores |= found
        self._at_most |= found
        self._top = max(self._top, *found.values())

    def _log_prior(self, slow: Slows) -> float:
        links = sum(one.is_link for one in self._things)
        nodes = len(self._things) - links
        out = 0.0
        for one in slow:
            rate = self.prior.links / links if one.is_link else self.prior.nodes / nodes
            out += math.log(rate * self.prior.times[_nearest(one.times)])
        return out

    def shown(
        self, slow: Slows, known: Sequence[tuple[Candidate, Measured]], context: tuple[str, str]
    ) -> Shown:
        """What the log keeps of this fleet."""
        logs = self.log_prices(slow, [one for one, _ in known])
        off = [math.log(m.seconds) - log for (_, m), log in zip(known, logs, strict=True)]
        degrees = max(0, len(off) - 1 - len(slow))
        squares = sum((x - sum(off) / len(off)) ** 2 for x in off) if degrees else 0.0
        return Shown(
            job=context[0],
            fleet=context[1],
            links=tuple(one.times for one in slow if one.is_link),
            nodes=tuple(one.times for one in slow if not one.is_link),
            error=math.sqrt(squares / degrees) if degrees else ERROR,
            degrees=degrees,
        )

    def candidates(self, explanations: Sequence[Explanation]) -> list[Candidate]:
        """The best strategy under each of the likeliest."""
        out = []
        for one in explanations[:SEARCHED]:
            if one.slow not in self._searched:
                there = replace(self.situation, slow=one.slow)
                found = search(self.facts, there, evaluations=EVALUATIONS)
                words = f"the best on paper if {in_words(one.slow)}"
                self._searched[one.slow] = proposed(found.sync, words, self.facts, self.situation)
            out.append(self._searched[one.slow])
        return [one for one in out if one.fits(self.facts)]


def in_words(slow: Slows) -> str:
    """What is slow, for a sentence."""
    if not slow:
        return "nothing is slow"
    return " and ".join(
        f"{one.pipeline} to {one.to} is {one.times:g} times as slow"
        if one.is_link
        else f"pipeline {one.pipeline} adds {one.times:g} times as slowly"
        for one in slow
    )


def _ordered(slow: Slows) -> Slows:
    return tuple(sorted(slow, key=lambda one: (one.stage, one.pipeline, one.to)))


def _by_score(scores: Mapping[Slows, float]) -> list[Slows]:
    return sorted(scores, key=lambda slow: -scores[slow])
