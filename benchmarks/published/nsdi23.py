"""The published simulator's constants and its averages.

Rule: nothing here is our own. The constants are those of the simulator that was published with the
paper (Thorpe et al., Bamboo, NSDI 2023). The rules are in `bamboo.sim.other_ways.published`,
the random market in `benchmarks.published.random_market`.

All nodes of the market are rented, and paid for from their creation, whether they train or wait. A
node joins once it has been created; this includes the nodes at the beginning of a trace.

Averages follow the publication: nodes and dollars from 0 to the end of the last step, samples from
the beginning of the first step to the same end. Value is the mean over that window of the
throughput of each step, including a pause before it, over its cost per hour. So it is not the
quotient of the two means beside it.
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from bamboo.ids import NodeId, ZoneId
from bamboo.sim.boundaries import Boundaries
from bamboo.sim.kernel import Entry, Kernel
from bamboo.sim.market.trace import Trace, TraceEvent
from bamboo.sim.other_ways.published import PaperRules, PaperTerms
from bamboo.sim.progress import NEARLY, Progress
from bamboo.sim.world import FAILOVER, FIRST, RECONFIGURATION, RESTORE
from benchmarks.published.random_market import random_market

HOUR_S = 3600.0
CREATION_S = 45.0
START_S = 30.0
SPOT_USD_PER_HOUR = 0.91
ON_DEMAND_USD_PER_HOUR = 3.06
MOST_PIPELINES = 4
TRACE_HOURS = 12.0
"""Length of the published runs on recorded traces."""
RANDOM_STEPS = 22_194
"""Steps after which the published runs on random markets end."""
RANDOM_HOURS = 36.0
"""Enough for nearly all runs; any other run gets twice as many hours of the same market, again and
again."""
MOST_RANDOM_HOURS = 2304.0
"""Here a run ends with the steps that it has; no published hazard comes close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A model of the paper on V100s."""

    stages: int
    samples: int
    """Samples of a step."""
    step_s: tuple[float, ...]
    """Step time with one pipeline, with two, and so on."""
    reconfiguration_s: float


MODELS = {
    "bert": Published(
        stages=12, samples=264, step_s=(4.31, 2.39, 1.805, 1.45), reconfiguration_s=20.0
    ),
    "gpt-2": Published(
        stages=12, samples=32, step_s=(1.2, 1.085, 1.046, 1.008), reconfiguration_s=20.0
    ),
    "resnet-152": Published(
        stages=8, samples=384, step_s=(6.1, 3.2, 2.4, 1.6), reconfiguration_s=10.0
    ),
    "gnmt-16": Published(
        stages=6, samples=288, step_s=(3.1, 1.66, 1.185, 0.95), reconfiguration_s=10.0
    ),
    "vgg-19": Published(
        stages=6, samples=384, step_s=(9.3, 4.9, 3.44, 2.75), reconfiguration_s=5.0
    ),
    "alexnet": Published(
        stages=6, samples=384, step_s=(6.18, 3.1, 2.0, 1.55), reconfiguration_s=5.0
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The state of a run from `at_s` on."""

    at_s: float
    nodes: int
    """Nodes that are paid for."""
    step_s: float
    """Infinite while no step is taken."""
    steps: float
    """Steps done by then, including the part of the present step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """The figures of a run as the paper gives them."""

    preemptions: int
    fatal: int
    failovers: int
    reconfigurations: int
    steps: int
    hours: float
    """Up to the end of the last step."""
    mean_nodes: float
    samples_per_s: float
    usd_per_hour: float
    usd: float
    value: float
    """Samples per second per dollar per hour."""
    timeline: tuple[Point, ...]


def _as_queued(events: tuple[TraceEvent, ...]) -> list[TraceEvent]:
    """Events in the published order: by time, joins before losses, and within that in the order in
    which a heap returns them. (The published heap also held all other future events, such as steps.
    With ours the recorded trace gives 1 to 2 % more or fewer steps, because the order of joins
    decides which losses are fatal.)"""
    queue: list[_Queued] = []
    for event in events:
        heapq.heappush(queue, _Queued(key=(event.at_s, not event.comes), event=event))
    return [heapq.heappop(queue).event for _ in events]


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class _Queued:
    key: tuple[float, bool]
    event: TraceEvent = field(compare=False)


class _Play:
    """One market, all of whose nodes are rented, under the paper's rules."""

    def __init__(self, model: Published, trace: Trace, last_step: float) -> None:
        self.kernel = Kernel()
        self.progress = Progress(self.kernel, last_step=last_step)
        boundaries = Boundaries(self.kernel, self.progress)
        self.counts: Counter[str] = Counter()
        self.preemptions = 0
        self.done = False
        self.timeline: list[Point] = []
        self._here: set[str] = set()
        self._up: set[str] = set()
        self._creations: dict[str, Entry] = {}
        self._rules = PaperRules(
            self.kernel,
            self.progress,
            boundaries,
            stages=model.stages,
            pipelines=MOST_PIPELINES,
            step_s=lambda pipelines: model.step_s[pipelines - 1],
            happened=self._happened,
            terms=PaperTerms(
                start_s=START_S, reconfiguration_s=model.reconfiguration_s, as_simulated=True
            ),
        )
        if not math.isinf(last_step):
            boundaries.when(int(last_step), self._all_done)
        self._events = _as_queued(trace.events)
        self._next = 0
        if self._events:
            self.kernel.at(self._events[0].at_s, self._market, priority=FIRST)

    def _all_done(self) -> None:
        self.done = True

    def _market(self) -> None:
        """Process all events of this time, and queue the next ones."""
        while self._next < len(self._events):
            event = self._events[self._next]
            if event.at_s > self.kernel.now_s:
                self.kernel.at(event.at_s, self._market, priority=FIRST)
                break
            self._next += 1
            self._moves(event)
        self._happened("")

    def _moves(self, event: TraceEvent) -> None:
        node = event.node
        if event.comes:
            self._here.add(node)
            self._creations[node] = self.kernel.after(CREATION_S, partial(self._created, node))
        else:
            self.preemptions += 1
            self._here.remove(node)
            if node in self._up:
                self._up.remove(node)
                self._rules.lost(NodeId(node))
            else:
                self.kernel.cancel(self._creations.pop(node))
                self._rules.lost_before_up()

    def _created(self, node: str) -> None:
        self._up.add(node)
        self._rules.joined(NodeId(node), ZoneId(""))

    def _happened(self, kind: str) -> None:
        if kind:
            self.counts[kind] += 1
        point = Point(
            at_s=self.kernel.now_s,
            nodes=len(self._here),
            step_s=self.progress.step_s,
            steps=self.progress.steps,
        )
        if self.timeline and self.timeline[-1].at_s == point.at_s:
            self.timeline.pop()
        self.timeline.append(point)


