"""Figures over many seeds: mean, median, 90th percentile, and how sure the mean is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

Z95 = 1.96
"""Of the normal distribution: 95 % of it lie within so many standard errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure over all seeds."""

    mean: float
    p50: float
    p90: float
    confidence: float
    """Half the width of the 95 % interval of the mean; 0 for one seed."""


def spread(figures: Sequence[float]) -> Spread:
    """Raises ValueError without any figure."""
    if not figures:
        raise ValueError("nothing was simulated")
    ordered = sorted(figures)
    sure = Z95 * stdev(figures) / math.sqrt(len(figures)) if len(figures) > 1 else 0.0
    return Spread(
        mean=fmean(figures),
        p50=quantile(ordered, 0.5),
        p90=quantile(ordered, 0.9),
        confidence=sure,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of figures in order, by linear interpolation between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
