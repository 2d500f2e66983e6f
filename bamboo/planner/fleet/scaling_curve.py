"""The step time at each fleet size, estimated from noisy measurements at some sizes.

    times at a size  ->  their robust centre, and its standard error
    centres          ->  a + b / k + c k, none of the three negative  ->  any size

The three terms are what does not shrink with nodes, what nodes share, and what each node adds.
Rule: where the centres are more certain than the distance to the fit, the centres count; otherwise
the fit does. So without noise a measured size has exactly its measured time.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

LEAST = 8
"""Fewest times that make a centre."""
MOST = 64
"""Most times that are kept; older ones are dropped."""
SURE = 0.005
"""A centre of this relative error needs no more times."""
_TERMS: tuple[Callable[[float], float], ...] = (lambda k: 1.0, lambda k: 1.0 / k, lambda k: k)
_NORMAL = 1.4826
"""Standard deviations in a median absolute deviation, for a normal distribution."""
_MIDDLE = 1.1
"""Standard error of the mean of its middle half, relative to that of the mean."""
_TOLERANCE = 4.0
"""Multiple of the centres' variance by which they may differ from the fit by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Centre:
    """A size's step time in seconds, with its relative standard error."""

    step_s: float
    error: float
    count: int

    @property
    def enough(self) -> bool:
        """Whether more times would not improve the centre."""
        return self.count >= MOST or (self.count >= LEAST and self.error <= SURE)


def is_time(step_s: float) -> bool:
    """Whether this can be the time of a step."""
    return math.isfinite(step_s) and step_s > 0


def centre(times_s: Sequence[float]) -> Centre | None:
    """The mean of the middle half of the times; None without any. Values that cannot be a time are
    left out."""
    known = sorted(time_s for time_s in times_s if is_time(time_s))
    if not known:
        return None
    cut = len(known) // 4
    middle = known[cut : len(known) - cut]
    middle_s = sum(middle) / len(middle)
    spread_s = _NORMAL * median(abs(time_s - median(known)) for time_s in known)
    error = _MIDDLE * spread_s / middle_s / math.sqrt(len(known))
    return Centre(step_s=middle_s, error=error, count=len(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Step times by size; made by `curve_of`."""

    terms: tuple[float, float, float]
    corrections: tuple[tuple[int, float], ...]
    """Measured sizes, ascending, with their deviation from the fit, as a share of it."""

    def step_s(self, nodes: int) -> float:
        """The step time at a size, measured or not."""
        return _fitted(self.terms, nodes) * (1.0 + self._correction(nodes))

    def _correction(self, nodes: int) -> float:
        """Interpolated between two measured sizes by their logarithms; beyond all of them, the
        correction of the last one."""
        sizes = [size for size, _ in self.corrections]
        at = bisect_left(sizes, nodes)
        if at == len(sizes):
            return self.corrections[-1][1]
        size, above = self.corrections[at]
        if size == nodes or at == 0:
            return above
        before, below = self.corrections[at - 1]
        share = math.log(nodes / before) / math.log(size / before)
        return below + share * (above - below)


def curve_of(centres: Mapping[int, Centre]) -> Curve | None:
    """The curve through the measured sizes; None if they are fewer than two, which determine no
    curve."""
    if len(centres) < 2:
        return None
    sizes = sorted(centres)
    terms, used = _fit({size: centres[size].step_s for size in sizes})
    beyond = {size: centres[size].step_s / _fitted(terms, size) - 1.0 for size in sizes}
    freedom = max(1, len(sizes) - used)
    noise = sum(centres[size].error ** 2 for size in sizes) / len(sizes)
    misfit = sum(share**2 for share in beyond.values()) / freedom
    beside = max(0.0, misfit - _TOLERANCE * noise)
    return Curve(
        terms=terms,
        corrections=tuple(
            (size, beyond[size] * _weight(beside, centres[size].error)) for size in sizes
        ),
    )


def _weight(beside: float, error: float) -> float:
    """The share of a centre's distance from the fit that is real, and not chance."""
    return beside / (beside + error**2) if beside > 0 else 0.0


def _fitted(terms: Sequence[float], nodes: int) -> float:
    return sum(term * of(nodes) for term, of in zip(terms, _TERMS, strict=True))


def _fit(times_s: Mapping[int, float]) -> tuple[tuple[float, float, float], int]:
    """The terms with the least squares of relative errors, none negative, and how many of them
    there are: the best fit over all choices of terms that leave none below 0."""
    best: tuple[float, int, tuple[float, float, float]] | None = None
    for count in range(1, min(3, len(times_s)) + 1):
        for chosen in combinations(range(3), count):
            found = _least_squares(times_s, chosen)
            if found is None or min(found) < 0:
                continue
            terms = [0.0, 0.0, 0.0]
            for place, term in zip(chosen, found, strict=True):
                terms[place] = term
            whole = (terms[0], terms[1], terms[2])
            off = sum((_fitted(whole, k) / t - 1.0) ** 2 for k, t in times_s.items())
            if best is None or off < best[0] - 1e-12:
                best = (off, count, whole)
    assert best is not None, "a positive constant always fits somehow"
    return best[2], best[1]


def _least_squares(times_s: Mapping[int, float], chosen: Sequence[int]) -> list[float] | None:
    """By the normal equations, with columns scaled to one length; None if they are singular."""
    rows = [[_TERMS[place](k) / t for place in chosen] for k, t in times_s.items()]
    lengths = [math.sqrt(sum(row[i] ** 2 for row in rows)) for i in range(len(chosen))]
    rows = [[x / length for x, length in zip(row, lengths, strict=True)] for row in rows]
    size = len(chosen)
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)] + [sum(row[i] for row in rows)]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(matrix[i][column]))
        if abs(matrix[pivot][column]) < 1e-12:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for i in range(size):
            if i != column:
                share = matrix[i][column] / matrix[column][column]
                matrix[i] = [a - share * b for a, b in zip(matrix[i], matrix[column], strict=True)]
    return [matrix[i][size] / matrix[i][i] / lengths[i] for i in range(size)]
