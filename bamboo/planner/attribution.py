"""Attributes the money of a run: every instance-second, and every micro-dollar of the bill.

    start and stop of each instance  x  its duties  x  how busy it was  ->  time and money by use

Rule: `bamboo.value` makes the bill from starts and stops alone. The parts are made from the
seconds, and are refused if their sum is not the bill before its rounding to a micro-dollar. The
method of largest remainders then rounds them, so that they add up to it exactly.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from bamboo.errors import CoreMisuse
from bamboo.ids import InstanceId
from bamboo.planner.duties import Duty, DutyChange, Span
from bamboo.value import MICRO, MINIMUM_BILLED_S, bill_micro_usd, billed_s, micro_usd

SEEN_AFTER_S = 120.0
"""A loss is seen at most this long after it; an earlier end had another cause."""

A_LITTLE_S = 1e-3
"""Seconds of work: less than this is not scaled."""


class Use(StrEnum):
    """What a dollar of the bill was spent on; the last three come from rules of the bill.

    `steps`: training steps whose busy time was not recorded; useful, redundant and bubble in one.
    """

    USEFUL = "useful"
    REDUNDANCY = "redundancy"
    BUBBLE = "bubble"
    STEPS = "steps"
    EVALUATION = "evaluation"
    RECOVERY = "recovery"
    LOST = "lost work"
    STANDBY = "standby"
    BOOTING = "booting"
    FORMING = "forming"
    PARKED = "parked"
    LEAVING = "leaving"
    MINIMUM = "minimum"
    ROUNDING = "rounding"
    FREE = "free"


_USE_OF = {
    Duty.STEPS: Use.STEPS,
    Duty.SHADOW: Use.REDUNDANCY,
    Duty.RECOVERY: Use.RECOVERY,
    Duty.STANDBY: Use.STANDBY,
    Duty.BOOTING: Use.BOOTING,
    Duty.FORMING: Use.FORMING,
    Duty.PARKED: Use.PARKED,
    Duty.LEAVING: Use.LEAVING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """One instance, as the cloud's log has it."""

    instance: InstanceId
    started_s: float
    ended_s: float
    """The present time, if it still runs."""
    usd_per_hour: float
    free_first_hour: bool = False
    """The cloud took it, and its terms then make the first hour free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How busy an instance had been by `at_s`, since its node started."""

    at_s: float
    instance: InstanceId
    useful_s: float
    """Forwards and backwards of its own slots; with `exact`, also exchanges and steps."""
    redundant_s: float
    """Forwards and backwards for the neighbour; with `exact`, also steps of the replica."""
    exact: bool = False
    """Measured by kind, at the end of its work. Otherwise only the sum of forwards and backwards
    was measured, and the redundant part is estimated from their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """One instance: `us` are the microseconds that it ran, `micro_usd` the parts of its bill."""

    instance: InstanceId
    us: Mapping[Use, int]
    micro_usd: Mapping[Use, int]
    bill_micro_usd: int
    exact: bool
    """Whether its busy time was measured by kind."""


def apportion(total: int, parts: Sequence[Fraction]) -> list[int]:
    """Whole numbers that add up to `total`, each within one of its part. The largest remainders are
    rounded up (Hamilton's method; among equal ones, the first). Raises CoreMisuse when the parts do
    not come to the total, rounded up: something is missing, or counted twice."""
    whole = sum(parts, Fraction(0))
    if not 0 <= total - whole < 1:
        raise CoreMisuse(f"parts of {float(whole):.6f} do not make a whole of {total}")
    floors = [part.numerator // part.denominator for part in parts]
    order = sorted(range(len(parts)), key=lambda i: (floors[i] - parts[i], i))
    for place in order[: total - sum(floors)]:
        floors[place] += 1
    return floors


def attribute(
    tenures: Iterable[Tenure], changes: Sequence[DutyChange], work: Iterable[Work]
) -> list[Spent]:
    """Time and bill of every tenure by use, in the order of the tenures. `changes` are those of all
    parts of the run, in order; `work` may come in any order."""
    tenures = list(tenures)
    ends_us = {t.instance: _us(t.ended_s) for t in tenures}
    turns = _turns(changes, ends_us)
    lost = _merged(change.again for change in changes if change.again is not None)
    evaluated = _merged(change.evaluated for change in changes if change.evaluated is not None)
    # What is lost is lost, whatever it was for.
    away = {Use.LOST: lost, Use.EVALUATION: _without(evaluated, lost)}
    done: dict[InstanceId, list[Work]] = {}
    for one in work:
        done.setdefault(one.instance, []).append(one)
    return [
        _spent(tenure, turns.get(tenure.instance, ()), away, done.get(tenure.instance, ()))
        for tenure in tenures
    ]


def _spent(
    tenure: Tenure,
    turns: Sequence[tuple[int, Duty]],
    away: Mapping[Use, Sequence[tuple[int, int]]],
    work: Sequence[Work],
) -> Spent:
    start_us, end_us = _us(tenure.started_s), _us(tenure.ended_s)
    end_us = max(start_us, end_us)
    us: dict[Use, int] = {}
    trained: list[tuple[int, int]] = []
    for begin_us, stop_us, duty in _spans(start_us, end_us, turns):
        if duty is Duty.STEPS:
            trained.append((begin_us, stop_us))
        else:
            us[_USE_OF[duty]] = us.get(_USE_OF[duty], 0) + stop_us - begin_us
    for use, part_us in _trained(trained, away, work).items():
        us[use] = us.get(use, 0) + part_us
    if sum(us.values()) != end_us - start_us:
        raise CoreMisuse(f"{tenure.instance}: its parts are not the {end_us - start_us} us it ran")
    money = _money(tenure, us)
    return Spent(
        instance=tenure.instance,
        us={use: part for use, part in us.items() if part},
        micro_usd=money,
        bill_micro_usd=sum(money.values()),
        exact=any(one.exact for one in work),
    )


# ------------------------------------------------------------------------------------- money


def _money(tenure: Tenure, us: Mapping[Use, int]) -> dict[Use, int]:
    """The bill by use. A free hour counts as spent and is given back in a line of its own."""
    used_s = max(0.0, tenure.ended_s - tenure.started_s)
    price = tenure.usd_per_hour
    whole = bill_micro_usd(used_s, usd_per_hour=price)
    real = bill_micro_usd(used_s, usd_per_hour=price, free_first_hour=tenure.free_first_hour)
    parts = {use: part for use, part in us.items() if part}
    beyond_us = billed_s(used_s) * MICRO - sum(parts.values())
    parts[Use.MINIMUM if used_s < MINIMUM_BILLED_S else Use.ROUNDING] = beyond_us
    rate = Fraction(micro_usd(price), 3600 * MICRO)
    shares = apportion(whole, [rate * part for part in parts.values()])
    money = dict(zip(parts, shares, strict=True))
    if real != whole:
        money[Use.FREE] = real - whole
    return {use: share for use, share in money.items() if share}


# ------------------------------------------------------------------------------------- time


def _us(at_s: float) -> int:
    return round(at_s * MICRO)


def _turns(
    changes: Iterable[DutyChange], ends_us: Mapping[InstanceId, int]
) -> dict[InstanceId, list[tuple[int, Duty]]]:
    """When each instance took which duty. An instance that a loss delays is in recovery from the
    loss on, not only from the time at which the loss was seen."""
    found: dict[InstanceId, list[tuple[int, Duty]]] = {}
    for change in changes:
        at_us = _us(change.at_s)
        lost_us = [ends_us[one] for one in change.lost if one in ends_us]
        stood_us = min((t for t in lost_us if 0 < at_us - t < SEEN_AFTER_S * MICRO), default=at_us)
        for taken in change.changed:
            mine = found.setdefault(taken.instance, [])
            held_up = taken.duty is Duty.RECOVERY and bool(mine) and mine[-1][1] is Duty.STEPS
            mine.append(
                (max(stood_us if held_up else at_us, mine[-1][0] if mine else 0), taken.duty)
            )
    return found


def _spans(
    start_us: int, end_us: int, turns: Sequence[tuple[int, Duty]]
) -> Iterable[tuple[int, int, Duty]]:
    """The tenure, cut where the duty changes, without empty pieces."""
    at_us, duty = start_us, Duty.BOOTING
    for turn_us, taken in (*turns, (end_us, Duty.LEAVING)):
        until_us = min(max(turn_us, at_us), end_us)
        if until_us > at_us:
            yield at_us, until_us, duty
        at_us, duty = until_us, taken


def _without(
    spans: Iterable[tuple[int, int]], others: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The parts of `spans` that are in none of `others`; each is in order and disjoint."""
    left: list[tuple[int, int]] = []
    for begin_us, stop_us in spans:
        for since_us, until_us in others:
            if until_us > begin_us and since_us < stop_us:
                left.append((begin_us, max(begin_us, since_us)))
                begin_us = min(until_us, stop_us)
        left.append((begin_us, stop_us))
    return [(begin_us, stop_us) for begin_us, stop_us in left if begin_us < stop_us]


def _merged(again: Iterable[Span]) -> list[tuple[int, int]]:
    """The spans, in order and disjoint."""
    found: list[tuple[int, int]] = []
    for since_us, until_us in sorted((_us(a.since_s), _us(a.until_s)) for a in again):
        if found and since_us <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], until_us))
        else:
            found.append((since_us, until_us))
    return found


