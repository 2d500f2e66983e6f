"""Decides how many nodes a run has: grow while the next nodes are worth it, otherwise shrink.

`fleet_size` says which size is best where the step time of each size is known, after Or, Zhang and
Freedman, "Resource Elasticity in Distributed Deep Learning", MLSys 2020. This file finds out those
step times during the run, with few resizes.

Rules. (1) Pure: what is known is a value, `Scaling`, from which a later launcher continues. (2)
`scaling_curve` estimates step times from the sizes seen so far. While only one size was seen, the
next is tried; the sizes beside the one to stay at are tried too where a measurement can tell. (3) A
size that was found is kept until something changes: the pace, the budget, the available capacity,
or the worth of finishing sooner. (4) No size is taken that [budget] does not allow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bamboo.planner.fleet.fleet_size import (
    Rule,
    Situation,
    best_size,
    marginal_value,
    net_usd,
    usd_of,
)
from bamboo.planner.fleet.scaling_curve import LEAST, MOST, Centre, centre, curve_of, is_time
from bamboo.value import MINIMUM_BILLED_S

RESIZES = 8
"""Most resizes before a size is kept; one more resize then leads to the best size seen."""
CLEAR = 2.0
"""A factor: a marginal value this far above or below the threshold needs no measurement."""
DRIFT = 0.15
"""Relative change of the pace since the size was chosen that makes earlier measurements stale."""
NEAR = 0.05
"""Relative distance from the deadline within which a size is measured before it counts."""
DOUBT = 2.0
"""Standard errors of the centres by which the chosen size is tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """One change of the number of nodes, with the figures on which it was decided."""

    at_s: float
    step: int
    """Steps that the run had finished by then."""
    before: int
    nodes: int
    reason: str
    samples_per_s: float
    """As measured at the size before; 0: unknown."""
    expected_samples_per_s: float
    """At the new size; 0: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What is known, and what was done. It begins as `Scaling(nodes=...)`."""

    nodes: int
    times_s: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """Sizes, ascending, each with the times of its last steps, oldest first."""
    tries: int = 0
    """Resizes since a size was last kept."""
    kept_step_s: float = 0.0
    """Step time when the present size was chosen to be kept; 0: it is not kept."""
    kept_for: tuple[int, ...] = ()
    """The sizes that were available then."""
    kept_left: int = 0
    """The steps that were left then. The choice is reconsidered when half of them are left."""
    barred: tuple[tuple[int, float], ...] = ()
    """Sizes for which there was no capacity, each with the Unix time until which this size and
    larger ones are not asked for again."""

    def to_body(self) -> dict[str, Any]:
        """The value as JSON."""
        return asdict(self)

    @staticmethod
    def of_body(body: Mapping[str, Any]) -> "Scaling":
        """The inverse of `to_body`. Raises KeyError, TypeError or ValueError for anything else."""
        return Scaling(
            nodes=int(body["nodes"]),
            times_s=tuple((int(k), tuple(map(float, times))) for k, times in body["times_s"]),
            tries=int(body["tries"]),
            kept_step_s=float(body["kept_step_s"]),
            kept_for=tuple(map(int, body["kept_for"])),
            kept_left=int(body["kept_left"]),
            barred=tuple((int(k), float(until_s)) for k, until_s in body["barred"]),
        )

    def centres(self) -> dict[int, Centre]:
        """The centres of the sizes that have enough measured steps."""
        found = {size: centre(times_s) for size, times_s in self.times_s}
        return {k: one for k, one in found.items() if one is not None and one.count >= LEAST}


def with_times(scaling: Scaling, nodes: int, times_s: Sequence[float]) -> Scaling:
    """Add measured step times of a size. Values that cannot be a time are left out, and only the
    last ones are kept."""
    known = dict(scaling.times_s)
    fresh = tuple(time_s for time_s in times_s if is_time(time_s))
    if not fresh:
        return scaling
    known[nodes] = (*known.get(nodes, ()), *fresh)[-MOST:]
    return replace(scaling, times_s=tuple(sorted(known.items())))


