"""From a job and a market to a simulation.

Rule: plan, policy, grids and cuts are those of a launch of the job. Whatever only the simulator
needs has options of its own.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bamboo.config.load import load_job
from bamboo.config.policy import policy_of
from bamboo.config.resolve import nodes_of
from bamboo.config.tree import JobConfig
from bamboo.core.state import Policy
from bamboo.errors import InputError
from bamboo.ids import RunId, ZoneId
from bamboo.quantities import count
from bamboo.runs.initial import begin_with
from bamboo.sim.asked import Asked
from bamboo.sim.market.prices import Prices, constant, read_prices
from bamboo.sim.market.synth import Market
from bamboo.sim.market.trace import LONGEST_S, Trace, read_trace
from bamboo.sim.market.trace_shape import multiplied, scaled, tiled, tiling
from bamboo.sim.members import Pauses
from bamboo.sim.run import Figures, simulate, simulate_seeds
from bamboo.sim.sizing import Sizes
from bamboo.sim.ways import OURS, SHORT, SYSTEMS
from bamboo.study.intervals import given_every
from bamboo.study.markets import (
    MarketAsked,
    check_hours,
    check_seed,
    check_time_scale,
    made,
    market_of,
)
from bamboo.study.modelled import look_at
from bamboo.study.planning import Planned, plan_job
from bamboo.study.scaler_terms import terms_of
from bamboo.study.settling import grid_of
from bamboo.study.strategies import placed, strategy_for
from bamboo.study.zone_links import linked
from cloud.provider import Market as SpotOrNot

HOUR_S = 3600.0
DEFAULT_HOURS = 24.0
"""Length of a made-up market."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A job that is ready to be simulated, and what its figures are made from."""

    asked: Asked
    planned: Planned
    job: JobConfig
    market: Callable[[int], Trace]
    """Given a seed; picklable."""
    random: bool
    """Whether the seed matters."""
    source: str
    """The market in words."""

    @property
    def on_demand(self) -> bool:
        """Whether none of its instances is on spot."""
        return on_demand(self.job)


def prepare(
    path: Path,
    *,
    overrides: Sequence[str],
    market: MarketAsked,
    endless: bool,
    strategy: Path | None = None,
    gpu: str | None = None,
    restart_s: Mapping[str, float] | None = None,
) -> Simulated:
    """Plan the job as a launch would, placed by the file `strategy` if it is given. `gpu` is the
    GPU to model, see `look_at`; `restart_s` gives the restart times of rival ways, by name. Raises
    InputError."""
    check_time_scale(market.time_scale)
    terms = market.terms
    for name, seconds in (("boot", terms.boot_s), ("notice", terms.notice_s)):
        if not 0 <= seconds <= LONGEST_S:
            raise InputError(f"--{name}-seconds {seconds:g} is no time; give seconds, at least 0")
    for way, seconds in (restart_s or {}).items():
        if way not in SHORT.values() or not 0 <= seconds < math.inf:
            raise InputError(
                f"restart_s of {way!r} = {seconds}: is no restart; give seconds, at least 0, for "
                f"one of {', '.join(SHORT.values())}"
            )
    job, _ = begin_with(load_job(path, overrides))
    given = None if strategy is None else strategy_for(job, strategy, overrides)
    there = job if given is None else placed(job, given.placement)
    makes, hours, source = _market(market, nodes=nodes_of(there))
    planned = plan_job(job, look_at(job, gpu=gpu), run=RunId("simulated"), now_s=0.0, given=given)
    job = planned.job
    scale = market.time_scale
    policy = policy_of(job, planned.cuts, grids=planned.grids, spread=planned.plan.spread)
    asked = Asked(
        workload=linked(planned.workload, market),
        policy=policy,
        grid=grid_of(job),
        redundancy=job.cluster.redundancy,
        standbys=job.cluster.standbys,
        patience_s=job.cluster.patience_s,
        park_s=job.cluster.park_s,
        sizes=_sizes(job, policy, endless=endless),
        terms=replace(terms, boot_s=terms.boot_s / scale, notice_s=terms.notice_s / scale),
        pauses=Pauses(),
        prices=_prices(market, planned, job),
        # On demand every second is billed, however the instance ends.
        free_first_hour=job.budget.free_first_hour and not on_demand(job),
        on_demand_usd_per_hour=planned.plan.instance_type.on_demand_usd_per_hour,
        horizon_s=hours * HOUR_S / scale,
        last_step=math.inf if endless else job.train.steps,
        restart_s=restart_s or {},
        store=planned.catalogue.auxiliary,
        interval_is_open=given_every(there) is None,
        keep=job.checkpoint.keep,
    )
    return Simulated(
        asked=asked,
        planned=planned,
        job=job,
        market=makes,
        random=market.trace is None,
        source=source,
    )


