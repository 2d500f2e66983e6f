"""Generates spot markets from a few figures: modelled, and determined by their seed.

Rule: a pure function of the market, the seed and the hours. In each zone the instants of loss are a
Poisson process whose rate follows the number of live nodes there, so that every node has the same
hazard whatever the state of the others. An instant takes as many nodes at once as the bulk says, or
all there are. Each lost node is replaced after a time drawn for it alone. Times are whole
milliseconds, so that a trace that is written and read again is the same.
"""

import heapq
import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from bamboo.errors import InputError
from bamboo.sim.market.trace import Trace, TraceEvent, seconds_in
from bamboo.sim.market.trace_stats import HOUR_S, stats

SOONEST_BACK_S = 60.0
"""The time grain of the published trace, in which no node is replaced sooner."""
BACK_S = 0.54 * HOUR_S
"""From the published p3 trace (Thorpe et al., Bamboo, NSDI 2023): on average 8 of 32 nodes are
missing at 0.61 preemptions per node-hour of the 24 present ones."""

Bulk = tuple[tuple[int, float], ...]
"""Bulk sizes, each with its probability, in order of size."""
ONE_BY_ONE: Bulk = ((1, 1.0),)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneNodes:
    """A zone of a market, and its wanted number of nodes."""

    name: str
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """A spot market in figures. It begins with all wanted nodes, and never has more."""

    zones: tuple[ZoneNodes, ...]
    preemptions_per_node_hour: float
    bulk: Bulk = ONE_BY_ONE
    """How many nodes an instant takes; if there are fewer, it takes all of them."""
    spans: float = 0.0
    """Share of the instants that take nodes of more than one zone. It is limited by the share of
    instants that take more than one node."""
    back_s: float = BACK_S
    """Mean time until a lost node is replaced."""
    soonest_back_s: float = SOONEST_BACK_S
    """The least such time; the rest is drawn exponentially."""

    def __post_init__(self) -> None:
        """Raises ValueError for figures that make no market."""
        if sum(zone.nodes for zone in self.zones) < 1 or any(z.nodes < 0 for z in self.zones):
            raise ValueError(f"{self.zones} has no nodes to lose")
        if not 0 <= self.preemptions_per_node_hour < math.inf:
            raise ValueError(f"{self.preemptions_per_node_hour} preemptions per node-hour")
        sizes = [size for size, _ in self.bulk]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError(f"the sizes {sizes} make no bulk")
        if min(p for _, p in self.bulk) < 0 or abs(sum(p for _, p in self.bulk) - 1) > 1e-6:
            raise ValueError(f"the probabilities of {self.bulk} do not sum to 1")
        if not 0 <= self.spans <= 1:
            raise ValueError(f"a share of {self.spans} instants")
        if not 0 <= self.soonest_back_s <= self.back_s < math.inf:
            raise ValueError(f"back after {self.back_s} s, never before {self.soonest_back_s} s")

    @property
    def nodes(self) -> int:
        """Wanted nodes in all zones."""
        return sum(zone.nodes for zone in self.zones)

    @property
    def bulk_mean(self) -> float:
        """Mean number of nodes that an instant takes, if there are enough."""
        return sum(size * share for size, share in self.bulk)

    def preemptions_in(self, hours: float) -> float:
        """The approximate number of preemptions."""
        return self.preemptions_per_node_hour * self.mean_nodes * hours

    @property
    def mean_nodes(self) -> float:
        """Mean number of live nodes in the steady state: each is there for 1 / hazard, and then
        missing for `back_s`."""
        return self.nodes / (1 + self.preemptions_per_node_hour * self.back_s / HOUR_S)


def spread(nodes: int, zones: Sequence[str]) -> tuple[ZoneNodes, ...]:
    """Spread the nodes over these zones evenly; the first zones may have one more."""
    each, more = divmod(nodes, len(zones))
    return tuple(ZoneNodes(name=n, nodes=each + (i < more)) for i, n in enumerate(zones))