def without_capacity(
    scaling: Scaling, rule: Rule, *, here: int, now_s: float, until_s: float
) -> tuple[Scaling, str]:
    """There was no capacity for more nodes, and `here` are present. The size falls back to the
    largest one that they fill, and is not asked for again before `until_s`. Also gives the reason,
    "" if nothing changes."""
    fits = max((size for size in rule.sizes if size <= here), default=rule.sizes[0])
    if fits >= scaling.nodes:
        return scaling, ""
    barred = tuple(one for one in scaling.barred if one[1] > now_s)
    least = next(size for size in rule.sizes if size > fits)
    after = replace(scaling, nodes=fits, barred=(*barred, (least, until_s)))
    reason = f"{here} of {scaling.nodes} nodes could be had; not asked again for "
    return after, f"{reason}{until_s - now_s:.0f} s"


def decide(
    scaling: Scaling, rule: Rule, situation: Situation, *, step: int
) -> tuple[Scaling, Resize | None]:
    """What to do now that the run trains at `scaling.nodes`, whose times are in `scaling`. The same
    `Scaling` and None mean: stay."""
    scaling = _without_old_bars(_without_drift(scaling), situation)
    centres = scaling.centres()
    here = centres.get(scaling.nodes)
    if here is None or not (here.enough or _is_dear(rule, situation, scaling.nodes, here)):
        return scaling, None
    able = _able(scaling, rule, situation, centres)
    if scaling.nodes not in able:
        nodes, why = _cheaper(rule, able, scaling, situation, here)
    elif situation.steps_left < 2 * LEAST:
        return scaling, None  # a measurement would come too late to be used
    elif _is_kept(scaling, rule, able, situation):
        return scaling, None
    else:
        sight = _Sight(rule=rule, situation=situation, able=able, centres=centres)
        nodes, why = _choose(sight, scaling.nodes, tries=scaling.tries)
    if nodes == scaling.nodes:
        left = situation.steps_left
        kept = replace(scaling, kept_step_s=here.step_s, kept_for=able, kept_left=left, tries=0)
        return kept, None
    curve = curve_of(centres)
    seen = centres.get(nodes)
    expected_s = seen.step_s if seen else curve.step_s(nodes) if curve else None
    resize = Resize(
        at_s=situation.at_s,
        step=step,
        before=scaling.nodes,
        nodes=nodes,
        reason=f"{'grow' if nodes > scaling.nodes else 'shrink'} from {scaling.nodes} to {nodes} "
        f"nodes: {why}",
        samples_per_s=rule.samples_per_s(here.step_s),
        expected_samples_per_s=rule.samples_per_s(expected_s) if expected_s else 0.0,
    )
    return replace(scaling, nodes=nodes, tries=scaling.tries + 1, kept_step_s=0.0), resize


# ------------------------------------------------------------------------------ which sizes


def _without_drift(scaling: Scaling) -> Scaling:
    """Drop the measurements of other sizes if the pace at this one has changed."""
    if not scaling.kept_step_s:
        return scaling
    times_s = dict(scaling.times_s).get(scaling.nodes, ())[-2 * LEAST :]
    now = centre(times_s)
    if now is None or now.count < 2 * LEAST:
        return scaling
    off = abs(now.step_s / scaling.kept_step_s - 1)
    if off <= max(DRIFT, 4 * now.error):
        return scaling
    return Scaling(nodes=scaling.nodes, times_s=((scaling.nodes, times_s),), barred=scaling.barred)


def _is_kept(scaling: Scaling, rule: Rule, able: tuple[int, ...], situation: Situation) -> bool:
    """Whether nothing has changed since the present size was chosen to be kept."""
    if not scaling.kept_step_s or scaling.kept_for != able:
        return False
    return rule.utility.kind == "none" or 2 * situation.steps_left > scaling.kept_left


def _without_old_bars(scaling: Scaling, situation: Situation) -> Scaling:
    barred = tuple(one for one in scaling.barred if one[1] > situation.at_s)
    return scaling if barred == scaling.barred else replace(scaling, barred=barred)


def _able(
    scaling: Scaling, rule: Rule, situation: Situation, centres: Mapping[int, Centre]
) -> tuple[int, ...]:
    """Sizes that are available and affordable; if none is affordable, the cheapest one."""
    least = min((size for size, _ in scaling.barred), default=math.inf)
    had = tuple(size for size in rule.sizes if size < least or size <= scaling.nodes)
    if not situation.max_usd:
        return had
    usd = {size: _usd_to_the_end(size, scaling.nodes, situation, centres) for size in had}
    left_usd = situation.max_usd - situation.spent_usd
    return tuple(k for k in had if usd[k] <= left_usd) or (min(had, key=lambda k: (usd[k], k)),)