def _sizes(job: JobConfig, policy: Policy, *, endless: bool) -> Sizes | None:
    """What the size is chosen by, where the job leaves it open. A run without an end has no bill
    that could be compared with a limit."""
    if not job.autoscale.enabled:
        return None
    terms = terms_of(job, policy)
    return Sizes(
        terms=replace(terms, max_usd=0.0) if endless else terms,
        steps=job.train.steps,
        endless=endless,
    )


def on_demand(job: JobConfig) -> bool:
    """Whether none of its instances is on spot."""
    return job.cloud.market == SpotOrNot.ON_DEMAND


def _prices(asked: MarketAsked, planned: Planned, job: JobConfig) -> Prices:
    """The prices of an instance by zone; other zones have the mean of the plan's zones."""
    if on_demand(job):
        if asked.prices is not None:
            raise InputError(
                f'--prices {asked.prices} are of the spot market, and cloud.market = "on-demand"; '
                "leave one of them out"
            )
        price = planned.plan.instance_type.on_demand_usd_per_hour
        return constant(price, source=f"the catalogue of {planned.catalogue.on_demand_seen}")
    if asked.prices is not None:
        kind = planned.plan.instance_type.name
        most = planned.catalogue.ceilings().get(kind)
        return read_prices(asked.prices, on_demand_usd=most).scaled(1 / asked.time_scale)
    mean = planned.usd_per_hour / planned.plan.instances
    count = planned.plan.instances
    zones = {z: usd / count for z, usd in planned.plan.spot_usd_per_hour.items()}
    by_zone = {ZoneId(z): ((0.0, usd),) for z, usd in {**zones, "": mean}.items()}
    seen = planned.catalogue.spot_seen_of(planned.plan.instance_type)
    return Prices(source=f"the catalogue of {seen}", by_zone=by_zone)


def _market(asked: MarketAsked, *, nodes: int) -> tuple[Callable[[int], Trace], float, str]:
    """What makes the trace of a seed, its length in hours, and both in words."""
    options = asked.options
    if asked.trace is None:
        hours = DEFAULT_HOURS if asked.hours is None else asked.hours
        check_hours(hours)
        if asked.times != 1:
            raise InputError(f"--times {asked.times} belongs to --trace; give --nodes instead")
        if options.preset is None and options.hazard is None:
            raise InputError("no market is named: give --trace FILE, --hazard P or --market NAME")
        if options.preset is not None and options.hazard is not None:
            raise InputError(
                f"--market {options.preset} and --hazard {options.hazard:g} are two markets; give "
                "one of them"
            )
        wanted = nodes if options.nodes is None else options.nodes
        market = market_of(replace(options, nodes=wanted), named="--market")
        kind = options.preset or f"hazard {options.hazard:g}"
        words = f"a made-up market ({kind}) of {count(market.nodes, 'node')}, {hours:g} h"
        return partial(_made, market, hours, asked.time_scale), hours, words
    given = {"--hazard": options.hazard, "--market": options.preset, "--bulk": options.bulk}
    given |= {"--back-seconds": options.back_s, "--nodes": options.nodes}
    given |= {"--zones": options.zones}
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} {value} does not go with --trace, which is a market already")
    trace = read_trace(asked.trace)
    if asked.hours is None and not trace.length_s:
        raise InputError(f"{asked.trace}: it ends where it begins; say with --hours how long")
    hours = trace.length_s / HOUR_S if asked.hours is None else asked.hours
    check_hours(hours)
    words = f"{asked.trace.name}, {hours:.4g} h"
    plays = tiling(trace, hours=hours).plays
    if plays > 1:
        words += f" (played {plays} times over: it has {trace.length_s / HOUR_S:.4g} h)"
    if asked.times > 1:
        words += f", {asked.times} copies side by side"
    whole = scaled(
        multiplied(tiled(trace, hours=hours), times=asked.times), factor=1 / asked.time_scale
    )
    return partial(_same, whole), hours, words


def _made(market: Market, hours: float, time_scale: float, seed: int) -> Trace:
    return scaled(made(market, seed=seed, hours=hours), factor=1 / time_scale)


def _same(trace: Trace, seed: int) -> Trace:
    del seed
    return trace


def play(
    simulated: Simulated, *, seeds: int, first_seed: int, rivals: bool
) -> Iterator[Mapping[str, Figures]]:
    """One run of every system for each seed. Raises InputError."""
    check_seed("--first-seed", first_seed)
    if not 1 <= seeds <= 1_000_000:
        raise InputError(f"--seeds {seeds} is no number of runs; give 1 to 1,000,000")
    if seeds > 1 and not simulated.random:
        raise InputError(
            f"--seeds {seeds}: a trace has no chance in it and every run would be the same; leave "
            "it out, or make a market up --hazard P"
        )
    return simulate_seeds(
        simulated.asked,
        simulated.market,
        range(first_seed, first_seed + seeds),
        systems=SYSTEMS if rivals else (OURS,),
    )


def one_run(simulated: Simulated, *, seed: int) -> tuple[Trace, Figures]:
    """One run of Bamboo with all its moments, and its market."""
    trace = simulated.market(seed)
    return trace, simulate(simulated.asked, trace)
