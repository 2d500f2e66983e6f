"""The source and the date of a price: every price has both, and therefore an age.

Rule: pure; the present day is an argument. A time that is known roughly counts as its earliest day,
so the age shown is never less than the true one.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source of a price."""

    seen: str
    """When the price held, as ISO 8601: a moment, a day, a month or a year, or `… to …`."""
    source: str

    def __post_init__(self) -> None:
        """Raises ValueError when `seen` is not a time."""
        last_moment(self.seen)

    @property
    def until(self) -> datetime:
        """The latest moment at which the price is known to have held."""
        return last_moment(self.seen)

    def age_days(self, today: date) -> int:
        """Whole days since then; 0 if that is in the future."""
        return max(0, (today - self.until.date()).days)


def last_moment(seen: str) -> datetime:
    """The beginning of the last period named in `seen`, in UTC. Raises ValueError."""
    last = seen.rpartition(" to ")[2].strip()
    padded = last + "-01" * max(0, 2 - last.count("-")) if len(last) < len("2026-01-01") else last
    try:
        found = datetime.fromisoformat(padded)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{seen!r} names no time, such as 2026-07-20") from error


def age_text(days: int) -> str:
    """`today`, `1 day old`, `124 days old`."""
    if not days:
        return "today"
    return "1 day old" if days == 1 else f"{days:,} days old"
