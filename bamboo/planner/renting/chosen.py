"""Which option to take, and when redundancy pays: choices over figures that are already known.

Rule: without limits the option with the most samples per dollar wins; among values that cannot be
told apart (`ranking.SAME`), the one with the least redundancy. Under limits the cheapest option
that keeps them in nine runs of ten wins. Statements about other rates of preemption are modelled:
they scale the losses of the plans in the table, and nothing is simulated again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, floor, inf, isinf, log, log10

from bamboo.planner.plans.losses import at_rate
from bamboo.planner.plans.ranking import ROUNDING, SAME, least_redundant
from bamboo.planner.renting.option import HOUR_S, SPOT, Option, Question
from bamboo.value import samples_per_usd

LEAST_RATE, MOST_RATE = 1e-6, 20.0
"""Range of preemptions per node-hour in which a break-even is searched."""
HALVINGS = 60
RATES = tuple(LEAST_RATE * (MOST_RATE / LEAST_RATE) ** (n / 48) for n in range(49))
"""The rates at which redundancy is compared, before the exact break-even is searched."""
PAYS = log(1 + SAME)
"""The gain from which redundancy is said to pay, as in a `Case`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of an option over many seeds; inf if a run was not finished in time."""

    option: Option
    hours_p50: float
    hours_p90: float
    usd_p50: float
    usd_p90: float
    preemptions: float
    restores: float
    runs: int
    unfinished: int
    """Runs that ended early, or were not finished by the end of the simulated time."""
    beside_usd_per_hour: float = 0.0
    """Costs in addition to the instances; no figure above includes them."""

    @property
    def samples(self) -> float:
        """Samples of the whole job."""
        return float(self.option.steps * self.option.batch)

    @property
    def whole_usd_p50(self) -> float:
        """Instances and additional costs: the figure that is compared with a budget."""
        return self.usd_p50 + self._beside_usd(self.hours_p50)

    @property
    def whole_usd_p90(self) -> float:
        """Like `whole_usd_p50`. Never too low, even if the dearest run is not the longest."""
        return self.usd_p90 + self._beside_usd(self.hours_p90)

    def _beside_usd(self, hours: float) -> float:
        # No price stays 0, however long it takes: 0 times infinity is not a number.
        return self.beside_usd_per_hour * hours if self.beside_usd_per_hour else 0.0

    @property
    def value(self) -> float:
        """Samples per dollar of instances in the median run; 0 if that run did not finish."""
        if isinf(self.usd_p50):
            return 0.0
        rate = self.samples / (self.hours_p50 * HOUR_S)
        return samples_per_usd(rate, self.usd_p50 / self.hours_p50)

    def keeps(self, *, deadline_h: float, budget_usd: float) -> bool:
        """Whether nine runs of ten keep both limits."""
        return self.hours_p90 <= deadline_h and self.whole_usd_p90 <= budget_usd

    def samples_for(self, usd: float) -> tuple[float, float]:
        """Samples that `usd` buys in half of the runs, and in nine of ten."""
        # A run that costs infinitely many dollars buys nothing.
        return self.samples * usd / self.whole_usd_p50, self.samples * usd / self.whole_usd_p90


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The option to take, or why there is none."""

    outcome: Outcome | None
    why: str
    """One sentence."""


def choose(
    outcomes: Sequence[Outcome], *, deadline_h: float = inf, budget_usd: float = inf
) -> Chosen:
    """Choose among the options that a launch can rent. inf: no such limit."""
    able = [one for one in outcomes if one.option.launchable]
    safe = [one for one in able if one.keeps(deadline_h=deadline_h, budget_usd=budget_usd)]
    if isinf(deadline_h) and isinf(budget_usd):
        safe = [one for one in able if one.value > 0]
    if not safe:
        return Chosen(outcome=None, why=_not_enough(able, deadline_h, budget_usd))
    if isinf(deadline_h) and isinf(budget_usd):
        first = least_redundant(
            safe, value=lambda one: one.value, mode=lambda one: one.option.line.mode
        )
        others = [one for one in safe if one is not first]
        return Chosen(outcome=first, why=_most_value(first, others))
    first = min(safe, key=lambda one: (one.whole_usd_p90, one.hours_p90))
    limits = _limits(deadline_h, budget_usd)
    return Chosen(
        outcome=first,
        why=f"The cheapest of the {len(safe)} of {len(able)} simulated options that are done "
        f"{limits} in nine runs of ten.",
    )


def _limits(deadline_h: float, budget_usd: float) -> str:
    words = []
    if not isinf(deadline_h):
        words.append(f"within {deadline_h:g} h")
    if not isinf(budget_usd):
        words.append(f"for ${_up(budget_usd, 2)}")
    return " and ".join(words)


def _up(value: float, digits: int) -> str:
    """The value with `digits` digits, or below 1 with two significant figures. It is rounded up,
    because less would not be enough."""
    if 0 < value < 1:
        digits = max(digits, 1 - floor(log10(value)))
    return f"{ceil(value * 10**digits - 1e-6) / 10**digits:,.{digits}f}"


def _most_value(first: Outcome, others: Sequence[Outcome]) -> str:
    if not others:
        return "The only option that was done."
    second = max(others, key=lambda one: one.value)
    more = first.value / second.value - 1
    name = second.option.line.name
    if abs(more) < ROUNDING:
        return f"The most samples per dollar, as many as {name}."
    if abs(more) <= SAME:
        return f"The most samples per dollar, to within {100 * SAME:.3g} % as many as {name}."
    return f"The most samples per dollar: {100 * more:.3g} % more than the next, {name}."


