"""A made-up market as the command line asks for it: like a trace, by name, or by its hazard.

Rule: exactly one of the three. An option that the chosen one does not take is an error that names
both. What `bamboo.sim` would refuse is refused here, by the option's name.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

from bamboo.errors import InputError
from bamboo.sim.market.presets import PRESETS, preset
from bamboo.sim.market.synth import BACK_S, Market, fit, hazard_market, spread, synthesise
from bamboo.sim.market.trace import LONGEST_S, MOST_EVENTS, MOST_NODES, Trace, read_trace
from bamboo.sim.world import Terms

HOUR_S = 3600.0
NODES = 16
"""Nodes of the market, unless an option says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketOptions:
    """The given options; None: not given."""

    like: Path | None = None
    preset: str | None = None
    hazard: float | None = None
    bulk: float | None = None
    back_s: float | None = None
    nodes: int | None = None
    zones: str | None = None


def market_of(options: MarketOptions, *, named: str = "--preset") -> Market:
    """The market that the options ask for; `named` is the option of a name. Raises InputError."""
    ways = {"--like": options.like, named: options.preset, "--hazard": options.hazard}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) != 1:
        said = " and ".join(given) or "nothing"
        raise InputError(
            f"{said} given: a market is made --like FILE, by {named} {'|'.join(PRESETS)}, or by "
            "--hazard P; give one of them"
        )
    sized = {"--nodes": options.nodes, "--zones": options.zones}
    shaped = {"--bulk": options.bulk, "--back-seconds": options.back_s}
    for name, value in (shaped if options.hazard is None else {}).items():
        if value is not None:
            raise InputError(f"{name} {value:g} belongs to --hazard; {given[0]} has its own")
    if options.like is not None:
        for name, size in sized.items():
            if size is not None:
                raise InputError(f"{name} {size} does not go with --like, which has the trace's")
        return fit(read_trace(options.like))
    nodes, zones = _size(options)
    if options.preset is not None:
        if options.preset not in PRESETS:
            raise InputError(
                f"{named} {options.preset!r} is no market; take one of {', '.join(PRESETS)}"
            )
        return preset(options.preset, nodes=nodes, zones=zones)
    return _by_hazard(options, nodes, zones)


def made(market: Market, *, seed: int, hours: float) -> Trace:
    """One trace of it. Raises InputError for an invalid seed or length, or one that gives too
    much."""
    check_hours(hours)
    check_seed("--seed", seed)
    if 2 * market.preemptions_in(hours) + market.nodes > MOST_EVENTS:
        raise InputError(
            f"--hours {hours:g}: more than {MOST_EVENTS:,} nodes would come and go; give fewer "
            "hours or nodes, or a smaller hazard"
        )
    return synthesise(market, seed=seed, hours=hours)


def check_hours(hours: float) -> None:
    """Raises InputError for an invalid length of a trace."""
    if not 0 < hours <= LONGEST_S / HOUR_S:
        raise InputError(
            f"--hours {hours:g} is no length; give hours above 0, at most {LONGEST_S / HOUR_S:,.0f}"
        )


def check_seed(option: str, seed: int) -> None:
    """Raises InputError for a seed below 0, which would give the same as its positive."""
    if seed < 0:
        raise InputError(f"{option} {seed} is no seed; give 0 or more")


def _size(options: MarketOptions) -> tuple[int, tuple[str, ...]]:
    nodes = NODES if options.nodes is None else options.nodes
    if not 1 <= nodes <= MOST_NODES:
        raise InputError(f"--nodes {nodes} is no market; give 1 to {MOST_NODES:,}")
    if options.zones is None:
        return nodes, ("",)
    zones = tuple(name.strip() for name in options.zones.split(","))
    if "" in zones or len(set(zones)) < len(zones) or len(zones) > nodes:
        raise InputError(
            f"--zones {options.zones!r}: give different names with commas between, such as a,b,c, "
            f"and at most one a node ({nodes})"
        )
    return nodes, zones


def _by_hazard(options: MarketOptions, nodes: int, zones: tuple[str, ...]) -> Market:
    hazard, bulk = options.hazard or 0.0, 1.0 if options.bulk is None else options.bulk
    back_s = BACK_S if options.back_s is None else options.back_s
    if not 0 <= hazard < math.inf:
        raise InputError(f"--hazard {hazard:g} is no rate; give losses per node-hour, such as .1")
    most = spread(nodes, zones)[0].nodes
    if not 1 <= bulk <= most:
        raise InputError(
            f"--bulk {bulk:g}: of a zone of {most} an instant takes 1 to {most} nodes on average; "
            "give that many, or more --nodes"
        )
    if not 0 <= back_s <= LONGEST_S:
        raise InputError(f"--back-seconds {back_s:g} is no time; give seconds, such as 1800")
    return hazard_market(
        nodes=nodes, preemptions_per_node_hour=hazard, bulk=bulk, zones=zones, back_s=back_s
    )


MOST_TIME_SCALE = 1e6


def check_time_scale(time_scale: float) -> None:
    """Raise InputError for a scale that no trace can be played with."""
    if not 1 / MOST_TIME_SCALE <= time_scale <= MOST_TIME_SCALE:
        raise InputError(
            f"--time-scale {time_scale:g} plays nothing; give one from {1 / MOST_TIME_SCALE:g} to "
            f"{MOST_TIME_SCALE:g}, such as 60"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketAsked:
    """The market of a simulation as the command line asks for it."""

    trace: Path | None = None
    options: MarketOptions = field(default_factory=MarketOptions)
    hours: float | None = None
    times: int = 1
    time_scale: float = 1.0
    prices: Path | None = None
    """None: the catalogue's prices in the zones of the plan."""
    terms: Terms = field(default_factory=Terms)
    far_ms: float | None = None
    """Between zones; None: as within one."""
    far_gbps: float | None = None
    far_pairs: tuple[str, ...] = ()
    """Between two zones, each as `A,B=GBPS[,MS]`."""
