"""The one check of a price, whatever its source: a file, a cloud's answer, a table, a run's books.

Rule: pure, and the same words everywhere. The consequence depends on the source of the price:
- in a file that a person gives or a run keeps, a bad price is refused, with its place;
- in a cloud's answer, the pool with a bad price is left out with a note; other pools are used;
- a spot price above the on-demand price of its own region is never used for a plan or a purchase:
  EC2 charges no more than on demand, so one of the two prices is wrong. The pool is left out with a
  note. An instance that was bought at such a price is billed by it, and the receipt says so;
- a price of a day that is still to come is refused, as it would pass for the newest until then;
- an old price is taken, and said to be old, with what to do.
"""

from datetime import date, datetime, timedelta
from math import isfinite

MOST_USD = 10_000.0
"""No instance, GB or month of anything here has ever cost so much: a figure beyond it is a slip."""
CLOCKS = timedelta(days=1)
"""Left for the clocks of two machines."""
QUOTE_DAYS = 7
"""A spot price of a zone that is older stands for the present one no more: it moves daily."""
LIST_DAYS = 730
"""Likewise of list prices, and of the ranges of spot prices that are kept with them."""
_SHOWN = 80


class BadPrice(ValueError):
    """What is no price, in words that go on from its name or place."""


def checked_usd(
    value: object,
    *,
    written: bool = False,
    on_demand_usd: float | None = None,
    seen: datetime | None = None,
    today: date | None = None,
) -> float:
    """The price in USD. `written`: as text, as a table or a cloud has it, else text is no number;
    `on_demand_usd`: what it must not be above; `seen`: when it held, which must not be after
    `today`. Raises BadPrice."""
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
    """Raises BadPrice for a time that is still to come; `said`: as it was written."""
    if seen.date() > today + CLOCKS:
        when = said or seen.date().isoformat()
        raise BadPrice(f"{when!a:.80} is still to come, as the clock here says {today}")


def _number(value: object, *, written: bool) -> float:
    if written and isinstance(value, str):
        # Python also reads 1_0 and digits of other scripts, which no table means.
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
