"""The time of a step under a strategy, from its counts and the rates of links and nodes.

Rule: modelled, and cheap enough for a search; the plan's own step time comes from a dry run, which
takes the exchange of each stage from here. What the model assumes:

- Each pair of nodes has a link of its own, and all links of a node share its send rate.
- A bucket's partial sums leave once the last local backward has passed its layers.
- A node that does one thing at a time computes with them, and sends whole sums, only after that
  backward has ended. With `Situation.sums_early` a node computes meanwhile.
- An owner copies what it ships into messages after the exchange, before its optimizer's step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from heapq import heapify, heappop, heappush

import numpy as np

from bamboo.planner.sync.flows import Figures, rates
from bamboo.planner.sync.resolved import BucketCost, Resolved, StageCost
from bamboo.planner.sync.situation import Situation

LEAST_DELAY = 0.1
"""What a shadow computes for a gradient delays its own stage by at least this share of its time."""
FREE_WAITS = 0.5
"""The share of a node's waits that its work as a shadow can use. That work begins in the first wait
after a gradient has come, and what does not fit there delays the operations that follow."""
Seconds = float | Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePrice:
    """The exchange of one stage, in seconds."""

    exposed_s: float
    """From the end of the last local backward until the busiest pipeline has the whole gradient,
    work included."""
    link_s: float
    """How long its busiest link is in use."""
    work_s: float
    """How long the busiest pipeline computes for it."""
    ship_s: float
    """How long the gradient takes on the link to the shadow."""
    rebuild_s: float
    """How long the shadow computes for the gradient, without its optimizer's step."""
    copied_s: float
    """How long the owner copies the gradient into messages, before its optimizer's step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A step under a strategy."""

    step_s: float
    stages: tuple[StagePrice, ...]
    sent_bytes: float
    """What all nodes send to peers and shadows."""
    billed_s: float
    """The price of the bytes between zones, as the time for which it would rent all nodes."""
    spent_s: float
    """How long links and nodes are in use, whether or not the step waits for them. It decides
    between strategies whose steps take equally long."""

    @property
    def cost_s(self) -> float:
        """What decides between strategies: the step and what it is billed, as time of all nodes."""
        return self.step_s + self.billed_s


def price(resolved: Resolved) -> Price:
    """The step of a strategy on a grid."""
    situation = resolved.situation
    stages = [stage_price(stage, situation) for stage in resolved.stages]
    return whole_price(resolved, stages)


def whole_price(resolved: Resolved, stages: Sequence[StagePrice]) -> Price:
    """The price of a strategy whose stages have these prices."""
    situation = resolved.situation
    sent = [cost.most_sent + cost.shipped.bytes for cost in resolved.stages]
    return Price(
        step_s=float(
            step_of(
                situation,
                exposed_s=[one.exposed_s for one in stages],
                work_s=[one.work_s for one in stages],
                rebuild_s=[one.rebuild_s for one in stages],
                ship_s=[one.ship_s for one in stages],
                copied_s=[one.copied_s for one in stages],
                most_sent=max(sent),
            )
        ),
        stages=tuple(stages),
        sent_bytes=resolved.exchanged_bytes + resolved.shipped_bytes,
        billed_s=resolved.between_zones() * situation.billed_s_per_byte,
        spent_s=sum(
            one.link_s + one.ship_s + one.work_s + one.rebuild_s + one.copied_s for one in stages
        ),
    )


def step_of(
    situation: Situation,
    *,
    exposed_s: Sequence[Seconds],
    work_s: Sequence[Seconds],
    rebuild_s: Sequence[Seconds],
    ship_s: Sequence[Seconds],
    copied_s: Sequence[Seconds],
    most_sent: Seconds,
) -> Figures:
    """Seconds of a step: until the last of all stages has done its last backward, its exchange and
    its optimizer's step. It is no shorter than what any node computes, what the busiest node sends,
    or what a gradient takes to its shadow. The figures are those of `StagePrice`, one for each
    stage: numbers, or arrays of one shape. `most_sent`: bytes that the busiest node sends."""
    count = len(exposed_s)
    ends_s = situation.ends_s or (0.0,) * count
    busy_s = situation.busy_s or (0.0,) * count
    steps_s = situation.after_s or (0.0,) * count
    # A shadow of a stage is the node of the stage before, and that of stage 0 the last node.
    rebuilds_s = [*rebuild_s[1:], rebuild_s[0]]
    last_s, least_s = [], [*ship_s]
    for stage, own_s in enumerate(rebuilds_s):
        free_s = FREE_WAITS * (ends_s[stage] - busy_s[stage] + steps_s[stage])
        delay_s = np.maximum(LEAST_DELAY * own_s, own_s - free_s)
        last_s.append(ends_s[stage] + exposed_s[stage] + copied_s[stage] + delay_s)
        # Early sums are added beside the operations, not between them.
        between_s = 0.0 if situation.sums_early else work_s[stage]
        least_s.append(busy_s[stage] + between_s + copied_s[stage] + own_s)
    if situation.node_bytes_per_s:
        least_s.append(most_sent / situation.node_bytes_per_s)
    whole_s = reduce(np.maximum, last_s) + max(situation.after_s, default=0.0)
    return np.asarray(reduce(np.maximum, least_s, whole_s))