def _trained(
    spans: Sequence[tuple[int, int]],
    away: Mapping[Use, Sequence[tuple[int, int]]],
    work: Sequence[Work],
) -> dict[Use, int]:
    """Time in steps by use: first the times that were spent in other ways; the rest is divided by
    how busy the instance was between two of its measurements."""
    us = dict.fromkeys((Use.USEFUL, Use.REDUNDANCY, Use.BUBBLE, Use.STEPS, *away), 0)
    marks = [mark for mark in _marks(work) if spans and mark[0] > spans[0][0]]
    times_us = [at_us for at_us, _, _ in marks]
    held_us = [0] * (len(marks) + 1)
    kept_us = [0] * (len(marks) + 1)
    for begin_us, stop_us in spans:
        for place, first_us, last_us in _cut(begin_us, stop_us, times_us):
            held_us[place] += last_us - first_us
            kept_us[place] += last_us - first_us
            for use, times in away.items():
                away_us = sum(max(0, min(last_us, b) - max(first_us, a)) for a, b in times)
                us[use] += away_us
                kept_us[place] -= away_us
                held_us[place] -= away_us if use is Use.EVALUATION else 0
    shares: tuple[Fraction, Fraction] | None = None
    before = (0, 0)
    for place, kept in enumerate(kept_us):
        if place < len(marks):
            after = marks[place][1:]
            if held_us[place]:
                shares = _shares(after[0] - before[0], after[1] - before[1], held_us[place])
            before = after
        if shares is None:
            us[Use.STEPS] += kept
            continue
        useful, redundant = shares
        parts = [useful * kept, redundant * kept, (1 - useful - redundant) * kept]
        whole = apportion(kept, parts)
        for use, part in zip((Use.USEFUL, Use.REDUNDANCY, Use.BUBBLE), whole, strict=True):
            us[use] += part
    return us


