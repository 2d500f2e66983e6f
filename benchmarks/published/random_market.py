"""The random market on which the published simulator was run (Thorpe et al., Bamboo, NSDI 2023).

Rule: nothing here is our own. The numbers are drawn in the published order, so that a seed gives
the loss times of the published market of that seed. (A different node may be lost then, because
that depends on the order in which its queue returned the nodes of one time.)
"""

import heapq
import math
import random

from bamboo.sim.market.trace import Trace, TraceEvent

HOURS_OF_DAY = 24
SECONDS = 3600
SLOTS = 48
PUBLISHED_SEEDS = range(1, 101)
"""The seeds over which the published rows are means. (At a hazard of .01 they have 4.41 losses; a
thousand seeds have 4.9.)"""


class _Market:
    """Hour by hour, in the order in which the published simulator draws its random numbers."""

    def __init__(self, hazard: float, seed: int) -> None:
        self._hazard = hazard
        self._chance = random.Random(seed)
        self._joins = [self._chance.random() for _ in range(HOURS_OF_DAY)]
        self._named = 0
        self.events: list[TraceEvent] = []
        self._here = [
            self._new(0.0) for _ in range(SLOTS) if self._joins[0] > self._chance.random()
        ]

    def _new(self, at_s: float) -> str:
        self._named += 1
        node = f"node{self._named}"
        self.events.append(TraceEvent(at_s=at_s, node=node, comes=True))
        return node

    def _lose(self, at_s: float, node: str) -> None:
        self._here.remove(node)
        self.events.append(TraceEvent(at_s=at_s, node=node, comes=False))

    def _second(self, probability: float) -> int | None:
        """The second of the hour in which the event happens, or None."""
        return self._chance.randrange(SECONDS) if probability > self._chance.random() else None

    def hour(self, number: int) -> None:
        """Draw losses for all present nodes, and joins for all slots that are or become empty. A
        join into a full market is dropped, and a new node may be lost in the same hour."""
        begin_s, join = float(number * SECONDS), self._joins[number % HOURS_OF_DAY]
        drawn = [(self._second(self._hazard), node) for node in self._here]
        losses = [(second, node) for second, node in drawn if second is not None]
        empty = SLOTS - len(self._here) + len(losses)
        joins = sorted(at for at in (self._second(join) for _ in range(empty)) if at is not None)
        heapq.heapify(losses)
        for at in [*joins, SECONDS]:
            while losses and losses[0][0] < at:
                second, node = heapq.heappop(losses)
                self._lose(begin_s + second, node)
            if at == SECONDS or len(self._here) == SLOTS:
                continue
            self._here.append(self._new(begin_s + at))
            lost_at = self._second(self._hazard)
            if lost_at is not None and lost_at >= at:
                heapq.heappush(losses, (lost_at, self._here[-1]))


def random_market(hazard: float, seed: int, *, hours: float) -> Trace:
    """The market of the paper's Monte-Carlo runs. `hazard` is the probability of a node's loss in
    an hour. The probability that an empty slot is filled in an hour of the day is drawn once a run.
    """
    market = _Market(hazard, seed)
    for hour in range(math.ceil(hours)):
        market.hour(hour)
    return Trace(
        source=f"random market, hazard {hazard:g}, seed {seed}",
        events=tuple(sorted(market.events, key=lambda event: event.at_s)),
        length_s=float(math.ceil(hours) * SECONDS),
    )
