"""Options played on simulated markets, many seeds each, and other ways to use the same market.

Rule: the production core decides, as in `bamboo simulate`. The market of an option has the nodes
and zones of its plan, and on-demand nodes of a mixed option are never taken. A run that would lose
more nodes than `most_losses` is played only so far, and the rest is assumed to be alike.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from bamboo.config.policy import policy_of
from bamboo.config.tree import JobConfig
from bamboo.ids import ZoneId
from bamboo.planner.plans.candidates import Candidates, Room
from bamboo.planner.profiles.workload import saved
from bamboo.planner.renting.chosen import Outcome
from bamboo.planner.renting.option import HOUR_S, MIXED, ON_DEMAND, Offer, Option
from bamboo.planner.risks.hazards import LossRate, said
from bamboo.planner.risks.zones import REPLACE_S
from bamboo.sim.asked import Asked
from bamboo.sim.market.presets import EC2_SPANS, P3_BULK
from bamboo.sim.market.prices import Prices, constant
from bamboo.sim.market.synth import Bulk, Market, ZoneNodes, fit, synthesise
from bamboo.sim.market.trace import Trace, TraceEvent, read_trace
from bamboo.sim.members import Pauses
from bamboo.sim.processes import cores, in_order
from bamboo.sim.report import quantile
from bamboo.sim.run import Figures, TimesBook, simulate
from bamboo.sim.ways import OURS
from bamboo.sim.world import Terms
from bamboo.study.intervals import with_interval
from bamboo.study.workload import grids_of
from bamboo.topology.grid import Grid

MOST_LOSSES = 80
"""Losses in one run; with so many, the rest of the run is like the part that was played."""
DEEP, MOST_LOSSES_IF_DEEP = 16, 24
"""In a pipeline with more than DEEP stages nearly every loss leads to a new layout, whose dry run
takes long. Ten runs still have some hundred losses."""
LONGER, AT_LEAST_H = 4.0, 12.0
"""A run may take so many times its expected time, plus so many hours."""
ANCHORS = "on-demand"
"""The zone of the anchors; it is not a zone of the cloud."""
ALWAYS = "on demand"
BACK_S = REPLACE_S - Terms().boot_s
"""Time until the market has another node, unless a trace says otherwise. Then the node boots."""


def most_losses(stages: int) -> int:
    """How many losses one run is played to."""
    return MOST_LOSSES if stages <= DEEP else MOST_LOSSES_IF_DEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketTerms:
    """How nodes come back, and how many are taken at once; how often is the rate of their type."""

    bulk: Bulk
    spans: float
    back_s: float
    boot_s: float


def market_terms(hazard: float | None, trace: Path | None) -> tuple[MarketTerms, LossRate | None]:
    """The terms that `--hazard` or `--trace` give, and the rate of losses where they give one."""
    boot_s = Terms().boot_s
    if trace is not None:
        market = fit(read_trace(trace))
        terms = MarketTerms(
            bulk=market.bulk, spans=market.spans, back_s=market.back_s, boot_s=boot_s
        )
        return terms, said(market.preemptions_per_node_hour, f"--trace {trace.name}")
    terms = MarketTerms(bulk=P3_BULK, spans=EC2_SPANS, back_s=BACK_S, boot_s=boot_s)
    return terms, None if hazard is None else said(hazard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing to simulate."""

    option: Option
    system: str
    """OURS, or CHECKPOINT_RESTART with the plan of the option."""
    asked: Asked
    market: Market | None
    """None: no node is taken."""
    hours: float
    """Length of the market."""
    share: float
    """Share of the job's steps that are played."""


def row_of(
    job: JobConfig, offer: Offer, option: Option, terms: MarketTerms, *, system: str = OURS
) -> Row:
    """An option, ready to be played."""
    choice, line = option.plan.choice, option.line
    grid = choice.grid
    spread = line.spread
    if line.market == MIXED and grid.pipelines == 1:
        spread = "neighbours"  # each stage or its shadow is then on demand
    as_planned = replace(
        with_interval(job, option.plan.losses.checkpoint_every),
        cluster=replace(
            job.cluster,
            pipelines=grid.pipelines,
            max_pipelines=grid.pipelines,
            stages=grid.stages,
            redundancy=choice.mode,
            spread=spread,
        ),
    )
    cuts = _cuts(offer, option)
    workload = replace(
        saved(offer.workload, choice.saving), cuts={len(cut) - 1: cut for cut in cuts}
    )
    share = min(1.0, most_losses(grid.stages) / max(option.preemptions, 1e-9))
    hours = LONGER * option.hours * share + AT_LEAST_H
    asked = Asked(
        workload=workload,
        policy=policy_of(
            as_planned,
            cuts,
            grids=grids_of(workload, mode=choice.mode, cuts=cuts, pipelines=grid.pipelines),
            spread=spread,
        ),
        grid=grid,
        redundancy=choice.mode,
        standbys=option.plan.nodes - grid.size,
        patience_s=job.cluster.patience_s,
        park_s=job.cluster.park_s,
        terms=Terms(boot_s=terms.boot_s),
        pauses=Pauses(),
        prices=_prices(offer, option),
        free_first_hour=job.budget.free_first_hour and line.market != ON_DEMAND,
        on_demand_usd_per_hour=offer.on_demand_usd_per_hour,
        horizon_s=hours * HOUR_S,
        last_step=max(1, round(option.steps * share)),
    )
    market = None if line.market == ON_DEMAND else _market(option, terms)
    return Row(option=option, system=system, asked=asked, market=market, hours=hours, share=share)


