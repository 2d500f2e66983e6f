"""The one check of a price, whatever its source: a file, a cloud's answer, a table, a run's books.

Rule: pure, and the same words everywhere. The consequence depends on the source of the price:
- in a file that a person gives or a run keeps, a bad price is refused, with its place;
- in a cloud's answer, the pool with a bad price is left out with a note; other pools are used;
- a spot price above the on-demand price of its own region is never used for a plan or a purchase:
  EC2 charges no more than on demand, so one of the two prices is wrong. The pool is left out with a
  note. An instance that was bought at such a price is billed by it, and the receipt says so;
- a price with a date in the future is refused, because until then it would count as the newest;
- an old price is used, with a note on its age and the remedy.
"""

from datetime import date, datetime, timedelta
from math import isfinite

MOST_USD = 10_000.0
"""No instance, GB or month of anything here has ever cost this much; a higher price is an error."""
CLOCKS = timedelta(days=1)
"""Tolerated difference between the clocks of two machines."""
QUOTE_DAYS = 7
"""An older spot price of a zone does not count as the present one, because it changes daily."""
LIST_DAYS = 730
"""The same for list prices, and for the ranges of spot prices that are kept with them."""
_SHOWN = 80


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