def can_hide(resolved: Resolved) -> float:
    """The share of the exchanges of all stages that is hidden behind backwards, because buckets
    leave early."""
    late_s = exposed_s = 0.0
    for stage in resolved.stages:
        works_s = [works_of(one, resolved.situation) for one in stage.buckets]
        given = (stage.buckets, works_s, resolved.situation)
        exposed_s += _whole_s(*given, early=True)
        late_s += _whole_s(*given, early=False)
    return 1.0 - exposed_s / late_s if late_s else 0.0


def stage_price(cost: StageCost, situation: Situation) -> StagePrice:
    """The exchange and the ship of one stage."""
    ship_s, rebuild_s, copied_s = shipped_s(cost, situation)
    works_s = [works_of(one, situation) for one in cost.buckets]
    work_s = float(np.max(sum(works_s))) if works_s else 0.0
    return StagePrice(
        exposed_s=_whole_s(cost.buckets, works_s, situation, early=True),
        link_s=float((cost.bytes * rates(situation, cost.stage)[0]).max()) if cost.buckets else 0.0,
        work_s=work_s,
        ship_s=ship_s,
        rebuild_s=rebuild_s,
        copied_s=copied_s,
    )


def shipped_s(cost: StageCost, situation: Situation) -> tuple[float, float, float]:
    """Seconds that the ship of a stage takes on its link, that its shadow computes for it, and that
    its owner copies it into messages."""
    rate, shipped = situation.bytes_per_s, cost.shipped
    rebuild_s = work_seconds(shipped.flops, shipped.added, situation)
    if not situation.replica:
        return 0.0, rebuild_s, 0.0
    sent_s = shipped.bytes / rate if rate else 0.0
    return sent_s, rebuild_s + situation.message_s, situation.copied_s(shipped.bytes)


def works_of(bucket: BucketCost, situation: Situation) -> Figures:
    """Seconds that each pipeline computes for a bucket, shape (D,)."""
    exchanged = bucket.exchanged
    used = (exchanged.out > 0).astype(np.float64) + (exchanged.back > 0)
    messages = used.sum(axis=0) + used.sum(axis=1)
    found = messages * situation.message_s
    if situation.flops_per_s:
        found = found + exchanged.flops / situation.flops_per_s
    if situation.added_per_s:
        found = found + exchanged.added / situation.added_per_s
    for one in situation.slow:
        if not one.is_link and one.stage == bucket.stage:
            found[one.pipeline] *= one.times
    return np.asarray(found)


def work_seconds(flops: float, added: float, situation: Situation) -> float:
    """The time of so many flops of matrix products, and of adding so many numbers."""
    products_s = flops / situation.flops_per_s if situation.flops_per_s else 0.0
    return products_s + (added / situation.added_per_s if situation.added_per_s else 0.0)


def _whole_s(
    buckets: Sequence[BucketCost],
    works_s: Sequence[Figures],
    situation: Situation,
    *,
    early: bool,
) -> float:
    """Seconds from the end of the last local backward until all sums are everywhere. Without
    `early` no bucket leaves before that end."""
    if not buckets:
        return 0.0
    wire = _Wire(situation, buckets[0].stage)
    done_s = np.full(situation.pipelines, -np.inf if situation.sums_early and early else 0.0)
    end_s = 0.0
    # Messages of a link leave in the order in which they are given to it.
    queue = [(-one.left_s if early else 0.0, False, number) for number, one in enumerate(buckets)]
    given: dict[int, Figures] = {}
    heapify(queue)
    while queue:
        from_s, is_back, number = heappop(queue)
        bucket = buckets[number]
        if is_back:
            back_s = wire.carry(bucket.exchanged.back, given[number], bucket.hops)
            end_s = max(end_s, float(back_s.max()))
            continue
        arrived_s = np.maximum(wire.carry(bucket.exchanged.out, from_s, bucket.hops), from_s)
        done_s = np.maximum(done_s, arrived_s) + works_s[number]
        given[number] = done_s
        if bucket.exchanged.back.any():
            heappush(queue, (float(done_s.min()), True, number))
    return max(0.0, end_s, float(done_s.max()))


class _Wire:
    """The links between the pipelines' nodes of one stage, and until when each is in use."""

    def __init__(self, situation: Situation, stage: int) -> None:
        self._per_byte, self._latency_s = rates(situation, stage)
        rate = situation.node_bytes_per_s
        self._node_per_byte = 1 / rate if rate else 0.0
        self._links_s = np.full_like(self._per_byte, -np.inf)
        self._nodes_s = np.full(situation.pipelines, -np.inf)

    def carry(self, sizes: Figures, from_s: Figures | float, hops: int) -> Figures:
        """When each pipeline has all that is sent to it, shape (D,); minus infinity where nothing
        is sent to it. `sizes`: bytes from each pipeline to each other one, shape (D, D). `from_s`:
        when each one sends, shape (D,), or one time for all."""
        sends = sizes > 0
        given_s = np.zeros(len(sizes)) + from_s
        begin_s = np.maximum(self._links_s, given_s[:, None]) + sizes * self._per_byte
        self._links_s = np.where(sends, begin_s, self._links_s)
        sent_s = begin_s + hops * self._latency_s
        if self._node_per_byte:
            left_s = np.maximum(self._nodes_s, given_s) + sizes.sum(axis=1) * self._node_per_byte
            self._nodes_s = np.where(sends.any(axis=1), left_s, self._nodes_s)
            sent_s = np.maximum(sent_s, left_s[:, None] + hops * self._latency_s)
        return np.asarray(np.where(sends, sent_s, -np.inf).max(axis=0))