def play(
    model: Published,
    trace: Trace,
    *,
    hours: float = TRACE_HOURS,
    last_step: float = math.inf,
    usd_per_hour: float = SPOT_USD_PER_HOUR,
) -> PublishedRun:
    """One run over the trace as it is, for `hours` or to the last step."""
    played = _Play(model, trace, last_step)
    played.kernel.run(until_s=hours * HOUR_S, over=lambda: played.done)
    steps = played.progress.whole
    end_s = _last_step_ends_s(played.timeline, steps)
    begin_s = next((at.at_s for at in played.timeline if not math.isinf(at.step_s)), end_s)
    window_s = max(end_s - begin_s, 1e-9)
    node_s = sum(
        point.nodes * (until_s - point.at_s) for point, until_s in _pieces(played.timeline, end_s)
    )
    mean_nodes = node_s / max(end_s, 1e-9)
    return PublishedRun(
        preemptions=played.preemptions,
        fatal=played.counts[RESTORE],
        failovers=played.counts[FAILOVER],
        reconfigurations=played.counts[RECONFIGURATION],
        steps=steps,
        hours=end_s / HOUR_S,
        mean_nodes=mean_nodes,
        samples_per_s=steps * model.samples / window_s,
        usd_per_hour=mean_nodes * usd_per_hour,
        usd=node_s / HOUR_S * usd_per_hour,
        value=model.samples
        * sum(_per_node(played.timeline, begin_s, end_s))
        / usd_per_hour
        / window_s,
        timeline=tuple(played.timeline),
    )


def _last_step_ends_s(timeline: list[Point], steps: int) -> float:
    """0 if there was none."""
    if not steps:
        return 0.0
    last = next(point for point in reversed(timeline) if point.steps < steps - NEARLY)
    return last.at_s + (steps - last.steps) * last.step_s


def _pieces(timeline: list[Point], end_s: float) -> list[tuple[Point, float]]:
    """Each point with the end of its validity; none beyond `end_s`."""
    ends = [*(point.at_s for point in timeline[1:]), math.inf][: len(timeline)]
    return [
        (point, min(until_s, end_s))
        for point, until_s in zip(timeline, ends, strict=True)
        if point.at_s < end_s
    ]


def _per_node(timeline: list[Point], begin_s: float, end_s: float) -> Iterator[float]:
    """Steps over the mean number of nodes from the end of the previous step to their own end."""
    since_s, node_s = begin_s, 0.0
    for point, until_s in _pieces(timeline, end_s):
        if until_s <= begin_s:
            continue
        at_s = max(point.at_s, begin_s)
        first = math.floor(point.steps + NEARLY) + 1
        ends_s = at_s + (first - point.steps) * point.step_s
        if math.isinf(point.step_s) or ends_s > until_s + NEARLY * point.step_s:
            node_s += point.nodes * (until_s - at_s)
            continue
        node_s += point.nodes * (ends_s - at_s)
        if node_s:
            yield (ends_s - since_s) / node_s
        more = math.floor((until_s - ends_s) / point.step_s + NEARLY)
        if point.nodes:
            yield more / point.nodes
        since_s = ends_s + more * point.step_s
        node_s = point.nodes * (until_s - since_s)


def play_random(hazard: float, seed: int, *, model: Published = MODELS["bert"]) -> PublishedRun:
    """A run of RANDOM_STEPS on the random market of that seed."""
    hours = RANDOM_HOURS
    while True:
        market = random_market(hazard, seed, hours=hours)
        run = play(model, market, hours=hours, last_step=RANDOM_STEPS)
        if run.steps >= RANDOM_STEPS or hours >= MOST_RANDOM_HOURS:
            return run
        hours *= 2