def _not_enough(able: Sequence[Outcome], deadline_h: float, budget_usd: float) -> str:
    """A sentence that says that no option keeps the limits, and which limits one would keep."""
    done = [one for one in able if not isinf(one.usd_p90) and not isinf(one.hours_p90)]
    limits = _limits(deadline_h, budget_usd) or "at all"
    say = f"Not enough: no option is done {limits} in nine runs of ten"
    if not done:
        return f"{say}, nor at any price that was simulated; take checkpoints or on-demand nodes."
    cheap = min(done, key=lambda one: one.whole_usd_p90)
    fast = min(done, key=lambda one: one.hours_p90)
    several = (cheap,) if fast is cheap else (cheap, fast)
    ways = [
        f"${_up(one.whole_usd_p90, 2)} and {_up(one.hours_p90, 1)} h ({one.option.line.name})"
        for one in several
    ]
    return f"{say}; enough would be {', or '.join(ways)}."


# -------------------------------------------------------------------- when redundancy pays


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The rate from which the best plan with redundancy is worth more than the best without, by
    more than SAME."""

    per_node_hour: float | None
    """Modelled. None: there is no such rate, or redundancy is worth more at every rate."""
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One condition, and what plans with and without redundancy are worth under it. Modelled."""

    name: str
    with_value: float
    without_value: float

    @property
    def pays(self) -> bool:
        """Whether the plan with redundancy is worth more."""
        return self.with_value > self.without_value * (1 + SAME)


def value_at(option: Option, per_node_hour: float, question: Question) -> float:
    """What the option's plan is worth at this rate of preemptions."""
    factor = per_node_hour / option.preemptions_per_node_hour
    losses = at_rate(option.plan.losses, factor, replace_s=question.replace_s)
    return replace(option.plan, losses=losses).value


def value_in_short(option: Option, hours: float, question: Question) -> float:
    """What the plan is worth if the whole job takes `hours`: a loss costs at most half of it."""
    plan = option.plan
    steps = max(1, round(hours * HOUR_S / plan.step_s))
    hazard = replace(question, steps=steps).hazard({"": 1.0}, preemptible=True)
    fatal_s = hazard.fatal_s(plan.step_s, plan.losses.checkpoint_every)
    losses = replace(plan.losses, fatal_s=fatal_s)
    return replace(plan, losses=losses).value


def on_spot(found: Sequence[Option], *, redundant: bool) -> tuple[Option, ...]:
    """Options on spot, with replicas or without."""
    return tuple(
        one for one in found if one.line.market == SPOT and one.line.redundant is redundant
    )


def gain_at(found: Sequence[Option], per_node_hour: float, question: Question) -> float:
    """The logarithm of the factor by which the best with redundancy is worth more than without."""

    def best(*, redundant: bool) -> float:
        those = on_spot(found, redundant=redundant)
        return max(value_at(one, per_node_hour, question) for one in those)

    return log(best(redundant=True) / best(redundant=False))


def break_even(found: Sequence[Option], question: Question) -> BreakEven:
    """The rate at which `gain_at` first passes PAYS: searched over RATES, then by bisection."""
    for redundant, word in ((True, "with"), (False, "without")):
        if not on_spot(found, redundant=redundant):
            return BreakEven(
                per_node_hour=None,
                says=f"No plan {word} redundancy is left on spot, so that nothing says from which "
                "rate of preemption redundancy pays.",
            )
    if not all(one.preemptions_per_node_hour for one in found if one.line.market == SPOT):
        return BreakEven(
            per_node_hour=None, says="No node is ever taken here: redundancy has nothing to save."
        )

    def pays(rate: float) -> bool:
        return gain_at(found, rate, question) > PAYS

    looked_at = [pays(rate) for rate in RATES]
    if not any(looked_at):
        return BreakEven(
            per_node_hour=None,
            says=f"Redundancy does not pay up to {MOST_RATE:g} preemptions per node-hour.",
        )
    first = looked_at.index(True)
    # If nodes are taken all the time, plans with and without it may both be worth nothing.
    end = looked_at.index(False, first) if False in looked_at[first:] else len(RATES)
    until = f", up to {_crossing(pays, RATES[end - 1], RATES[end]):.3g}" if RATES[end:] else ""
    if not first:
        return BreakEven(
            per_node_hour=None,
            says="Redundancy pays even where no node is taken: the best plan with it is worth more "
            f"than the best without at any rate of preemption{until}.",
        )
    rate = _crossing(pays, RATES[first - 1], RATES[first])
    below = "more" if gain_at(found, LEAST_RATE, question) < -PAYS else "as much"
    return BreakEven(
        per_node_hour=rate,
        says=f"Redundancy pays from {rate:.3g} preemptions per node-hour on{until}; where fewer "
        f"are taken, the best plan without is worth {below}.",
    )


def _crossing(pays: Callable[[float], bool], low: float, high: float) -> float:
    """The first rate, within precision, at which `pays` has the value that it has at `high`."""
    after = pays(high)
    for _ in range(HALVINGS):
        middle = exp((log(low) + log(high)) / 2)
        low, high = (low, middle) if pays(middle) is after else (middle, high)
    return high