def _shares(useful_us: int, redundant_us: int, held_us: int) -> tuple[Fraction, Fraction]:
    """Useful and redundant shares of the time in steps. Their sum may be more than 1, because an
    operation may have begun in a recovery."""
    useful_us, redundant_us = max(0, useful_us), max(0, redundant_us)
    whole = max(held_us, useful_us + redundant_us)
    return Fraction(useful_us, whole), Fraction(redundant_us, whole)


def _marks(work: Sequence[Work]) -> list[tuple[int, int, int]]:
    """Measurements in order of time: useful and redundant microseconds until then. If the end of
    the work was both measured by kind and estimated, the earlier measurements are scaled to agree
    with the measured end."""
    ordered = sorted(work, key=lambda one: (one.at_s, one.exact))
    exact = next((one for one in reversed(ordered) if one.exact), None)
    rough = [one for one in ordered if not one.exact and (exact is None or one.at_s <= exact.at_s)]
    useful = redundant = 1.0
    if exact is not None:
        last = rough[-1] if rough else exact
        if last.at_s < exact.at_s or last.useful_s < A_LITTLE_S:
            rough.append(exact)
        else:
            useful = exact.useful_s / last.useful_s
            redundant = exact.redundant_s / max(last.redundant_s, A_LITTLE_S)
    return [(_us(w.at_s), _us(w.useful_s * useful), _us(w.redundant_s * redundant)) for w in rough]


def _cut(begin_us: int, stop_us: int, times_us: Sequence[int]) -> Iterable[tuple[int, int, int]]:
    """A span cut at the measurements: (place of the next measurement, from, until)."""
    place = bisect_left(times_us, begin_us + 1)
    while begin_us < stop_us:
        until_us = min(stop_us, times_us[place]) if place < len(times_us) else stop_us
        yield place, begin_us, until_us
        begin_us, place = until_us, place + 1
