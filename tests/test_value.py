"""Billing rules and the definition of value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.errors import CoreMisuse
from bamboo.value import (
    bill_micro_usd,
    billed_s,
    micro_usd,
    per_usd_spent,
    samples_per_s,
    samples_per_usd,
    tokens_per_usd,
    usd_per_hour,
)


@pytest.mark.parametrize(
    ("used_s", "free", "seconds"),
    [
        (0, False, 60),
        (59.2, False, 60),
        (60.01, False, 61),
        (3599.9, True, 0),
        (3600, True, 3600),
        (3599.9, False, 3600),
        (7200.5, False, 7201),
    ],
)
def test_billed_seconds(used_s: float, free: bool, seconds: int) -> None:
    assert billed_s(used_s, free_first_hour=free) == seconds


def test_a_bill_is_whole_micro_dollars_rounded_up() -> None:
    assert bill_micro_usd(3600, usd_per_hour=0.526) == 526_000
    assert bill_micro_usd(10, usd_per_hour=0.526) == 8_767  # 60 s: 8,766.67
    assert bill_micro_usd(10, usd_per_hour=0.526, free_first_hour=True) == 0


def test_prices_as_micro_dollars_have_no_binary_dust() -> None:
    assert micro_usd(0.1) == 100_000
    assert micro_usd(4.6016) == 4_601_600
    assert micro_usd(0.0000005) == 1


@given(st.integers(0, 10**7), st.integers(1, 10**8))
def test_a_bill_is_never_below_the_price_nor_a_micro_dollar_above(
    used_s: int, micro_per_hour: int
) -> None:
    bill = bill_micro_usd(used_s, usd_per_hour=micro_per_hour / 1e6)
    exact = micro_per_hour * max(used_s, 60) / 3600
    assert exact - 1e-6 <= bill < exact + 1 + 1e-6


def test_value_is_samples_per_dollar() -> None:
    speed = samples_per_s(samples=16, seconds=0.66)
    price = usd_per_hour([0.2] * 4)
    assert samples_per_usd(speed, price) == pytest.approx(16 / 0.66 * 3600 / 0.8)
    assert tokens_per_usd(2.0, 128) == 256
    # A run of an hour is worth what its rate and its price say.
    assert per_usd_spent(speed * 3600, price) == pytest.approx(samples_per_usd(speed, price))
    assert per_usd_spent(48, 0.0) == 0.0


def test_no_time_no_price_and_negative_time_are_misuse() -> None:
    with pytest.raises(CoreMisuse, match="above 0"):
        samples_per_s(1, 0)
    with pytest.raises(CoreMisuse, match="above 0"):
        samples_per_usd(1, 0)
    with pytest.raises(CoreMisuse, match=r"-0\.1 USD cannot have been spent"):
        per_usd_spent(1, -0.1)
    with pytest.raises(CoreMisuse, match="cannot have run -1"):
        billed_s(-1)
