"""THE definition of a price, a bill and value. Planner, launcher, receipt and ledger quote it.

Rules: pure. Bills are whole micro-dollars (1 USD = 1,000,000), so that sums of them are exact;
rates and ratios are floats. Value is samples per US dollar; for text also tokens per US dollar.

There is one check of a price, with the same words, whatever its source: a file, a cloud's answer, a
table, a run's books. The consequence depends on the source:
- in a file that a person gives or a run keeps, a bad price is refused, with its place;
- in a cloud's answer, the pool with a bad price is left out with a note; other pools are used;
- a spot price above the on-demand price of its own region is never used for a plan or a purchase:
  EC2 charges no more than on demand, so one of the two prices is wrong. The pool is left out with a
  note. An instance that was bought at such a price is billed by it, and the receipt says so;
- a price with a date in the future is refused, because until then it would count as the newest;
- an old price is used, with a note on its age and the remedy.
"""

from collections.abc import Iterable
from datetime import date, datetime, timedelta
from fractions import Fraction
from functools import lru_cache
from math import ceil, isfinite

from bamboo.errors import CoreMisuse

MICRO = 1_000_000
MINIMUM_BILLED_S = 60
FREE_IF_INTERRUPTED_WITHIN_S = 3600
MOST_USD = 10_000.0
"""No instance, GB or month of anything here has ever cost this much; a higher price is an error."""
CLOCKS = timedelta(days=1)
"""Tolerated difference between the clocks of two machines."""
QUOTE_DAYS = 7
"""An older spot price of a zone does not count as the present one, because it changes daily."""
LIST_DAYS = 730
"""The same for list prices, and for the ranges of spot prices that are kept with them."""
_SHOWN = 80


# ---------------------------------------------------------------------- the check of a price


class BadPrice(ValueError):
    """A value is not a valid price; the text continues a sentence with its name or place."""


def checked_usd(
    value: object,
    *,
    written: bool = False,
    on_demand_usd: float | None = None,
    seen: datetime | None = None,
    today: date | None = None,
) -> float:
    """The price in USD. `written`: text is allowed, as in a table or a cloud's answer;
    `on_demand_usd`: its upper limit; `seen`: when it held, which must not be after `today`. Raises
    BadPrice."""
    usd = _number(value, written=written)
    if not isfinite(usd):
        raise BadPrice(f"{usd} is not finite, and no price")
    if usd <= 0:
        raise BadPrice(f"{usd:g} USD is not above 0, and no price")
    if usd > MOST_USD:
        raise BadPrice(f"{usd:g} USD is above {MOST_USD:,.0f}, and no price")
    if on_demand_usd is not None and usd > on_demand_usd:
        raise BadPrice(f"{usd:g} USD is above the on-demand price of {on_demand_usd:g} USD")
    if seen is not None and today is not None:
        check_seen(seen, today=today)
    return usd


def check_seen(seen: datetime, *, today: date, said: str = "") -> None:
    """Raises BadPrice for a time in the future; `said`: the time as it was written."""
    if seen.date() > today + CLOCKS:
        when = said or seen.date().isoformat()
        raise BadPrice(f"{when!a:.80} is still to come, as the clock here says {today}")


def _number(value: object, *, written: bool) -> float:
    if written and isinstance(value, str):
        # Python also reads 1_0 and digits of other scripts, which no table uses.
        readable = value.isascii() and "_" not in value
        try:
            return float(value) if readable else _none(value)
        except ValueError:
            return _none(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _none(value)
    try:
        return float(value)
    except OverflowError:
        raise BadPrice(f"it is too large: above {MOST_USD:,.0f} USD, and no price") from None


def _none(value: object) -> float:
    shown = ascii(value)
    raise BadPrice(f"{shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'} is no number")


# ---------------------------------------------------------------------- bills and value


def samples_per_s(samples: float, seconds: float) -> float:
    """Samples trained per second of wall time. Raises CoreMisuse for no time at all."""
    if seconds <= 0:
        raise CoreMisuse(f"samples per second over {seconds} s: the time must be above 0")
    return samples / seconds


def usd_per_hour(prices_usd_per_hour: Iterable[float]) -> float:
    """What all instances together cost per hour."""
    return sum(prices_usd_per_hour)


def samples_per_usd(samples_per_s: float, usd_per_hour: float) -> float:
    """The value: samples trained per US dollar. Raises CoreMisuse when the price is 0."""
    if usd_per_hour <= 0:
        raise CoreMisuse(f"samples per dollar at {usd_per_hour} USD/h: the price must be above 0")
    return samples_per_s * 3600 / usd_per_hour


def tokens_per_usd(samples_per_usd: float, tokens_per_sample: int) -> float:
    """The value of a run over text, in tokens."""
    return samples_per_usd * tokens_per_sample


def per_usd_spent(trained: float, usd: float) -> float:
    """The value of a run so far: samples, or tokens, per US dollar spent on them; 0 while nothing
    was spent. Raises CoreMisuse for dollars below 0."""
    if usd < 0:
        raise CoreMisuse(f"{usd} USD cannot have been spent: it must be 0 or more")
    return trained / usd if usd else 0.0


@lru_cache(maxsize=1024)
def micro_usd(usd: float) -> int:
    """A price as whole micro-dollars, to the nearest (ties up)."""
    return int(Fraction(str(usd)) * MICRO + Fraction(1, 2))


def billed_s(used_s: float, *, free_first_hour: bool = False) -> int:
    """Whole seconds that EC2 bills for a Linux instance that ran `used_s`.

    Per second, from 60 s up. A spot instance that EC2 itself takes within its first hour is free by
    its terms; one that we end, or that is taken later, is not. Only `free_first_hour` applies this:
    a value that grows with losses is no basis for a choice, and not every cloud has such terms.
    Source: AWS, "Billing for Spot Instances" and "Amazon EC2 on-demand pricing".
    """
    if used_s < 0:
        raise CoreMisuse(f"an instance cannot have run {used_s} s")
    if free_first_hour and used_s < FREE_IF_INTERRUPTED_WITHIN_S:
        return 0
    return max(MINIMUM_BILLED_S, ceil(used_s))


def bill_micro_usd(used_s: float, *, usd_per_hour: float, free_first_hour: bool = False) -> int:
    """The bill of one instance in micro-dollars, rounded up."""
    seconds = billed_s(used_s, free_first_hour=free_first_hour)
    return -(-micro_usd(usd_per_hour) * seconds // 3600)
