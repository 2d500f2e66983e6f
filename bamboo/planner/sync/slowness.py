"""What is slower in a fleet than the model knows, by Bayes' rule from the steps of trials.

Rule: pure. An *explanation* names a few links or nodes and how many times as long each takes, and
how far exchanges go in phases; the empty one says that nothing is slow, and that all overlaps as
the price has it. Each is priced for every strategy that was measured, and counts
by how well its prices agree with the measured times, and by how rare such slowness is. The model's
own error, and one factor that all its prices are off by, are taken to be normal; strategies that
use links and nodes alike have like errors, so a trial tells of all that are near it. What past
fleets were found to have says how rare slowness is, and how large the error (empirical Bayes;
Robbins, 1956).

All explanations with one thing slow are weighed; those with two or three extend the best of these.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.candidates import Candidate, proposed
from bamboo.planner.sync.descents import Descents
from bamboo.planner.sync.flows import Figures
from bamboo.planner.sync.ranking import Context
from bamboo.planner.sync.repriced import Case, Repriced, Slows, log_steps, used_s
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
ALIKE = 0.3
"""Two strategies of which the use of links and nodes, in shares of a step, is this far apart are
mispriced alike to 1/e."""
IN_PHASES = (0.0, 1 / 3, 2 / 3, 1.0)
"""How far exchanges may go in phases."""
OVERLAP = 0.4
"""Probability that they overlap as the price has it, before any fleet was seen. All others are as
probable."""
OWN, MUCH_ALIKE = 0.2, 0.02
"""The share of its variance that only strategies have in common which are this far apart."""
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
Measurements = dict[Context, dict[str, Measured]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a fleet may have that the model does not know, and how likely that is."""

    case: Case
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is expected of a fleet; by default before any fleet was seen."""

    links: float = RARE
    nodes: float = RARE
    times: tuple[float, ...] = (1 / len(TIMES),) * len(TIMES)
    """The probability of each of TIMES."""
    in_phases: tuple[float, ...] = (
        OVERLAP,
        *((1 - OVERLAP) / (len(IN_PHASES) - 1),) * (len(IN_PHASES) - 1),
    )
    """The probability of each of IN_PHASES."""
    error: float = ERROR


def prior_of(fleets: Sequence[Shown]) -> Prior:
    """What is expected after these fleets."""
    seen = len(fleets) + FLEETS
    times = np.full(len(TIMES), FLEETS / len(TIMES))
    for one in fleets:
        for factor in (*one.links, *one.nodes):
            times[_nearest(factor)] += 1
    in_phases = FLEETS * np.array(Prior().in_phases)
    for one in fleets:
        in_phases[_nearest_share(one.in_phases)] += 1
    degrees = FIRST_DEGREES + sum(one.degrees for one in fleets)
    squares = FIRST_DEGREES * ERROR**2 + sum(one.degrees * one.error**2 for one in fleets)
    return Prior(
        links=(FLEETS * RARE + sum(len(one.links) for one in fleets)) / seen,
        nodes=(FLEETS * RARE + sum(len(one.nodes) for one in fleets)) / seen,
        times=tuple(map(float, times / times.sum())),
        in_phases=tuple(map(float, in_phases / in_phases.sum())),
        error=math.sqrt(squares / degrees),
    )


def _nearest(factor: float) -> int:
    return min(range(len(TIMES)), key=lambda at: abs(math.log(TIMES[at] / factor)))


def _nearest_share(share: float) -> int:
    return min(range(len(IN_PHASES)), key=lambda at: abs(IN_PHASES[at] - share))


class Slowness:
    """What is known of one fleet."""

    def __init__(
        self,
        facts: Sequence[ParameterFacts],
        situation: Situation,
        fleets: Sequence[Shown] = (),
    ) -> None:
        self.facts = facts
        self.situation = situation
        self.prior = prior_of(fleets)
        self._fleets = {one.context: one for one in fleets}
        self._repriced: dict[str, Repriced] = {}
        self._at_most: dict[Case, float] = {}
        """The last score of each explanation; with more measurements it only falls."""
        self._top = -math.inf
        self._searched: dict[Case, Candidate] = {}
        self._descents = Descents(facts, situation)
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

    def log_prices(self, cases: Sequence[Case], some: Sequence[Candidate]) -> Figures:
        """The logs of the steps that strategies take in these cases, shape (cases, strategies)."""
        return log_steps([self._laid(one) for one in some], cases).T

    def _laid(self, one: Candidate) -> Repriced:
        if one.hash not in self._repriced:
            assert one.resolved is not None, "what is searched among has a grid"
            self._repriced[one.hash] = Repriced(one.resolved)
        return self._repriced[one.hash]

    def _covariance(self, some: Sequence[Candidate], others: Sequence[Candidate]) -> Figures:
        """Of the errors of prices: strategies that use links and nodes alike are mispriced alike
        (kriging; Matheron, 1963, with an exponential covariance)."""
        first, second = (
            np.array([used_s(self._laid(one)) / one.price_s for one in own])
            for own in (some, others)
        )
        apart = np.linalg.norm(first[:, None] - second[None], axis=2)
        alike = (1 - OWN) * np.exp(-apart / ALIKE) + OWN * np.exp(-apart / MUCH_ALIKE)
        return np.asarray(OFF**2 + self.prior.error**2 * alike)

    def differences(
        self,
        explanations: Sequence[Explanation],
        known: Sequence[tuple[Candidate, Measured]],
        some: Sequence[Candidate],
        learned: Mapping[str, float],
    ) -> tuple[Figures, Figures]:
        """The logs of the steps of some strategies less that of the first of them, under each
        explanation, shape (explanations, strategies), and how far they may be off, shape
        (strategies,). `learned`: strategy -> what is added to the log of its price."""
        tried = [one for one, _ in known]
        added = np.array([learned.get(one.hash, 0.0) for one in (*tried, *some)])
        logs = self.log_prices([one.case for one in explanations], [*tried, *some]) + added
        off = np.log([m.seconds for _, m in known]) - logs[:, : len(tried)]
        noise = np.diag([m.noise**2 for _, m in known])
        shared = self._covariance(tried, some)
        shared = shared - shared[:, :1]
        gain = np.linalg.solve(self._covariance(tried, tried) + noise, shared)
        with_first = self._covariance(some[:1], some)[0]
        variance = 2 * (with_first[0] - with_first) - (gain * shared).sum(axis=0)
        means = logs[:, len(tried) :] - logs[:, len(tried) : len(tried) + 1] + off @ gain
        return means, np.sqrt(np.maximum(0.0, variance))

    def explanations(self, known: Sequence[tuple[Candidate, Measured]]) -> list[Explanation]:
        """The likeliest, after these measurements, the likeliest first."""
        scores: dict[Case, float] = {}
        self._top = -math.inf
        self._score([*_shares([()]), *_by_score(self._at_most)[:KEPT]], known, scores)
        single = [(replace(x, times=t),) for x in self._things for t in TIMES]
        self._score(_shares(single), known, scores)
        for count, extended in enumerate(EXTENDED if len(self._things) <= FEW else (), start=1):
            longer = self._longer(_slowest(scores, count)[:extended], COARSE)
            self._score(_shares(longer), known, scores)
            refined = self._refined(_slowest(scores, count + 1)[:extended])
            self._score(_shares(refined), known, scores)
        best = _by_score(scores)[:KEPT]
        top = scores[best[0]]
        total = sum(math.exp(score - top) for score in scores.values())
        out, mass = [], 0.0
        for case in best:
            weight = math.exp(scores[case] - top) / total
            out.append(Explanation(case=case, weight=weight))
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
        some: Iterable[Case],
        known: Sequence[tuple[Candidate, Measured]],
        scores: dict[Case, float],
    ) -> None:
        new = [
            one
            for one in dict.fromkeys(some)
            if one not in scores and self._at_most.get(one, math.inf) >= self._top - POOR
        ]
        if not new:
            return
        priors = np.array([self._log_prior(case) for case in new])
        if known:
            measured = [one for one, _ in known]
            logs = self.log_prices(new, measured)
            off = np.array([math.log(m.seconds) for _, m in known]) - logs
            noise = np.diag([m.noise**2 for _, m in known])
            precision = np.linalg.inv(self._covariance(measured, measured) + noise)
            priors = priors - 0.5 * np.einsum("es,st,et->e", off, precision, off)
        found = dict(zip(new, map(float, priors), strict=True))
        scores |= found
        self._at_most |= found
        self._top = max(self._top, *found.values())

    def _log_prior(self, case: Case) -> float:
        links = sum(one.is_link for one in self._things)
        nodes = len(self._things) - links
        out = math.log(self.prior.in_phases[_nearest_share(case.in_phases)])
        for one in case.slow:
            rate = self.prior.links / links if one.is_link else self.prior.nodes / nodes
            out += math.log(rate * self.prior.times[_nearest(one.times)])
        return out

    def shown(
        self, case: Case, known: Sequence[tuple[Candidate, Measured]], context: tuple[str, str]
    ) -> Shown:
        """What the log keeps of this fleet."""
        logs = self.log_prices([case], [one for one, _ in known])[0]
        off = [math.log(m.seconds) - log for (_, m), log in zip(known, logs, strict=True)]
        degrees = max(0, len(off) - 1 - len(case.slow) - (case.in_phases > 0))
        squares = sum((x - sum(off) / len(off)) ** 2 for x in off) if degrees else 0.0
        return Shown(
            job=context[0],
            fleet=context[1],
            links=tuple(one.times for one in case.slow if one.is_link),
            nodes=tuple(one.times for one in case.slow if not one.is_link),
            in_phases=case.in_phases,
            prices_s={
                one.hash: math.exp(log) for (one, _), log in zip(known, logs.tolist(), strict=True)
            },
            error=math.sqrt(squares / degrees) if degrees else ERROR,
            degrees=degrees,
        )

    def explained(self, found: Mapping[Context, Mapping[str, Measured]]) -> Measurements:
        """What was measured in fleets of which it is known what was slow, with the prices where it
        is: what is left may hold in other fleets, too."""
        return {
            context: {
                hash: replace(measured, price_s=shown.prices_s[hash])
                for hash, measured in own.items()
                if hash in shown.prices_s
            }
            for context, own in found.items()
            if (shown := self._fleets.get(context)) is not None
        }

    def candidates(self, explanations: Sequence[Explanation]) -> list[Candidate]:
        """The best strategy under each of the likeliest."""
        out = []
        for one in explanations[:SEARCHED]:
            if one.case not in self._searched:
                sync = self._descents.best(one.case)
                words = f"the best on paper if {in_words(one.case)}"
                self._searched[one.case] = proposed(sync, words, self.facts, self.situation)
            out.append(self._searched[one.case])
        return [one for one in out if one.fits(self.facts)]


def in_words(case: Case) -> str:
    """What is slow, for a sentence."""
    words = [
        f"{one.pipeline} to {one.to} is {one.times:g} times as slow"
        if one.is_link
        else f"pipeline {one.pipeline} adds {one.times:g} times as slowly"
        for one in case.slow
    ]
    if case.in_phases:
        words.append(f"exchanges overlap by {1 - case.in_phases:.0%}")
    return " and ".join(words) or "nothing is slow"


def _ordered(slow: Slows) -> Slows:
    return tuple(sorted(slow, key=lambda one: (one.stage, one.pipeline, one.to)))


def _shares(some: Iterable[Slows]) -> list[Case]:
    """Each of these, with every way in which buckets may overlap."""
    return [Case(slow=slow, in_phases=share) for slow in some for share in IN_PHASES]


def _by_score(scores: Mapping[Case, float]) -> list[Case]:
    return sorted(scores, key=lambda case: -scores[case])


def _slowest(scores: Mapping[Case, float], count: int) -> list[Slows]:
    """The likeliest with so many things slow."""
    likely = (one.slow for one in _by_score(scores))
    return [*dict.fromkeys(slow for slow in likely if len(slow) == count)]
