"""The search for a better strategy while a run trains: which one is tried next, and when to stop.

Rule: a pure state machine. It is told the price and the features of candidates, what trials have
measured so far, and each finished step; it answers with the strategy that should count next. Every
strategy gives the same bits, so a trial costs its time and nothing else: it is worth its cost if
what it may win over the steps that are left is more than what it may lose over its own.

    the incumbent is measured -> a candidate is tried -> it wins and stays, or the next is tried
    -> no candidate promises more than it costs: the best of those measured stays
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bamboo.planner.sync.candidates import Candidate, neighbours
from bamboo.planner.sync.guesses import (
    Guesses,
    apart,
    by_ranking,
    by_slowness,
    gain,
    loss,
    mean_prices,
    risk,
)
from bamboo.planner.sync.ranking import Context, Ranking
from bamboo.planner.sync.repriced import Case
from bamboo.planner.sync.slowness import Explanation, Slowness
from bamboo.planner.sync.trials import Measured, Shown, Trial, measured_of

FIRST_STEPS = 8
"""Steps over which the strategy is measured that the run has when a search begins."""
SETTLING = 1
"""Steps after a change that are not counted: of the first one some is from before."""
TRIAL_STEPS = 6
"""Steps that a trial takes at least: one that settles, one that is looked at, and those that nodes
begin before they know the next strategy."""
CONFIRMED = 8
"""Steps of a candidate, before it takes the place of the incumbent."""
MOST_SPENT = 0.045
"""Share of the steps that are left at the beginning that all trials together may lose."""
LEAST_WORTH = 1.0
"""A trial is made if it is worth more than so many steps of the incumbent: choosing it takes a
launcher's time, too."""
RISKED = 0.5
"""Share of what trials may still lose that one of them may."""
MOST_ERRORS = 1.5
"""Where it is known what may be slow, a price is off by so many of its errors at most."""
HOPELESS = 0.10
"""A candidate that is slower by this share in its first step is given up at once."""


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
    settling: int = SETTLING


class LiveSearch:
    """One search, on one fleet. `past`: trials of any runs, jobs and fleets. `now`: the hash of the
    strategy that the run has; `begun`: the step in which the search begins. Raises ValueError if
    that is no candidate."""

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
        """The best strategy that is known by measurement, or the first."""
        self._asked = now
        """The strategy that was answered last, which counts already or soon will."""
        self._stretch = _Stretch(now)
        self._tried: set[str] = set()
        self._refused: set[str] = set()
        self._slowness = slowness
        self.explanations = [Explanation(case=Case(), weight=1.0)]
        """What may be slower than the model knows, the likeliest first."""
        self._grown: set[str] = set()
        """The strategies whose neighbours are candidates."""
        self.excess_s = 0.0
        """What all trials have taken longer than the incumbent would have."""
        self.trials = 0
        self.stopped = ""
        """Why the search is over; "" while it is not."""

    # ------------------------------------------------------------------ what happens

    def stepped(self, hash: str, seconds: float | None) -> None:
        """A step is done that counted under this strategy; `seconds`: None if something disturbed
        it."""
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

    def refused(self, hash: str) -> None:
        """A node cannot use a strategy."""
        self._refused.add(hash)
        self._asked = self._stretch.hash

    def withdrawn(self) -> None:
        """What was asked for is not chosen, since something else came in between."""
        self._asked = self._stretch.hash

    def ended(self) -> tuple[Trial, ...]:
        """The trials since the last call, for the log."""
        out, self._own = tuple(self._own), []
        self._past += out
        return out

    def close(self) -> tuple[Trial, ...]:
        """The last trials, at the end of the run or of this search."""
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
        """After this step: the strategy that should count next, if it is another one than was
        answered last. Ask after every step until `stopped`."""
        if self.stopped or self._asked != self._stretch.hash:
            return None
        seen = len(self._stretch.seconds)
        known = self._known()
        if self._stretch.hash == self.incumbent:
            if seen < (FIRST_STEPS if self.incumbent not in self._tried else 1):
                return None
            self._tried.add(self.incumbent)
            return self._choose(step, known)
        if not seen:
            return None
        self._tried.add(self._stretch.hash)
        here, best = known[self._stretch.hash], known[self.incumbent]
        difference = math.log(here.seconds / best.seconds)
        if difference > HOPELESS or (difference > 0 and seen >= 2):
            return self._choose(step, known)
        if seen < CONFIRMED and difference <= 0:
            return None
        if -difference > apart(here, best).spread:
            self.incumbent = self._stretch.hash
        return self._choose(step, known)

    def _choose(self, step: int, known: Mapping[str, Measured]) -> Next | None:
        left = self._steps - step - 1 - TRIAL_STEPS
        self._explain(known)
        self._grow()
        worth = self._worths(known, left)
        chosen = max(worth, key=lambda hash: worth[hash], default="")
        if chosen and worth[chosen] > LEAST_WORTH:
            self.trials += 1
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
        """What may be slow, after all that was measured; what would be best then is a candidate."""
        if self._slowness is None:
            return
        self.explanations = self._slowness.explanations(self._measured(known))
        for one in self._slowness.candidates(self.explanations):
            self.candidates.setdefault(one.hash, one)

    def shown(self) -> Shown | None:
        """What was found to be slow, for the log; None where no trial could have shown it."""
        if self._slowness is None or not self.trials:
            return None
        measured = self._measured(self._known())
        return self._slowness.shown(self.explanations[0].case, measured, self.context)

    def _grow(self) -> None:
        """Make what is near the incumbent a candidate."""
        if self._slowness is None or self.incumbent in self._grown:
            return
        self._grown.add(self.incumbent)
        sync = self.candidates[self.incumbent].sync
        for one in neighbours(self._slowness.facts, self._slowness.situation, sync):
            self.candidates.setdefault(one.hash, one)

    def _worths(self, known: Mapping[str, Measured], left: int) -> dict[str, float]:
        """What the trial of each candidate is worth that trials may cost."""
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
        """For each candidate that was not tried, its log time less the incumbent's, under each
        explanation."""
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
                out[one.hash] = [(1.0, apart(before, best))]
        return out

    # ------------------------------------------------------------------ what is known

    def ranking(self) -> Ranking:
        """The model, from all that was measured by now. On this fleet it corrects the price under
        what may be slow."""
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
        kept, self._own = self._own, []
        self._end_stretch()
        present, self._own = self._own, kept
        return present
