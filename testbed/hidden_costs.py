"""Step times of strategies on a fleet with costs that the planner's price does not have: a slow
link, a slow node, and exchanges in phases. Modelled, with noise; nothing here runs.

All three are among the cases that a live search weighs (`repriced.Case`); it does not know which of
them a fleet has. So this shows how well a search finds a case, and not how well cases describe a
real fleet: `benchmarks.strategies.live_search_run` measures that. Where all links and nodes are
`uneven`, no case describes the fleet.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import build
from bamboo.planner.sync.candidates import Candidate, candidates
from bamboo.planner.sync.flows import rates
from bamboo.planner.sync.live import LiveSearch
from bamboo.planner.sync.resolved import Resolved, resolve
from bamboo.planner.sync.situation import Situation
from bamboo.planner.sync.slowness import Slowness
from bamboo.planner.sync.trials import Log, Trial
from bamboo.topology.sync import Sync

PROPAGATES = 4
"""Steps from a proposal until it counts (`core.proposals.MARGIN`)."""
MEASURED = 5
"""Steps of a strategy in `wide_trials`."""
NOTHING = Log()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What is slower than the model says. A pipeline of -1: no link, or no node."""

    link: tuple[int, int] = (-1, -1)
    link_times: float = 1.0
    """How many times as long the link takes as the model says."""
    node: int = -1
    node_times: float = 1.0
    """The same for all that the pipeline's nodes compute for an exchange."""
    uneven: float = 0.0
    """The standard deviation of the logs of factors that each link has beside, and each node."""
    noise: float = 0.01


