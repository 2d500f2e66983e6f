"""The search for a better strategy while a run trains: which one is tried next, and when to stop.

Rule: a pure state machine. It is told the price and the features of candidates, what trials have
measured so far, and each finished step; it answers with the strategy that should count next. Every
strategy gives the same bits, so a trial costs its time and nothing else. A trial is worth its cost
if its candidate is expected to win more over the steps that are left than the trial is expected to
lose over its own steps.

The incumbent is the best strategy that was measured; at first it is the strategy that the run has.

    1. Steps of the incumbent are measured.
    2. The candidate whose trial is worth most is tried. If it is faster by more than the noise, it
       is the incumbent from then on. This goes on while some trial is worth its cost.
    3. The search stops, and the incumbent stays.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bamboo.planner.sync.candidates import Candidate, neighbours
from bamboo.planner.sync.guesses import (
    Guesses,
    by_ranking,
    by_slowness,
    gain,
    loss,
    mean_prices,
    measured_difference,
    risk,
)
from bamboo.planner.sync.ranking import Context, Ranking
from bamboo.planner.sync.repriced import Case
from bamboo.planner.sync.slowness import Explanation, Slowness
from bamboo.planner.sync.trials import Finding, Measured, Trial, measured_of

FIRST_STEPS = 8
"""Steps that are measured of the first incumbent, before anything is tried."""
SETTLING_STEPS = 1
"""Steps after a change that are not measured: part of their time is from before the change."""
TRIAL_STEPS = 6
"""Steps that a trial takes at least: one that settles, one that is measured, and those that nodes
begin before they know the next strategy."""
CONFIRMING_STEPS = 8
"""Steps that are measured of a candidate before it may become the incumbent."""
MOST_SPENT = 0.045
"""What all trials together may lose, as a share of the steps that are left when a search begins."""
LEAST_WORTH = 1.0
"""A trial is made if it is worth more than so many steps of the incumbent, because choosing it
takes a launcher's time, too."""
RISKED = 0.5
"""What one trial may risk, as a share of what all trials may still lose."""
MOST_ERRORS = 1.5
"""With explanations of what is slow, a price is taken to be off by at most so many of the errors in
`Prior.error`."""
HOPELESS = 0.10
"""A candidate is given up after one measured step if the log of its time is larger than the
incumbent's by more than this: it is about 10 % slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The strategy that should count from the next step that nobody has begun."""

    hash: str
    why: str


@dataclass(slots=True)
class _Stretch:
    """Steps in a row under one strategy."""

    hash: str
    seconds: list[float] = field(default_factory=list)
    """Of each step that was measured."""
    settling: int = SETTLING_STEPS


