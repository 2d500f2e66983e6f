"""When a price was seen, and how old that is."""

from datetime import UTC, date, datetime

import pytest

from bamboo.planner.origin import Origin, age_text

TODAY = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("seen", "days"),
    [
        ("2026-07-20", 124),
        ("2026-11-21", 0),
        ("2026-11-21T22:05:00Z", 0),
        ("2027-01-01", 0),
        ("2026-11", 20),
        ("2026", 324),
        ("2025-07-01 to 2025-12-31", 325),
        ("2025-07 to 2026", 324),
    ],
)
def test_an_age_counts_from_the_earliest_day_that_is_meant(seen: str, days: int) -> None:
    assert Origin(seen=seen, source="x").age_days(TODAY) == days


@pytest.mark.parametrize("seen", ["", "yesterday", "2026-13-01", "2026-07-20 to", "20260"])
def test_what_names_no_time_is_refused(seen: str) -> None:
    with pytest.raises(ValueError, match="names no time"):
        Origin(seen=seen, source="x")


def test_moments_are_compared_in_one_time() -> None:
    here = Origin(seen="2026-11-21T23:30:00-02:00", source="x").until
    assert here == datetime(2026, 11, 22, 1, 30, tzinfo=UTC)


def test_ages_read_well() -> None:
    assert [age_text(days) for days in (0, 1, 2, 1598)] == [
        "today",
        "1 day old",
        "2 days old",
        "1,598 days old",
    ]