def geometric(mean: float, *, most: int) -> Bulk:
    """Sizes 1 to `most` with this mean, each more likely than the next by a constant factor (for a
    mean above (1 + most) / 2, less likely). Raises ValueError for an impossible mean."""
    if not 1 <= mean <= most:
        raise ValueError(f"no bulk of 1 to {most} nodes takes {mean} on average")
    low, high = 0.0, 2.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _mean(_powers(middle, most)) < mean else (low, middle)
    return tuple((size, share) for size, share in _powers(high, most) if share > 1e-12)


def hazard_market(
    *,
    nodes: int,
    preemptions_per_node_hour: float,
    bulk: float = 1.0,
    zones: Sequence[str] = ("",),
    back_s: float = BACK_S,
    spans: float = 0.0,
) -> Market:
    """A market by its hazard, mean bulk (at most the nodes of the largest zone) and mean time until
    a node is replaced. Raises ValueError for figures that make no market."""
    wanted = spread(nodes, zones)
    return Market(
        zones=wanted,
        preemptions_per_node_hour=preemptions_per_node_hour,
        bulk=geometric(bulk, most=wanted[0].nodes),
        spans=spans,
        back_s=back_s,
        soonest_back_s=min(SOONEST_BACK_S, back_s),
    )


def fit(trace: Trace) -> Market:
    """The market of which a trace could be a sample, as far as its figures tell.

    The wanted number is each zone's peak. The time until a node is replaced follows from the mean
    number of live nodes by Little's law: missing on average / lost per second. Raises InputError
    for a trace without a node.
    """
    found = stats(trace)
    if not found.peak:
        raise InputError(f"{trace.source}: never has a node; take another trace")
    zones = tuple(ZoneNodes(name=zone.zone, nodes=zone.peak) for zone in found.zones)
    zones = zones or (ZoneNodes(name="", nodes=found.peak),)
    if not found.preemptions:
        return Market(zones=zones, preemptions_per_node_hour=0.0)
    missing = sum(zone.nodes for zone in zones) - found.mean_nodes
    back_s = missing * found.length_s / found.preemptions
    return Market(
        zones=zones,
        preemptions_per_node_hour=found.preemptions_per_node_hour,
        bulk=tuple((size, count / found.instants) for size, count in found.bulk),
        spans=found.spans or 0.0,
        back_s=back_s,
        soonest_back_s=min(SOONEST_BACK_S, back_s),
    )


def synthesise(market: Market, *, seed: int, hours: float) -> Trace:
    """One trace of the market. The same market, seed and hours give the same trace."""
    return _Course(market, random.Random(seed)).played(seconds_in(hours), f"modelled, seed {seed}")