class LiveSearch:
    """One search, on one fleet. `now`: the hash of the strategy that the run has. `steps`: those of
    the whole run; `begun`: the step in which the search begins. `past`: trials of any runs, jobs
    and fleets. Without `slowness` nothing is taken to be slow, and guesses are by the ranking
    alone. Raises ValueError if `now` is no candidate."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        context: Context,
        now: str,
        steps: int,
        begun: int = 0,
        past: Sequence[Trial] = (),
        slowness: Slowness | None = None,
    ) -> None:
        self.candidates = {one.hash: one for one in candidates}
        if now not in self.candidates:
            raise ValueError(f"the strategy {now} of the run is no candidate")
        self.context = context
        self._steps = steps
        self._most_spent = MOST_SPENT * (steps - begun)
        """What all trials may lose, in steps of the incumbent."""
        self._past = list(past)
        self._own: list[Trial] = []
        self.incumbent = now
        """The hash of the best strategy that was measured; at first that of the run's."""
        self._asked = now
        """The hash that was answered last; its strategy counts already, or soon will."""
        self._stretch = _Stretch(now)
        self._tried: set[str] = set()
        self._refused: set[str] = set()
        self._slowness = slowness
        self.explanations = [Explanation(case=Case(), weight=1.0)]
        """What may be slower than the model says, the likeliest first."""
        self._with_neighbours: set[str] = set()
        """The strategies whose neighbours are candidates."""
        self.excess_s = 0.0
        """How much longer all trials have taken than as many steps of the incumbent."""
        self.trials = 0
        """How many were decided: one that was asked for may be refused, or never proposed."""
        self.stopped = ""
        """Why the search is over; "" while it is not."""

    # ------------------------------------------------------------------ what happens

    def stepped(self, hash: str, seconds: float | None) -> None:
        """A step under this strategy is done. `seconds`: None if something disturbed it."""
        if hash not in self.candidates:
            return
        if hash != self._stretch.hash:
            self._end_stretch()
            self._stretch = _Stretch(hash)
        stretch = self._stretch
        if seconds is not None and hash != self.incumbent:
            known = self._known().get(self.incumbent)
            if known is not None:
                self.excess_s += max(0.0, seconds - known.seconds)
        if stretch.settling or seconds is None:
            stretch.settling = max(0, stretch.settling - 1)
            return
        stretch.seconds.append(seconds)

    def chosen(self, hash: str) -> None:
        """It is decided that this strategy counts from some step on."""
        self.trials += hash != self.incumbent

    def refused(self, hash: str) -> None:
        """A node cannot use this strategy, so it is not tried again."""
        self._refused.add(hash)
        self._asked = self._stretch.hash

    def withdrawn(self) -> None:
        """The strategy that was answered last is not chosen now, but may be later."""
        self._asked = self._stretch.hash

    def ended(self) -> tuple[Trial, ...]:
        """The trials that ended since the last call, for the log."""
        out, self._own = tuple(self._own), []
        self._past += out
        return out

    def close(self) -> tuple[Trial, ...]:
        """The last trials, when the run or this search ends."""
        self._end_stretch()
        self._stretch = _Stretch(self._stretch.hash)
        return self.ended()

    def _end_stretch(self) -> None:
        stretch = self._stretch
        if not stretch.seconds:
            return
        candidate = self.candidates[stretch.hash]
        self._own.append(
            Trial(
                job=self.context[0],
                fleet=self.context[1],
                strategy=stretch.hash,
                price_s=candidate.price_s,
                features=candidate.features,
                seconds=tuple(stretch.seconds),
            )
        )

    # ------------------------------------------------------------------ what is next

    def next(self, step: int) -> Next | None:
        """After this step, the strategy that should count next; None if that is the one that was
        answered last. Ask after every step until `stopped`."""
        if self.stopped or self._asked != self._stretch.hash:
            return None
        measured = len(self._stretch.seconds)
        known = self._known()
        if self._stretch.hash == self.incumbent:
            if measured < (FIRST_STEPS if self.incumbent not in self._tried else 1):
                return None
            self._tried.add(self.incumbent)
            return self._choose(step, known)
        if not measured:
            return None
        self._tried.add(self._stretch.hash)
        here, best = known[self._stretch.hash], known[self.incumbent]
        difference = math.log(here.seconds / best.seconds)
        if difference > HOPELESS or (difference > 0 and measured >= 2):
            return self._choose(step, known)
        if measured < CONFIRMING_STEPS and difference <= 0:
            return None
        if -difference > measured_difference(here, best).spread:
            self.incumbent = self._stretch.hash
        return self._choose(step, known)

    def _choose(self, step: int, known: Mapping[str, Measured]) -> Next | None:
        left = self._steps - step - 1 - TRIAL_STEPS
        self._explain(known)
        self._add_neighbours()
        worth = self._worths(known, left)
        chosen = max(worth, key=lambda hash: worth[hash], default="")
        if chosen and worth[chosen] > LEAST_WORTH:
            return self._ask(chosen, f"a trial of {self.candidates[chosen].words}")
        if left <= 0:
            self.stopped = "too few steps are left"
        elif not worth:
            self.stopped = "every candidate was tried, or costs more than trials may"
        else:
            self.stopped = "no candidate promises more than its trial costs"
        words = self.candidates[self.incumbent].words
        return self._ask(self.incumbent, f"{words} is the fastest of {len(self._tried)} tried")

    def _explain(self, known: Mapping[str, Measured]) -> None:
        """Infer what may be slow, and make the best strategies for that candidates."""
        if self._slowness is None:
            return
        self.explanations = self._slowness.explanations(self._measured(known))
        for one in self._slowness.candidates(self.explanations):
            self.candidates.setdefault(one.hash, one)

    def finding(self) -> Finding | None:
        """What was found to be slow, for the log; None without a trial that could tell."""
        if self._slowness is None or not self.trials:
            return None
        measured = self._measured(self._known())
        return self._slowness.finding(self.explanations[0].case, measured, self.context)

    def _add_neighbours(self) -> None:
        """Make the strategies that differ from the incumbent in one group candidates."""
        if self._slowness is None or self.incumbent in self._with_neighbours:
            return
        self._with_neighbours.add(self.incumbent)
        sync = self.candidates[self.incumbent].sync
        for one in neighbours(self._slowness.facts, self._slowness.situation, sync):
            self.candidates.setdefault(one.hash, one)

    def _worths(self, known: Mapping[str, Measured], left: int) -> dict[str, float]:
        """What the trial of each candidate is worth, in steps of the incumbent: what is expected to
        be won over the steps that are left, less what the trial is expected to lose. Without those
        whose risk is more than a trial may take."""
        best = known[self.incumbent]
        spent = self.excess_s / best.seconds
        return {
            hash: gain(guesses) * max(0, left) - TRIAL_STEPS * loss(guesses)
            for hash, guesses in self._guesses(known).items()
            if TRIAL_STEPS * risk(guesses) <= RISKED * (self._most_spent - spent)
        }

    def _ask(self, hash: str, why: str) -> Next | None:
        if hash == self._asked:
            return None
        self._asked = hash
        return Next(hash=hash, why=why)

    def _guesses(self, known: Mapping[str, Measured]) -> dict[str, Guesses]:
        """Candidate -> the guesses for it, for each that was not tried."""
        best = known[self.incumbent]
        untried = [
            one
            for hash, one in self.candidates.items()
            if hash not in self._tried and hash not in self._refused
        ]
        some = [self.candidates[self.incumbent], *untried]
        ranked = partial(self.ranking().guess, self.context)
        if self._slowness is None:
            found = by_ranking(ranked, some)
        else:
            measured, own = self._measured(known), self._slowness
            found = by_slowness(own, self.explanations, ranked, measured, some)
        out = dict(zip((one.hash for one in untried), found, strict=True))
        for one in untried:
            if (before := known.get(one.hash)) is not None:  # by an earlier run on this fleet
                out[one.hash] = [(1.0, measured_difference(before, best))]
        return out

    # ------------------------------------------------------------------ what is known

    def ranking(self) -> Ranking:
        """The model that was learned from all that was measured by now. On this fleet it corrects
        the mean price under the explanations, and on past fleets the price of their findings."""
        found = dict(measured_of([*self._past, *self._own, *self._present()]))
        here = dict(found.get(self.context, {}))
        mine = [self.candidates[hash] for hash in here if hash in self.candidates]
        if self._slowness is None:
            return Ranking(found)
        for hash, one in mean_prices(self._slowness, self.explanations, mine).items():
            here[hash] = replace(here[hash], price_s=one.price_s)
        error = self._slowness.prior.error
        others = self._slowness.explained(found)
        return Ranking({**others, self.context: here}, unexplained=error, most=MOST_ERRORS * error)

    def _known(self) -> Mapping[str, Measured]:
        """Strategy -> what was measured of it on this fleet."""
        mine = [*self._past, *self._own, *self._present()]
        return measured_of(x for x in mine if x.context == self.context).get(self.context, {})

    def _measured(self, known: Mapping[str, Measured]) -> list[tuple[Candidate, Measured]]:
        here = self.candidates
        return [(here[hash], one) for hash, one in known.items() if hash in here]

    def _present(self) -> list[Trial]:
        """The stretch that goes on, as a trial; none if no step of it was measured."""
        kept, self._own = self._own, []
        self._end_stretch()
        present, self._own = self._own, kept
        return present