def true_step_s(resolved: Resolved, hidden: Hidden) -> float:
    """The step: each stage's last backward, then partial sums, work and whole sums one after the
    other, on links that carry all buckets in the order in which they leave. Nothing hides behind
    the backward but partial sums that leave early."""
    here = resolved.situation
    per_byte, latency_s = (x.copy() for x in rates(here, 0))
    if hidden.link[0] >= 0:
        per_byte[hidden.link] *= hidden.link_times
    slow = np.ones(here.pipelines)
    if hidden.uneven:
        draw = np.random.default_rng(here.pipelines)
        per_byte *= np.exp(hidden.uneven * draw.standard_normal(per_byte.shape))
        slow *= np.exp(hidden.uneven * draw.standard_normal(slow.shape))
    if hidden.node >= 0:
        slow[hidden.node] = hidden.node_times
    out = [0.0]
    for stage, cost in enumerate(resolved.stages):
        end_s = here.ends_s[stage] if here.ends_s else 0.0
        work_s = back_s = np.zeros(here.pipelines)
        arrive_s = np.full(here.pipelines, -np.inf)
        for one in sorted(cost.buckets, key=lambda bucket: -bucket.left_s):
            moved = one.exchanged
            out_s = (moved.out * per_byte + latency_s * (moved.out > 0)).max(axis=0)
            arrive_s = np.maximum(arrive_s, -one.left_s) + out_s
            back_s = back_s + (moved.back * per_byte + latency_s * (moved.back > 0)).max(axis=0)
            used = (moved.out > 0).astype(float) + (moved.back > 0)
            own_s = (used.sum(axis=0) + used.sum(axis=1)) * here.message_s
            own_s = own_s + (moved.flops / here.flops_per_s if here.flops_per_s else 0.0)
            own_s = own_s + (moved.added / here.added_per_s if here.added_per_s else 0.0)
            work_s = work_s + own_s * slow
        exposed_s = np.maximum(0.0, arrive_s) + work_s
        out.append(end_s + float(exposed_s.max()) + float(back_s.max()))
    return max(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A search against hidden costs."""

    total_s: float
    ended: str
    """Hash of the strategy that the run ends with."""
    ended_s: float
    """Its true step time."""
    first_s: float
    trials: int
    excess_s: float
    """What trials took longer than the strategy that was best known then."""
    stopped: str


class Fleet:
    """A job on one fleet, with hidden costs."""

    def __init__(
        self, facts: Sequence[ParameterFacts], situation: Situation, hidden: Hidden, seed: int
    ) -> None:
        self._facts = facts
        self._situation = situation
        self._hidden = hidden
        self._draw = random.Random(seed)

    def step_s(self, sync: Sync) -> float:
        """Without noise."""
        return true_step_s(resolve(sync, self._facts, self._situation), self._hidden)

    def play(self, search: LiveSearch, steps: int) -> Played:
        """A run of so many steps. A strategy counts some steps after it was asked for."""
        true_s: dict[str, float] = {}
        now = first = search.incumbent
        coming: tuple[int, str] | None = None
        total_s = excess_s = 0.0
        for step in range(steps):
            if coming is not None and step >= coming[0]:
                now, coming = coming[1], None
            for hash in (now, search.incumbent):
                if hash not in true_s:
                    true_s[hash] = self.step_s(search.candidates[hash].sync)
            seconds = true_s[now] * self._draw.lognormvariate(0.0, self._hidden.noise)
            total_s += seconds
            excess_s += max(0.0, true_s[now] - true_s[search.incumbent])
            search.stepped(now, seconds)
            asked = search.next(step)
            if asked is not None:
                search.chosen(asked.hash)
                coming = step + 1 + PROPAGATES, asked.hash
        return Played(
            total_s=total_s,
            ended=now,
            ended_s=true_s[now],
            first_s=true_s[first],
            trials=search.trials,
            excess_s=excess_s,
            stopped=search.stopped,
        )


WIDE = (
    ParameterFacts(name="0.table", shape=(28000, 128), layer=0, density=0.02, step_density=0.046),
    *(
        ParameterFacts(name=f"{layer}.{name}", shape=shape, layer=layer, rows_k=512)
        for layer in (1, 2)
        for name, shape in (("qkv", (384, 128)), ("up", (512, 128)), ("down", (128, 512)))
    ),
    ParameterFacts(name="3.wide", shape=(4096, 256), layer=3, rows_k=32),
    ParameterFacts(name="4.wide", shape=(4096, 4096), layer=4, rows_k=32),
    ParameterFacts(name="5.head", shape=(734, 4096), layer=5, rows_k=32),
)
"""The parameters of `examples/` with a wide embedding and wide layers, by their shapes."""


def wide_situation(pipelines: int, gbps: float = 1.0) -> Situation:
    """A grid of one stage, whose figures are of a slow processor."""
    return Situation(
        cut=(0, 6),
        shares=(1,) * pipelines,
        microbatches=2,
        replica=False,
        latency_s=1e-3,
        bytes_per_s=gbps * 125e6,
        flops_per_s=2e10,
        added_per_s=4e8,
        message_s=2e-4,
        ends_s=(0.25,),
        passed_s=(0.0, 0.02, 0.04, 0.06, 0.08, 0.12),
        busy_s=(0.24,),
    )


def wide_search(
    pipelines: int,
    builder: str,
    *,
    log: Log = NOTHING,
    fleet: str = "here",
    steps: int = 300,
) -> tuple[LiveSearch, list[Candidate]]:
    """A search that begins with the strategy of a builder."""
    here = wide_situation(pipelines)
    now = build(builder, WIDE, here)
    found = candidates(WIDE, here, now=now, now_words=f"`{builder}`")
    search = LiveSearch(
        found,
        context=("wide", fleet),
        now=now.hash(),
        steps=steps,
        past=log.trials,
        slowness=Slowness(WIDE, here, log.findings),
    )
    return search, found


def wide_trials(pipelines: int, hidden: Hidden, *, fleet: str, seed: int) -> list[Trial]:
    """All candidates as a fleet measures them, a few steps each."""
    _, found = wide_search(pipelines, "auto", fleet=fleet)
    there = Fleet(WIDE, wide_situation(pipelines), hidden, seed)
    chance = random.Random(seed)
    return [
        Trial(
            job="wide",
            fleet=fleet,
            strategy=one.hash,
            price_s=one.price_s,
            features=one.features,
            seconds=tuple(
                there.step_s(one.sync) * chance.lognormvariate(0.0, hidden.noise)
                for _ in range(MEASURED)
            ),
        )
        for one in found
    ]