def outcomes(
    rows: Sequence[Row], *, seeds: int, processes: int = 0, told: Callable[[int, int], None]
) -> list[Outcome]:
    """The outcome of each row over seeds 0 to `seeds` - 1, on all cores or so many `processes`.
    `told` is called after each run, with the number of finished runs and of all."""
    # Where nothing is taken, every run is the same.
    several = [seeds if row.market is not None else 1 for row in rows]
    runs = [(number, seed) for number, count in enumerate(several) for seed in range(count)]
    workers = max(1, min(processes or cores(), len(runs)))
    found: list[list[Figures]] = [[] for _ in rows]
    told(0, len(runs))
    played = in_order(_Player(rows).play, runs, processes=workers)
    for done, ((number, _), figures) in enumerate(zip(runs, played, strict=True), 1):
        found[number].append(figures)
        told(done, len(runs))
    return [_outcome(row, figures) for row, figures in zip(rows, found, strict=True)]


class _Player:
    """Plays rows in one process, which makes the dry runs of a row once."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._times: dict[int, TimesBook] = {}

    def play(self, run: tuple[int, int]) -> Figures:
        """Play a run, given the number of its row and its seed."""
        number, seed = run
        row = self._rows[number]
        times = self._times.setdefault(number, TimesBook(row.asked.workload))
        trace = _trace(row, seed)
        return simulate(row.asked, trace, times=times, system=row.system, keep_moments=False)


def _trace(row: Row, seed: int) -> Trace:
    option = row.option
    fixed = [f"{ALWAYS} {n}" for n in range(option.anchors)]
    if row.market is None:
        fixed = [f"{ALWAYS} {n}" for n in range(option.plan.nodes)]
    there = tuple(TraceEvent(at_s=0.0, node=n, comes=True, zone=ANCHORS) for n in fixed)
    if row.market is None:
        return Trace(source=ALWAYS, events=there, length_s=row.asked.horizon_s)
    taken = synthesise(row.market, seed=seed, hours=row.hours)
    return replace(taken, events=(*there, *taken.events))


def _market(option: Option, terms: MarketTerms) -> Market:
    zones = [ZoneNodes(name=name, nodes=nodes) for name, nodes in option.zones.items()]
    if option.anchors:  # all other nodes are in one zone
        zones = [replace(zones[0], nodes=zones[0].nodes - option.anchors)]
    return Market(
        zones=tuple(zones),
        preemptions_per_node_hour=option.preemptions_per_node_hour,
        bulk=terms.bulk,
        spans=terms.spans if len(zones) > 1 else 0.0,
        back_s=terms.back_s,
        soonest_back_s=min(60.0, terms.back_s),
    )


def _prices(offer: Offer, option: Option) -> Prices:
    if option.line.market == ON_DEMAND:
        return constant(offer.on_demand_usd_per_hour)
    by_zone = {ZoneId(zone): ((0.0, usd),) for zone, usd in offer.spot_usd_per_hour.items()}
    by_zone[ZoneId(ANCHORS)] = ((0.0, offer.on_demand_usd_per_hour),)
    return Prices(source="the catalogue", by_zone=by_zone)


def _cuts(offer: Offer, option: Option) -> tuple[tuple[int, ...], ...]:
    """The plan's cut, and cuts into fewer stages that fit."""
    choice = option.plan.choice
    room = Room(
        memory_bytes=offer.memory_bytes,
        host_bytes=offer.host_bytes,
        nodes=range(2, choice.grid.size + 1),
        microbatches=(choice.microbatch,),
        savings=(choice.saving,),
    )
    candidates = Candidates(offer.workload, room)
    mode = "off" if choice.mode == "peer" else choice.mode
    fewer = (
        candidates.choice(Grid(pipelines=1, stages=stages), mode, choice.microbatch)
        for stages in range(2, choice.grid.stages)
    )
    return (*(one.cut for one in fewer if one is not None), choice.cut)


def _outcome(row: Row, found: Sequence[Figures]) -> Outcome:
    done = [one.steps >= row.asked.last_step for one in found]
    seconds = [one.seconds for one in found]
    usd = [one.usd - _never_crossed(row, one) for one in found]
    hours_p50, hours_p90 = _whole([time_s / HOUR_S for time_s in seconds], done, row.share)
    usd_p50, usd_p90 = _whole(usd, done, row.share)
    mean = {
        name: sum(getattr(one, name) for one in found) / len(found) / row.share
        for name in ("preemptions", "restores")
    }
    return Outcome(
        option=row.option,
        hours_p50=hours_p50,
        hours_p90=hours_p90,
        usd_p50=usd_p50,
        usd_p90=usd_p90,
        preemptions=mean["preemptions"],
        restores=mean["restores"],
        runs=len(found),
        unfinished=done.count(False),
    )


def _never_crossed(row: Row, figures: Figures) -> float:
    """Dollars that were never spent: an anchor has a zone of its own here, but is in the zone of
    the other nodes."""
    return figures.transfer_usd if row.option.anchors else 0.0


def _whole(figures: Sequence[float], done: Sequence[bool], share: float) -> tuple[float, float]:
    """Median and 90th percentile of whole runs, from runs that were played to this share; inf where
    too many did not finish. The sum of independent parts scatters less than one part does, by the
    root of their number."""
    mean = fmean(figures)
    whole = [
        mean / share + (figure - mean) / math.sqrt(share) if ok else math.inf
        for figure, ok in zip(figures, done, strict=True)
    ]
    return _quantile(whole, 0.5), _quantile(whole, 0.9)


def _quantile(figures: Sequence[float], share: float) -> float:
    """inf where the quantile lies next to a run that did not finish."""
    ordered = sorted(figures)
    if math.isinf(ordered[math.ceil(share * (len(ordered) - 1))]):
        return math.inf
    return quantile(ordered, share)