def _usd_to_the_end(
    size: int, now: int, situation: Situation, centres: Mapping[int, Centre]
) -> float:
    """Cost of the rest of the run at a size. For a larger, unmeasured size it is the cost at the
    present pace plus the cost of a trial: a number of steps, or the least time that is billed."""
    curve = curve_of(centres)
    if size in centres or curve is not None:
        step_s = centres[size].step_s if curve is None else curve.step_s(size)
        usd = usd_of(situation, size, situation.steps_left * step_s)
    else:
        usd = usd_of(situation, now, situation.steps_left * centres[now].step_s)
    if size > now:
        look_s = max(MINIMUM_BILLED_S, MOST * centres[now].step_s)
        usd += usd_of(situation, size - now, look_s)
    return usd


def _is_dear(rule: Rule, situation: Situation, nodes: int, here: Centre) -> bool:
    """Whether the budget does not last to the end at this size; that needs no more measurements."""
    if not situation.max_usd or nodes == rule.sizes[0]:
        return False
    usd = usd_of(situation, nodes, situation.steps_left * here.step_s)
    return usd > situation.max_usd - situation.spent_usd


# ------------------------------------------------------------------------------ which of them


def _cheaper(
    rule: Rule, able: Sequence[int], scaling: Scaling, situation: Situation, here: Centre
) -> tuple[int, str]:
    """The present size costs too much: the largest cheaper one below it, or the only one left."""
    usd = situation.spent_usd + usd_of(situation, scaling.nodes, situation.steps_left * here.step_s)
    nodes = max((k for k in able if k < scaling.nodes), default=able[0])
    return nodes, (
        f"at {scaling.nodes} nodes the run would come to ${usd:.2f}, and budget.max_usd = "
        f"{situation.max_usd:g}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """The inputs of a choice."""

    rule: Rule
    situation: Situation
    able: tuple[int, ...]
    centres: Mapping[int, Centre]

    def best(self, step_s: Mapping[int, float]) -> int:
        return best_size(self.rule, step_s, self.situation)

    def marginal(self, step_s: Mapping[int, float], size: int, after: int) -> float:
        return marginal_value(self.rule, step_s, size, after)


def _choose(sight: _Sight, now: int, *, tries: int) -> tuple[int, str]:
    """The size to move to, or one to measure first, and the reason."""
    curve = curve_of(sight.centres)
    if tries > RESIZES:
        return now, ""
    if curve is None:
        return _doubled(sight.able, now), "no other size has been measured yet"
    over = tries == RESIZES
    able = tuple(size for size in sight.able if size in sight.centres) if over else sight.able
    step_s = {size: curve.step_s(size) for size in able}
    nodes = sight.best(step_s)
    most = max(sight.centres)
    if nodes > 2 * most:  # so far beyond the sizes seen, the curve is a guess
        farther = [size for size in able if size > most]
        nodes = max((size for size in farther if size <= 2 * most), default=farther[0])
    if _is_a_toss_up(sight, now, nodes, step_s):
        nodes = now
    if nodes == now and not over:
        other = _to_look_at(sight, now, step_s)
        if other is not None:
            return other, f"whether {now} are best is in doubt until {other} are measured"
    return nodes, _why(sight, now, nodes, step_s)


def _is_a_toss_up(sight: _Sight, now: int, nodes: int, step_s: Mapping[int, float]) -> bool:
    """Whether both sizes are measured and adjacent, so that noise alone may decide which is better.
    Then neither is worth a resize."""
    small, large = min(now, nodes), max(now, nodes)
    beside = sight.able.index(large) - sight.able.index(small) == 1
    if not beside or nodes not in sight.centres or sight.rule.utility.kind != "none":
        return False
    errors = (sight.centres[small].error, sight.centres[large].error)
    blur = math.hypot(*errors) * small / (large - small)
    return abs(sight.marginal(step_s, small, large) - sight.rule.marginal) <= DOUBT * blur


def _doubled(able: Sequence[int], now: int) -> int:
    """The first size that is twice as large, or the largest; half as large if none is larger."""
    larger = [size for size in able if size > now]
    if larger:
        return next((size for size in larger if size >= 2 * now), larger[-1])
    smaller = [size for size in able if size < now]
    return next((size for size in reversed(smaller) if 2 * size <= now), min(able))


def _to_look_at(sight: _Sight, now: int, step_s: Mapping[int, float]) -> int | None:
    """An unmeasured size that would tell whether the present one should stay: a neighbour, if it is
    in doubt and a measurement is sharp enough; a size that finishes near the deadline; or, if noise
    leaves the best size open, the one farthest from all measured sizes."""
    rule = sight.rule
    able = sight.able
    seen = sight.centres
    unseen = [size for size in able if size not in seen]
    at = able.index(now)
    for other in (*able[at + 1 : at + 2], *able[max(0, at - 1) : at]):
        small, large = min(now, other), max(now, other)
        value = sight.marginal(step_s, small, large)
        doubtful = rule.marginal / CLEAR < value < rule.marginal * CLEAR
        blur = math.sqrt(2) * seen[now].error * small / (large - small)
        if other in unseen and doubtful and blur < rule.marginal / 2:
            return other
    for other in _near_the_deadline(sight, step_s):
        if other in unseen:
            return other
    if unseen and _is_open(sight):
        return max(unseen, key=lambda k: (min(abs(math.log(k / one)) for one in seen), -k))
    return None


def _near_the_deadline(sight: _Sight, step_s: Mapping[int, float]) -> list[int]:
    """The smallest size that finishes in time and the one before it, if the margin is narrow."""
    utility, situation = sight.rule.utility, sight.situation
    if utility.kind != "step":
        return []
    most_s = utility.deadline_s - situation.passed_s
    left_s = {size: situation.steps_left * step_s[size] for size in sight.able}
    in_time = [size for size in sight.able if left_s[size] <= most_s]
    late = [size for size in sight.able if left_s[size] > most_s]
    return [k for k in (*in_time[:1], *late[-1:]) if abs(left_s[k] - most_s) < NEAR * most_s]


def _is_open(sight: _Sight) -> bool:
    """Whether the errors of the centres, one by one, move the best size by more than one place, or
    only two neighbouring sizes were measured."""
    seen, able = sight.centres, sight.able
    noisy = any(one.error > 0 for one in seen.values())
    if noisy and max(seen) < 2 * min(seen):
        return True

    def best(centres: Mapping[int, Centre]) -> int:
        curve = curve_of(centres)
        assert curve is not None, "of two sizes at least"
        return able.index(sight.best({size: curve.step_s(size) for size in able}))

    middle, square = best(seen), 0
    for size, one in seen.items():
        off = (1 - DOUBT * one.error, 1 + DOUBT * one.error)
        moved = [replace(one, step_s=one.step_s * share) for share in off]
        square += max(abs(best({**seen, size: other}) - middle) for other in moved) ** 2
    return square > 1


def _why(sight: _Sight, now: int, nodes: int, step_s: Mapping[int, float]) -> str:
    """The figures of the decisive step: the first one upwards, or the last one that is undone."""
    if nodes == now:
        return ""
    rule, situation = sight.rule, sight.situation
    small = min(now, nodes)
    large = next(size for size in step_s if size > small)
    value = sight.marginal(step_s, small, large)
    rates = [rule.samples_per_s(step_s[size]) for size in (small, large)]
    words = (
        f"from {small} to {large} nodes samples/s go from {rates[0]:.4g} to {rates[1]:.4g}, a "
        f"marginal value of {value:.2f}"
    )
    if (value > rule.marginal) is (nodes > now):
        than = "above" if nodes > now else "not above"
        return f"{words}, {than} autoscale.marginal = {rule.marginal:g}"
    large = max(now, nodes)
    sooner_s = situation.steps_left * (step_s[small] - step_s[large])
    worth = net_usd(rule, situation, large, step_s[large])
    worth -= net_usd(rule, situation, small, step_s[small])
    finishing = f"{abs(sooner_s):.0f} s {'sooner' if sooner_s > 0 else 'later'} with {large}"
    return f"{words}; finishing {finishing} is worth ${worth:.2f} beyond what it costs"
