"""Figures over many seeds: mean, median, 90th percentile, and the confidence of the mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t for 1 to 30 degrees of freedom: 95 % of it lie within that many standard errors."""
Z95 = 1.960
"""The same for the normal distribution, which is its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure over all seeds."""

    mean: float
    p50: float
    p90: float
    confidence: float
    """Half the width of the 95 % interval of the mean, by Student's t; 0 for one seed, where it is
    unknown."""


def spread(figures: Sequence[float]) -> Spread:
    """Raises ValueError without any figure."""
    if not figures:
        raise ValueError("nothing was simulated")
    ordered = sorted(figures)
    sure = 0.0
    if len(figures) > 1:
        sure = _t95(len(figures) - 1) * stdev(figures) / math.sqrt(len(figures))
    return Spread(
        mean=fmean(figures),
        p50=quantile(ordered, 0.5),
        p90=quantile(ordered, 0.9),
        confidence=sure,
    )


def _t95(freedom: int) -> float:
    if freedom <= len(T95):
        return T95[freedom - 1]
    first, second = Z95**3 + Z95, 5 * Z95**5 + 16 * Z95**3 + 3 * Z95
    return Z95 + first / (4 * freedom) + second / (96 * freedom**2)  # Fisher's expansion


def quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of ordered figures, by linear interpolation between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
