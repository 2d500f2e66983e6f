"""The step times of many strategies in many cases of a fleet, computed together as arrays.

Rule: with `Case.in_phases` at 0 these are the figures of `price`, in a situation with the case's
`slow` (`tests/planner/sync/test_live.py` compares them). A row of an array is one strategy in one
case, and each turn of the loop handles the next event of every row.

`price` lets messages, sums and results of several buckets overlap as far as links and nodes allow.
A fleet may overlap less. So there is a second price, of an exchange in three phases without any
overlap, and a case says where between the two prices a fleet lies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bamboo.planner.sync.flows import Figures, rates
from bamboo.planner.sync.price import shipped_s, step_of, works_of
from bamboo.planner.sync.resolved import Resolved, StageCost
from bamboo.planner.sync.situation import Situation, Slow
from bamboo.planner.sync.trials import SHORTEST_S

LARGEST = 2**17
"""About how many numbers an array over the links of all rows has at most: larger ones do not fit
into a cache."""
Slows = tuple[Slow, ...]
"""All that is slow in one case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way in which a fleet may be slower than the model says."""

    slow: Slows = ()
    in_phases: float = 0.0
    """0: buckets overlap as in `price`. 1: all partial sums are sent, then all is computed, then
    all whole sums are sent. Values between them interpolate the step time linearly."""


class Repriced:
    """One strategy as arrays, from which its step is priced in any case."""

    def __init__(self, resolved: Resolved) -> None:
        self.situation = resolved.situation
        self.stages = [_arrays_of(stage, resolved.situation) for stage in resolved.stages]
        """The buckets of each stage."""
        self.shipped_s = [shipped_s(stage, resolved.situation) for stage in resolved.stages]
        """What `shipped_s` gives, for each stage."""
        self.most_sent = max(cost.most_sent + cost.shipped.bytes for cost in resolved.stages)
        """Bytes that the busiest node sends."""
        self.billed_s = resolved.between_zones() * resolved.situation.billed_s_per_byte
        """As in `Price`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buckets:
    """The B buckets of one stage; D is the number of pipelines."""

    left_s: Figures
    """How long before the end of the last local backward each may leave, shape (B,)."""
    sizes: Figures
    """Bytes from each pipeline to each other one, shape (2, B, D, D): first those of partial sums,
    then those of whole sums."""
    hops: Figures
    """Latencies that a message takes one after the other, shape (B,)."""
    works_s: Figures
    """What each pipeline computes for a bucket, shape (B, D)."""


def _arrays_of(cost: StageCost, situation: Situation) -> _Buckets:
    count, links = len(cost.buckets), (situation.pipelines,) * 2
    moved = [one.exchanged for one in cost.buckets]
    sizes = [*(one.out for one in moved), *(one.back for one in moved)]
    works = [works_of(one, situation) for one in cost.buckets]
    return _Buckets(
        left_s=np.array([one.left_s for one in cost.buckets]),
        sizes=np.array(sizes).reshape(2, count, *links),
        hops=np.array([one.hops for one in cost.buckets], dtype=np.float64),
        works_s=np.array(works).reshape(count, situation.pipelines),
    )


def log_steps(some: Sequence[Repriced], cases: Sequence[Case]) -> Figures:
    """The log of the step of each strategy in each case, shape (strategies, cases)."""
    slows = [*dict.fromkeys(one.slow for one in cases)]
    places = {slow: place for place, slow in enumerate(slows)}
    at = [places[one.slow] for one in cases]
    found_s = steps_s(some, slows)[:, at]
    shares = np.array([one.in_phases for one in cases])
    if shares.any():
        found_s = found_s + shares * (steps_s(some, slows, in_phases=True)[:, at] - found_s)
    return np.asarray(np.log(np.maximum(found_s, SHORTEST_S)))


