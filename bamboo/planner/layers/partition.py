"""Cuts a list of layers into consecutive stages of nearly equal cost: exact, and deterministic.

Rule: first, the largest stage is as small as possible; then the sum of the squares of the stages'
costs is least; then the first cut in dictionary order is taken.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import isfinite

from bamboo.errors import InputError


def partition(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """The first layer of each stage, and the number of layers at the end (`Placement.cut`).

    `costs` holds one finite figure >= 0 per layer (any unit). Every stage gets at least one layer.
    Dynamic programming over (stages, layers) takes O(stages * layers * log(layers)) for the largest
    stage. A second pass considers only stages that are no larger; each layer begins about
    layers / stages of those.
    Raises InputError when there are more stages than layers, or a cost is unusable.
    """
    check_costs(costs, stages)
    before = [0.0, *accumulate(costs)]
    limit = _smallest_largest(before, stages)
    return _flattest(before, stages, limit)


def check_costs(costs: Sequence[float], stages: int) -> None:
    """Raise InputError when there are more stages than layers, or a cost is unusable."""
    layers = len(costs)
    if not 1 <= stages <= layers:
        raise InputError(
            f"{layers} layers cannot fill {stages} stages; take 1 to {layers} stages, or a model "
            "of more layers"
        )
    for index, cost in enumerate(costs):
        if not isfinite(cost) or cost < 0:
            raise InputError(f"layer {index} has the cost {cost}; costs are finite and at least 0")


def _smallest_largest(before: Sequence[float], stages: int) -> float:
    """The least possible cost of the most costly stage; `before[i]` is the cost of layers < i."""
    layers = len(before) - 1
    best = [before[layers] - before[start] for start in range(layers + 1)]
    for count in range(2, stages + 1):
        # Beyond these a stage would be left without a layer.
        last = layers - count + 1
        best = [_least_of_both(before, best, start, last) for start in range(last)]
    return best[0]


def _least_of_both(before: Sequence[float], best: Sequence[float], start: int, last: int) -> float:
    """The minimum, over all stops up to `last`, of the larger of two costs: the stage from `start`
    to the stop, which grows with the stop, and what follows the stop, which does not."""

    def is_longer(stop: int) -> bool:
        return before[stop] - before[start] >= best[stop]

    first = bisect_left(range(last + 1), True, lo=start + 1, key=is_longer)
    ends = [before[first] - before[start]] if first <= last else []
    return min([*ends, best[first - 1]] if first > start + 1 else ends)


def _flattest(before: Sequence[float], stages: int, limit: float) -> tuple[int, ...]:
    """Among the cuts whose stages all cost at most `limit`: least sum of squares, then first."""
    layers = len(before) - 1
    none = (float("inf"), ())

    def stage(start: int, stop: int) -> float:
        cost = before[stop] - before[start]
        return cost * cost if cost <= limit else float("inf")

    longest = [_end_of_longest(before, start, limit) for start in range(layers + 1)]
    best: list[tuple[float, tuple[int, ...]]] = [
        (stage(start, layers), (start, layers)) if start < layers else none
        for start in range(layers + 1)
    ]
    for count in range(2, stages + 1):
        following = best
        best = [
            min(
                (
                    (stage(start, stop) + following[stop][0], (start, *following[stop][1]))
                    for stop in range(start + 1, min(layers - count + 1, longest[start]) + 1)
                ),
                default=none,
            )
            for start in range(layers + 1)
        ]
    return best[0][1]


def _end_of_longest(before: Sequence[float], start: int, limit: float) -> int:
    """The end of the longest stage from `start` that costs at most `limit`; no cost is below 0."""

    def cost(until: float) -> float:
        return until - before[start]

    return bisect_right(before, limit, lo=start, key=cost) - 1
