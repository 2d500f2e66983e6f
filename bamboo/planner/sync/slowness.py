"""What is slower in a fleet than the model says, inferred by Bayes' rule from the times of trials.

Rule: pure. An *explanation* is a case of a fleet (`repriced.Case`) with its probability. A case
names at most three slow links or nodes, and says how many times as long each takes; it also says
how far exchanges go in phases. In the empty case nothing is slow, and messages overlap as in
`price`.

The probability of a case is its prior times the likelihood of what was measured:

- The prior comes from what searches found in past fleets (`Finding`): how many links and nodes
  were slow, by how much, and how far prices were off. This is empirical Bayes (Robbins, 1956).
  Before any fleet was seen, the constants below are the prior.
- For the likelihood, each strategy that was measured is priced in the case. The errors, which are
  the logs of the measured times less the logs of these prices, are taken to be jointly normal. One
  part of them is common to all strategies. Strategies that use links and nodes alike have more in
  common, so one trial tells of all strategies near it.

Every case with one slow link or node is weighed. Cases with two or three extend the likeliest of
these.
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
from bamboo.planner.sync.trials import Finding, Measured

FACTORS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
"""A slow link or node takes one of these times as long as the model says."""
COARSE_FACTORS = (2.0, 4.0, 8.0)
"""Those that are tried first for the second and the third slow link or node of a case."""
COMMON_ERROR = 0.15
"""The error that all prices of a fleet share: the standard deviation of its log."""
FIRST_ERROR = 0.07
"""The error of a single price before any fleet was seen: the standard deviation of its log."""
ALIKE_DISTANCE = 0.3
"""The distance between two strategies, in shares of a step for which they use links and nodes, at
which the covariance of their errors has fallen to 1/e."""
NEAR_SHARE, NEAR_DISTANCE = 0.2, 0.02
"""This share of a price's variance falls to 1/e at the smaller distance already."""
IN_PHASES = (0.0, 1 / 3, 2 / 3, 1.0)
"""The values of `Case.in_phases` that are weighed."""
FULL_OVERLAP = 0.4
"""Probability of the first of IN_PHASES before any fleet was seen. The others share the rest
equally."""
EXPECTED_SLOW = 0.3
"""The number of slow links that is expected in a fleet before any was seen, and of slow nodes."""
PRIOR_FLEETS = 4.0
"""What is expected before any fleet was seen counts like so many fleets."""
PRIOR_DEGREES = 12
"""FIRST_ERROR counts like an error with so many degrees of freedom."""
EXTENDED = (5, 2)
"""How many cases are extended by a second slow link or node, and then by a third."""
MOST_PAIRED = 64
"""On a grid with more links and nodes only one is taken to be slow: pairs would take too long."""
DROPPED = 15.0
"""A case whose score is so far below the highest one is not weighed again."""
MOST_KEPT = 24
KEPT_PROBABILITY = 0.97
"""The likeliest cases are kept up to this probability together, and at most MOST_KEPT."""
MOST_SEARCHED = 8
"""Explanations of which the best strategy is searched for after a trial."""
Measurements = dict[Context, dict[str, Measured]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A case of a fleet with its probability, after all that was measured."""

    case: Case
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is expected of a fleet; by default what is expected before any fleet was seen."""

    links: float = EXPECTED_SLOW
    """The expected number of slow links."""
    nodes: float = EXPECTED_SLOW
    """The expected number of slow nodes."""
    factors: tuple[float, ...] = (1 / len(FACTORS),) * len(FACTORS)
    """The probability of each of FACTORS."""
    in_phases: tuple[float, ...] = (
        FULL_OVERLAP,
        *((1 - FULL_OVERLAP) / (len(IN_PHASES) - 1),) * (len(IN_PHASES) - 1),
    )
    """The probability of each of IN_PHASES."""
    error: float = FIRST_ERROR
    """The error of a single price: the standard deviation of its log."""


def prior_of(fleets: Sequence[Finding]) -> Prior:
    """What is expected of a fleet after these findings of past fleets."""
    seen = len(fleets) + PRIOR_FLEETS
    factors = np.full(len(FACTORS), PRIOR_FLEETS / len(FACTORS))
    for one in fleets:
        for factor in (*one.links, *one.nodes):
            factors[_nearest_factor(factor)] += 1
    in_phases = PRIOR_FLEETS * np.array(Prior().in_phases)
    for one in fleets:
        in_phases[_nearest_share(one.in_phases)] += 1
    degrees = PRIOR_DEGREES + sum(one.degrees for one in fleets)
    squares = PRIOR_DEGREES * FIRST_ERROR**2 + sum(one.degrees * one.error**2 for one in fleets)
    expected = PRIOR_FLEETS * EXPECTED_SLOW
    return Prior(
        links=(expected + sum(len(one.links) for one in fleets)) / seen,
        nodes=(expected + sum(len(one.nodes) for one in fleets)) / seen,
        factors=tuple(map(float, factors / factors.sum())),
        in_phases=tuple(map(float, in_phases / in_phases.sum())),
        error=math.sqrt(squares / degrees),
    )


def _nearest_factor(factor: float) -> int:
    return min(range(len(FACTORS)), key=lambda at: abs(math.log(FACTORS[at] / factor)))


def _nearest_share(share: float) -> int:
    return min(range(len(IN_PHASES)), key=lambda at: abs(IN_PHASES[at] - share))


class Slowness:
    """What one fleet's trials tell of its links and nodes. `fleets`: what was found in past fleets,
    for the prior. Each method gets all that was measured; what is kept between calls only saves
    pricing a strategy, or weighing a case, again."""

    def __init__(
        self,
        facts: Sequence[ParameterFacts],
        situation: Situation,
        fleets: Sequence[Finding] = (),
    ) -> None:
        self.facts = facts
        self.situation = situation
        self.prior = prior_of(fleets)
        self._fleets = {one.context: one for one in fleets}
        self._repriced: dict[str, Repriced] = {}
        self._last_scores: dict[Case, float] = {}
        """Case -> its score when it was weighed last."""
        self._highest = -math.inf
        """The highest score after the newest measurements."""
        self._best_in: dict[Case, Candidate] = {}
        """Case -> the best strategy in it, as far as it was searched for."""
        self._descents = Descents(facts, situation)
        grid = [
            (stage, one) for stage in range(situation.stages) for one in range(situation.pipelines)
        ]
        several = situation.pipelines > 1
        self._suspects = [
            Slow(stage=stage, pipeline=one, to=to, times=1.0)
            for stage, one in (grid if several else ())
            for to in (-1, *range(situation.pipelines))
            if to != one
        ]
        """Each node, and each link between two pipelines of a stage."""

    def log_prices(self, cases: Sequence[Case], some: Sequence[Candidate]) -> Figures:
        """The logs of the steps that strategies take in these cases, shape (cases, strategies)."""
        return log_steps([self._repriced_of(one) for one in some], cases).T

    def _repriced_of(self, one: Candidate) -> Repriced:
        if one.hash not in self._repriced:
            assert one.resolved is not None, "what is searched among has a grid"
            self._repriced[one.hash] = Repriced(one.resolved)
        return self._repriced[one.hash]

    def _covariance(self, some: Sequence[Candidate], others: Sequence[Candidate]) -> Figures:
        """The covariance of the errors of log prices, shape (some, others). It falls exponentially
        with the distance between what two strategies use of links and nodes, as in kriging
        (Matheron, 1963)."""
        first, second = (
            np.array([used_s(self._repriced_of(one)) / one.price_s for one in own])
            for own in (some, others)
        )
        distance = np.linalg.norm(first[:, None] - second[None], axis=2)
        far = (1 - NEAR_SHARE) * np.exp(-distance / ALIKE_DISTANCE)
        near = NEAR_SHARE * np.exp(-distance / NEAR_DISTANCE)
        return np.asarray(COMMON_ERROR**2 + self.prior.error**2 * (far + near))

    def differences(
        self,
        explanations: Sequence[Explanation],
        known: Sequence[tuple[Candidate, Measured]],
        some: Sequence[Candidate],
        learned: Mapping[str, float],
    ) -> tuple[Figures, Figures]:
        """The log of each strategy's step less that of the first of `some`: the means under each
        explanation, shape (explanations, strategies), and their standard deviations, shape
        (strategies,). This is the regression of a normal process on the errors of the strategies
        in `known`. `learned`: strategy -> what is added to the log of its price."""
        tried = [one for one, _ in known]
        added = np.array([learned.get(one.hash, 0.0) for one in (*tried, *some)])
        logs = self.log_prices([one.case for one in explanations], [*tried, *some]) + added
        off = np.log([m.seconds for _, m in known]) - logs[:, : len(tried)]
        noise = np.diag([m.noise**2 for _, m in known])
        shared = self._covariance(tried, some)
        shared = shared - shared[:, :1]
        coefficients = np.linalg.solve(self._covariance(tried, tried) + noise, shared)
        with_first = self._covariance(some[:1], some)[0]
        variance = 2 * (with_first[0] - with_first) - (coefficients * shared).sum(axis=0)
        means = logs[:, len(tried) :] - logs[:, len(tried) : len(tried) + 1] + off @ coefficients
        return means, np.sqrt(np.maximum(0.0, variance))

    def explanations(self, known: Sequence[tuple[Candidate, Measured]]) -> list[Explanation]:
        """The likeliest cases after these measurements, the likeliest first. Their weights sum
        to 1."""
        scores: dict[Case, float] = {}
        self._highest = -math.inf
        before = _by_score(self._last_scores)[:MOST_KEPT]
        self._score([*_with_phases([()]), *before], known, scores)
        single = [(replace(x, times=factor),) for x in self._suspects for factor in FACTORS]
        self._score(_with_phases(single), known, scores)
        paired = len(self._suspects) <= MOST_PAIRED
        for count, extended in enumerate(EXTENDED if paired else (), start=1):
            longer = self._longer(_likeliest(scores, count)[:extended], COARSE_FACTORS)
            self._score(_with_phases(longer), known, scores)
            refined = _refined(_likeliest(scores, count + 1)[:extended])
            self._score(_with_phases(refined), known, scores)
        best = _by_score(scores)[:MOST_KEPT]
        top = scores[best[0]]
        total = sum(math.exp(score - top) for score in scores.values())
        out, mass = [], 0.0
        for case in best:
            weight = math.exp(scores[case] - top) / total
            out.append(Explanation(case=case, weight=weight))
            mass += weight
            if mass >= KEPT_PROBABILITY:
                break
        return [replace(one, weight=one.weight / mass) for one in out]

    def _longer(self, some: Iterable[Slows], factors: Sequence[float]) -> Iterable[Slows]:
        """Each of these with one more slow link or node."""
        for slow in some:
            has = {replace(one, times=1.0) for one in slow}
            for suspect in self._suspects:
                if suspect not in has:
                    for factor in factors:
                        yield _ordered((*slow, replace(suspect, times=factor)))

    def _score(
        self,
        some: Iterable[Case],
        known: Sequence[tuple[Candidate, Measured]],
        scores: dict[Case, float],
    ) -> None:
        """Add the scores of these cases: the logs of prior and likelihood, but for a constant."""
        least = self._highest - DROPPED
        # With more measurements a score hardly rises, so the last one tells which are hopeless.
        new = [
            one
            for one in dict.fromkeys(some)
            if one not in scores and self._last_scores.get(one, math.inf) >= least
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
        self._last_scores |= found
        self._highest = max(self._highest, *found.values())

    def _log_prior(self, case: Case) -> float:
        links = sum(one.is_link for one in self._suspects)
        nodes = len(self._suspects) - links
        out = math.log(self.prior.in_phases[_nearest_share(case.in_phases)])
        for one in case.slow:
            rate = self.prior.links / links if one.is_link else self.prior.nodes / nodes
            out += math.log(rate * self.prior.factors[_nearest_factor(one.times)])
        return out

    def finding(
        self, case: Case, known: Sequence[tuple[Candidate, Measured]], context: Context
    ) -> Finding:
        """What the log keeps of this fleet, if this is its case."""
        logs = self.log_prices([case], [one for one, _ in known])[0]
        off = [math.log(m.seconds) - log for (_, m), log in zip(known, logs, strict=True)]
        degrees = max(0, len(off) - 1 - len(case.slow) - (case.in_phases > 0))
        squares = sum((x - sum(off) / len(off)) ** 2 for x in off) if degrees else 0.0
        return Finding(
            job=context[0],
            fleet=context[1],
            links=tuple(one.times for one in case.slow if one.is_link),
            nodes=tuple(one.times for one in case.slow if not one.is_link),
            in_phases=case.in_phases,
            prices_s={
                one.hash: math.exp(log) for (one, _), log in zip(known, logs.tolist(), strict=True)
            },
            error=math.sqrt(squares / degrees) if degrees else FIRST_ERROR,
            degrees=degrees,
        )

    def explained(self, found: Mapping[Context, Mapping[str, Measured]]) -> Measurements:
        """What was measured in fleets that have a finding, with the prices of that finding. What
        these prices do not explain may hold in other fleets, too."""
        return {
            context: {
                hash: replace(measured, price_s=finding.prices_s[hash])
                for hash, measured in own.items()
                if hash in finding.prices_s
            }
            for context, own in found.items()
            if (finding := self._fleets.get(context)) is not None
        }

    def candidates(self, explanations: Sequence[Explanation]) -> list[Candidate]:
        """The best strategy in each of the likeliest cases, where nodes have the memory for it."""
        out = []
        for one in explanations[:MOST_SEARCHED]:
            if one.case not in self._best_in:
                sync = self._descents.best(one.case)
                words = f"the best on paper if {in_words(one.case)}"
                self._best_in[one.case] = proposed(sync, words, self.facts, self.situation)
            out.append(self._best_in[one.case])
        return [one for one in out if one.fits(self.facts)]


def in_words(case: Case) -> str:
    """`0 to 1 is 4 times as slow and exchanges overlap by 67%`: a case, within a sentence."""
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


def _refined(some: Iterable[Slows]) -> Iterable[Slows]:
    """Each of these with every factor in the place of each one."""
    for slow in some:
        for place, one in enumerate(slow):
            for factor in FACTORS:
                yield _ordered((*slow[:place], replace(one, times=factor), *slow[place + 1 :]))


def _with_phases(some: Iterable[Slows]) -> list[Case]:
    """Each of these with each of IN_PHASES."""
    return [Case(slow=slow, in_phases=share) for slow in some for share in IN_PHASES]


def _by_score(scores: Mapping[Case, float]) -> list[Case]:
    return sorted(scores, key=lambda case: -scores[case])


def _likeliest(scores: Mapping[Case, float], count: int) -> list[Slows]:
    """What is slow in the cases with so many slow links and nodes, the likeliest first."""
    likely = (one.slow for one in _by_score(scores))
    return [*dict.fromkeys(slow for slow in likely if len(slow) == count)]