def steps_s(
    some: Sequence[Repriced], cases: Sequence[Slows], *, in_phases: bool = False
) -> Figures:
    """The step of each strategy with each of these slow, shape (strategies, cases). All strategies
    are of one situation, and what is slow there counts, too. `in_phases`: exchanges go in three
    phases."""
    situation = some[0].situation
    exposed_s, work_s = [], []
    for stage in range(situation.stages):
        own = [tuple(one for one in slow if one.stage == stage) for slow in cases]
        places = {slow: place for place, slow in enumerate(dict.fromkeys(own))}
        at = [places[slow] for slow in own]
        per_byte, times = _slowed(situation, stage, [*places])
        buckets = [one.stages[stage] for one in some]
        each = max(1, LARGEST // per_byte.size)
        parts = [buckets[first : first + each] for first in range(0, len(buckets), each)]
        exposed = _in_phases_s if in_phases else _exposed_s
        found = [exposed(part, situation, stage, per_byte, times) for part in parts]
        exposed_s.append(np.concatenate(found)[:, at])
        whole_s = np.array([one.works_s.sum(axis=0) for one in buckets])
        work_s.append((whole_s[:, None] * times).max(axis=2)[:, at])
    shipped = np.array([one.shipped_s for one in some])[..., None]
    return step_of(
        situation,
        exposed_s=exposed_s,
        work_s=work_s,
        ship_s=[shipped[:, stage, 0] for stage in range(situation.stages)],
        rebuild_s=[shipped[:, stage, 1] for stage in range(situation.stages)],
        copied_s=[shipped[:, stage, 2] for stage in range(situation.stages)],
        most_sent=np.array([one.most_sent for one in some])[:, None],
    )


def used_s(one: Repriced) -> Figures:
    """Seconds for which a strategy uses each link, latencies included, and each node. A vector with
    D x D links and D nodes for each stage."""
    found = []
    for stage, buckets in enumerate(one.stages):
        per_byte, latency_s = rates(one.situation, stage)
        links_s = buckets.sizes * per_byte + (buckets.sizes > 0) * latency_s
        found += [links_s.sum(axis=(0, 1)).ravel(), buckets.works_s.sum(axis=0)]
    return np.concatenate(found)


def _slowed(situation: Situation, stage: int, cases: Sequence[Slows]) -> tuple[Figures, Figures]:
    """Seconds per byte of each link, shape (cases, D, D), and the factor by which the work of each
    pipeline takes longer, shape (cases, D)."""
    per_byte = np.repeat(rates(situation, stage)[0][None], len(cases), axis=0)
    times = np.ones((len(cases), situation.pipelines))
    for case, slow in enumerate(cases):
        for one in slow:
            if one.is_link:
                per_byte[case, one.pipeline, one.to] *= one.times
            else:
                times[case, one.pipeline] *= one.times
    return per_byte, times


def _in_phases_s(
    some: Sequence[_Buckets], situation: Situation, stage: int, per_byte: Figures, times: Figures
) -> Figures:
    """As `_exposed_s`, but in three phases: the partial sums of all buckets, one after the other,
    each at its slowest link; what each pipeline computes, once it has all of them; and the whole
    sums, once all pipelines have computed."""
    latency_s, rate = rates(situation, stage)[1], situation.node_bytes_per_s
    out = np.zeros((len(some), len(times)))
    for number, one in enumerate(some):
        arrived_s, back_s = np.full_like(times, -np.inf), np.zeros(len(times))
        for bucket in np.argsort(-one.left_s, kind="stable"):
            links_s = one.sizes[:, bucket, None] * per_byte
            later_s = one.hops[bucket] * latency_s * (one.sizes[:, bucket] > 0)
            ways_s = links_s + later_s[:, None]
            if rate:
                sent_s = one.sizes[:, bucket].sum(axis=2) / rate
                ways_s = np.maximum(ways_s, (sent_s[:, :, None] + later_s)[:, None])
            arrived_s = np.maximum(arrived_s, -one.left_s[bucket]) + ways_s[0].max(axis=1)
            back_s = back_s + ways_s[1].max(axis=(1, 2))
        begins_s = arrived_s if situation.sums_early else np.maximum(arrived_s, 0.0)
        done_s = (begins_s + one.works_s.sum(axis=0) * times).max(axis=1)
        out[number] = np.maximum(0.0, done_s + back_s)
    return out


def _exposed_s(
    some: Sequence[_Buckets], situation: Situation, stage: int, per_byte: Figures, times: Figures
) -> Figures:
    """As `StagePrice.exposed_s`, shape (strategies, cases). A row that has fewer events than others
    is filled up with events that begin at infinity and change nothing."""
    count, pipelines = max(len(one.left_s) for one in some), situation.pipelines
    if not count:
        return np.zeros((len(some), len(times)))
    # Events: the partial sums of bucket b have the number b, its whole sums the number count + b.
    sizes = np.zeros((len(some), 2, count, pipelines, pipelines))
    works_s = np.zeros((len(some), count, pipelines))
    hops = np.zeros((len(some), count))
    begins_s = np.full((len(some), 2 * count), np.inf)
    for number, one in enumerate(some):
        own = len(one.left_s)
        sizes[number, :, :own] = one.sizes
        works_s[number, :own], hops[number, :own] = one.works_s, one.hops
        begins_s[number, :own] = -one.left_s
    sends = sizes > 0
    has_back = np.asarray(sends[:, 1].any(axis=(2, 3)))
    events = int((np.isfinite(begins_s).sum(axis=1) + has_back.sum(axis=1)).max())
    which = np.repeat(np.arange(len(some)), len(times))
    rows = np.arange(len(which))
    per_byte, times = (np.tile(x, (len(some), *[1] * (x.ndim - 1))) for x in (per_byte, times))
    latency_s = rates(situation, stage)[1]
    rate = situation.node_bytes_per_s
    begins_s = begins_s[which]
    given_s = np.zeros((len(rows), count, pipelines))
    links_s, nodes_s = np.full_like(per_byte, -np.inf), np.full_like(times, -np.inf)
    done_s = np.full_like(times, -np.inf if situation.sums_early else 0.0)
    end_s = np.zeros(len(rows))
    for _ in range(events):
        event = begins_s.argmin(axis=1)
        from_s = begins_s[rows, event]
        begins_s[rows, event] = np.inf
        is_back = event >= count
        bucket = np.where(is_back, event - count, event)
        is_out = ~is_back & (from_s < np.inf)
        way = is_back.astype(int)
        size, sent = sizes[which, way, bucket], sends[which, way, bucket]
        sends_s = np.where(is_back[:, None], given_s[rows, bucket], from_s[:, None])
        later_s = hops[which, bucket][:, None, None] * latency_s
        begin_s = np.maximum(links_s, sends_s[:, :, None]) + size * per_byte
        links_s = np.where(sent, begin_s, links_s)
        if rate:
            left_s = np.maximum(nodes_s, sends_s) + size.sum(axis=2) / rate
            nodes_s = np.where(sent.any(axis=2), left_s, nodes_s)
            begin_s = np.maximum(begin_s, left_s[:, :, None])
        arrived_s = np.where(sent, begin_s + later_s, -np.inf).max(axis=1)
        ready_s = np.maximum(done_s, np.maximum(arrived_s, from_s[:, None]))
        done_s = np.where(is_out[:, None], ready_s + works_s[which, bucket] * times, done_s)
        given_s[rows, bucket] = np.where(is_out[:, None], done_s, given_s[rows, bucket])
        end_s = np.where(is_back, np.maximum(end_s, arrived_s.max(axis=1)), end_s)
        goes_back = is_out & has_back[which, bucket]
        back = bucket + count
        begins_s[rows, back] = np.where(goes_back, done_s.min(axis=1), begins_s[rows, back])
    whole_s = np.maximum(0.0, np.maximum(end_s, done_s.max(axis=1)))
    return np.asarray(whole_s.reshape(len(some), -1))