class _Course:
    """A market over time: the live nodes of each zone, and the future ones."""

    def __init__(self, market: Market, chance: random.Random) -> None:
        self._market = market
        self._chance = chance
        self._names = [zone.name for zone in market.zones]
        self._here: list[list[str]] = [[] for _ in self._names]
        self._made = 0
        self._due: list[tuple[float, int]] = []
        """When a node comes, and in which zone."""
        self._out: list[TraceEvent] = []
        self._per_s = market.preemptions_per_node_hour / HOUR_S
        self._cumulated = list(accumulate(share for _, share in market.bulk))
        several = sum(share for size, share in market.bulk if size > 1)
        can_span = sum(zone.nodes > 0 for zone in market.zones) > 1 and several > 0
        self._span_share = min(1.0, market.spans / several) if can_span else 0.0
        self._taken_alone, self._taken_across = _expected_taken(market, self._span_share)

    def played(self, end_s: float, source: str) -> Trace:
        first = [[i] * zone.nodes for i, zone in enumerate(self._market.zones)]
        for turn in zip_longest(*first):  # so that the first few nodes are spread over the zones
            for zone in turn:
                if zone is not None:
                    self._come(0.0, zone)
        now_s, left = 0.0, self._chance.expovariate(1.0)
        while True:
            rates = self._rates()
            rate = sum(rates)
            at_s = now_s + left / rate if rate > 0 else math.inf
            if self._due and self._due[0][0] <= at_s:
                due_s, zone = heapq.heappop(self._due)
                if due_s > end_s:
                    break
                # The rest until the next instant shrinks by the elapsed part: it has no memory.
                left, now_s = max(0.0, left - rate * (due_s - now_s)), due_s
                self._come(due_s, zone)
            elif at_s > end_s:
                break
            else:
                now_s, left = at_s, self._chance.expovariate(1.0)
                self._strike(now_s, rates)
        return Trace(source=source, events=tuple(self._out), length_s=end_s)

    def _rates(self) -> list[float]:
        """Instants per second that begin in each zone. They give each node the hazard of the
        market, whatever an instant takes on average while so few are live."""
        across = self._taken_across[sum(map(len, self._here))]
        return [
            self._per_s * len(here) / (self._taken_alone[len(here)] + across) if here else 0.0
            for here in self._here
        ]

    def _strike(self, now_s: float, rates: Sequence[float]) -> None:
        zone = self._pick(rates)
        size = self._market.bulk[self._drawn(self._cumulated)][0]
        spans = size > 1 and self._span_share > 0 and self._chance.random() < self._span_share
        if not spans:
            for _ in range(min(size, len(self._here[zone]))):
                self._go(now_s, zone)
            return
        self._go(now_s, zone)
        elsewhere = [0 if i == zone else len(here) for i, here in enumerate(self._here)]
        if sum(elsewhere):
            self._go(now_s, self._pick(elsewhere))
            size -= 1
        for _ in range(min(size - 1, sum(map(len, self._here)))):
            self._go(now_s, self._pick([len(here) for here in self._here]))

    def _pick(self, weights: Sequence[float]) -> int:
        return self._drawn(list(accumulate(weights))) if len(weights) > 1 else 0

    def _drawn(self, cumulated: Sequence[float]) -> int:
        # Never at 0, so that an item without weight is not drawn.
        point = (1.0 - self._chance.random()) * cumulated[-1]
        return bisect_left(cumulated, point)

    def _come(self, at_s: float, zone: int) -> None:
        self._made += 1
        name = f"node{self._made}"
        self._here[zone].append(name)
        self._note(at_s, name, zone, comes=True)

    def _go(self, at_s: float, zone: int) -> None:
        here = self._here[zone]
        index = int(self._chance.random() * len(here))
        here[index], here[-1] = here[-1], here[index]
        self._note(at_s, here.pop(), zone, comes=False)
        market = self._market
        beyond_s = market.back_s - market.soonest_back_s
        away_s = market.soonest_back_s - beyond_s * math.log(1.0 - self._chance.random())
        heapq.heappush(self._due, (at_s + away_s, zone))

    def _note(self, at_s: float, node: str, zone: int, *, comes: bool) -> None:
        stamp_s = round(at_s * 1e3) / 1e3
        name = self._names[zone]
        self._out.append(TraceEvent(at_s=stamp_s, node=node, comes=comes, zone=name))


def _expected_taken(market: Market, span_share: float) -> tuple[list[float], list[float]]:
    """Mean number of nodes that an instant takes: of n live nodes in its zone if it stays there,
    and of n live nodes in all if it spans zones, each weighted with its probability."""
    stays = [(size, share * (1 - span_share if size > 1 else 1.0)) for size, share in market.bulk]
    crosses = [(size, share * span_share) for size, share in market.bulk if size > 1]
    return _least_means(stays, market.nodes), _least_means(crosses, market.nodes)


def _least_means(bulk: Sequence[tuple[int, float]], most: int) -> list[float]:
    """The mean of min(size, n) for n from 0 to `most`: each n adds the sizes of at least n."""
    left = sum(share for _, share in bulk)
    share_of = dict(bulk)
    out = [0.0]
    for n in range(1, most + 1):
        out.append(out[-1] + left)
        left = max(0.0, left - share_of.get(n, 0.0))
    return out


def _powers(lean: float, most: int) -> Bulk:
    """From all at size 1 (lean 0) over uniform (1) to all at the largest size (2)."""
    raw = [(lean if lean <= 1 else 2 - lean) ** exponent for exponent in range(most)]
    raw = raw if lean <= 1 else raw[::-1]
    total = sum(raw)
    return tuple((size, share / total) for size, share in enumerate(raw, 1))


def _mean(bulk: Bulk) -> float:
    return sum(size * share for size, share in bulk)
