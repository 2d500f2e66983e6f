"""Bounds from sums alone: the most that any strategy can win over `tree`, and the least it sends.

Rule: no arrays are needed here, so a plan in which nothing can be won neither loads numpy nor
prices a strategy. What can be won is an upper bound of what prices say, but for the work of a few
messages.
"""

from collections.abc import Sequence
from math import inf

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.situation import Situation
from bamboo.topology.reduction import subtrees
from bamboo.topology.shards import FLOAT_BYTES
from bamboo.topology.virtual_nodes import blocks_of

LEAST = 0.01
"""A strategy is taken only if it wins at least this share of a step's cost. For less a run stays
with `tree`, whose work is the least and whose step is predicted best."""


def may_win(facts: Sequence[ParameterFacts], situation: Situation) -> bool:
    """Whether some strategy may cost less than `tree` by LEAST."""
    return most_won(facts, situation) >= LEAST


def most_won(facts: Sequence[ParameterFacts], situation: Situation) -> float:
    """The share of the cost of a step by `tree` that would be saved if nothing were sent, copied or
    added. It is 0 where no link has a rate, a latency or a bill: there no kind has less work than
    `tree`, but for copies to shadows, and times are not those of separate nodes. It is 1 where a
    link or a node is slow: that may be the whole step."""
    here, count = situation, situation.stages
    figures = (here.bytes_per_s, here.node_bytes_per_s, here.latency_s, here.billed_s_per_byte)
    if not any(figures) and here.far is None:
        return 0.0
    if here.slow:
        return 1.0
    sizes = [0] * count
    for one in facts:
        sizes[here.stage_of(one.layer)] += one.bytes if one.trained else 0
    ends_s, busy_s = here.ends_s or (0.0,) * count, here.busy_s or (0.0,) * count
    after_s = max(here.after_s, default=0.0)
    least_s = max(max(ends_s) + after_s, *busy_s)
    partials = partial_sums(here.shares)
    most_s = least_s
    for size, end_s, own_s in zip(sizes, ends_s, busy_s, strict=True):
        sent_s, added_s = _by_tree(size, max(partials), sum(partials), here)
        whole_s = max(end_s + sent_s + after_s, own_s) + added_s + here.copied_s(size)
        most_s = max(most_s, whole_s, _sending_s(size, max(partials), here))
    cost_s = most_s + here.billed_s_per_byte * _bytes_between_zones(sum(sizes), partials, here)
    return 1 - least_s / cost_s if cost_s > 0 else 0.0


def may_factor(facts: Sequence[ParameterFacts], situation: Situation) -> bool:
    """Whether `auto` may synchronise any of these parameters by factors."""
    sums = sum(partial_sums(situation.shares))
    return any(one.trained and factors_fewer(one, situation, sums) for one in facts)


def factors_fewer(one: ParameterFacts, here: Situation, sums: int) -> bool:
    """Whether factors are fewer bytes than the whole gradient, in the exchange or in the ship.
    `sums`: the partial sums of all pipelines."""
    if not one.rows_k:
        return False
    factors = here.factor_bytes * one.rows_k * here.total * sum(one.shape)
    whole = one.bytes * (sums / here.pipelines + 1) if here.pipelines > 1 else 0.0
    return factors < whole or (here.replica and factors < one.bytes)


def least_sent(
    facts: Sequence[ParameterFacts], here: Situation
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """For each stage, bytes that its busiest node sends in an exchange and bytes that it ships, at
    least, whatever the strategy. They are those of a mean node under the most favourable figures of
    every kind: by `owner` one pipeline sends no partial sums, by `rows` a sum has no more rows than
    a microbatch, and by `zoned` a zone sends what one pipeline would send."""
    sums, count = partial_sums(here.shares), here.pipelines
    zoned = len(set(here.zones)) / count if len(set(here.zones)) > 1 else 1.0
    whole = (sum(sums) - max(sums) + count - 1) / count * zoned
    sent, shipped = [0.0] * here.stages, [0.0] * here.stages
    for one in facts:
        if not one.trained:
            continue
        stage = here.stage_of(one.layer)
        size = one.bytes * (one.density if one.rows else 1.0)
        factors = float(here.factor_bytes * one.rows_k * here.total * sum(one.shape)) or inf
        sent[stage] += min(whole * size, factors * (count - 1) / count) if count > 1 else 0.0
        shipped[stage] += min(size, factors)
    return tuple(sent), tuple(shipped)


def partial_sums(shares: tuple[int, ...]) -> list[int]:
    """The number of partial sums of each pipeline with these shares."""
    leaves = sum(shares)
    return [len(subtrees(block.start, block.stop, leaves)) for block in blocks_of(shares)]


def _by_tree(size: int, most: int, partials: int, here: Situation) -> tuple[float, float]:
    """Seconds in which so many bytes of a stage go both ways in one bucket, and seconds in which
    they are added. `most`: the most partial sums that a pipeline has; `partials`: those of all."""
    count = here.pipelines
    if count == 1:
        return 0.0, 0.0
    links = [(here.latency_s, here.bytes_per_s)]
    links += [] if here.far is None else [(here.far.latency_s, here.far.bytes_per_s)]
    per_byte = max(1 / rate if rate else 0.0 for _, rate in links)
    if here.node_bytes_per_s:
        per_byte = max(per_byte, (count - 1) / here.node_bytes_per_s)
    numbers = size / FLOAT_BYTES * (partials - 1) / count
    added_s = numbers / here.added_per_s if here.added_per_s else 0.0
    wire_s = 2 * max(latency_s for latency_s, _ in links)
    return wire_s + size / count * (most + 1) * per_byte, added_s


def _sending_s(size: int, most: int, here: Situation) -> float:
    """Seconds for which the link to a shadow, or a node, sends in a step. `most`: the most partial
    sums that a pipeline has."""
    shipped = size if here.replica else 0
    exchanged = size * (most + 1) * (here.pipelines - 1) / here.pipelines
    link_s = shipped / here.bytes_per_s if here.bytes_per_s else 0.0
    node_s = (shipped + exchanged) / here.node_bytes_per_s if here.node_bytes_per_s else 0.0
    return max(link_s, node_s)


def _bytes_between_zones(size: int, partials: Sequence[int], here: Situation) -> float:
    """What `tree` sends between zones in a step."""
    if not here.zones:
        return 0.0
    each = size / here.pipelines
    return sum(
        each * (own + 1) * sum(zone != other for other in here.zones)
        for own, zone in zip(partials, here.zones, strict=True)
    )
