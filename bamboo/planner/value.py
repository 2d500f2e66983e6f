"""THE definition of throughput, price and value. Planner, launcher, receipt and ledger quote it.

Rule: bills are whole micro-dollars (1 USD = 1,000,000), so that sums of them are exact; rates and
ratios are floats. Value is samples per US dollar; for text also tokens per US dollar.
"""

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from math import ceil

from bamboo.errors import CoreMisuse

MICRO = 1_000_000
MINIMUM_BILLED_S = 60
FREE_IF_INTERRUPTED_WITHIN_S = 3600


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
