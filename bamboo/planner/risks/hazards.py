"""How often nodes of an instance type are lost, by the best available source, which is named.

The first source that exists counts, in this order: what the command line says (`--hazard`,
`--trace`), the user's own runs, the published band of interruptions, the p3 trace.

How a band is used. AWS publishes for each type which share of its spot instances was interrupted
within a month, over all instances of a region. The middle of a closed band, read as a rate, is
0.00003 to 0.00026 losses an hour. The trace (Thorpe et al., NSDI 2023) lost 0.611 per node-hour,
more than 2,000 times as many: its fleet of up to 48 nodes asked for all the capacity there was, of
a type whose own band is the open one. Therefore no fleet may plan with the level of a band; only
the *ratio* of two bands is used:

    rate = 0.611 x ln(1 - middle of the type's band) / ln(1 - middle of the trace's type's band)

The middle of the open band, 22.5 %, is assumed; the factors are 0.10, 0.31, 0.52, 0.75 and 1. Such
a rate is modelled, and is labelled so.

How own runs are used. Losses of a type are counted as those of a Poisson process whose rate has a
Gamma prior: rate = (a + losses) / (b + instance-hours), b = PRIOR_H and a = b x the rate that holds
without own runs. The prior of a zone is the rate of the type over all zones together.

Rule: pure; the caller reads the files.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, log
from typing import Any

LOSSES_PER_NODE_HOUR = 167 / 273.117
"""Losses in the p3 trace published with Bamboo: 167 in 273.117 node-hours."""
TRACE_TYPE = "p3.2xlarge"
SCHEMA_VERSION = 1
MIDDLES = {"< 5 %": 0.025, "5-10 %": 0.075, "10-15 %": 0.125, "15-20 %": 0.175, "> 20 %": 0.225}
"""The middle of each band of a month's interruptions; that of the open band is assumed."""
REGION = "us-east-1"
"""The region whose bands are used for a region or a type that has none."""
BY_BAND = "modelled by its band"
PRIOR_H = 10.0
"""Instance-hours that the rate without own runs counts as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRate:
    """Losses per hour of a node of one type, and their source."""

    per_node_hour: float
    word: str = "modelled"
    """The kind of figure, in a few words."""
    source: str = "as in Bamboo's p3 trace"
    """The source, as text that follows the figure."""
    by_zone: Mapping[str, float] = field(default_factory=dict)
    """Rates of zones that differ; all other zones have the rate of the type."""
    against: str = ""
    """What a rate from a band is computed from, whatever the type."""

    def of(self, zone: str) -> float:
        """The rate in one zone."""
        return self.by_zone.get(zone, self.per_node_hour)

    def mean(self, zones: Mapping[str, int]) -> float:
        """The mean rate of nodes, given the number of nodes in each zone."""
        if not self.by_zone or not any(zones.values()):
            return self.per_node_hour
        return sum(n * self.of(zone) for zone, n in zones.items()) / sum(zones.values())

    def at_trace(self) -> "LossRate":
        """The rate with the same ratios between zones, but the type's rate set to the trace's."""
        if not self.by_zone:
            return PUBLISHED
        factor = LOSSES_PER_NODE_HOUR / self.per_node_hour
        by_zone = {zone: rate * factor for zone, rate in self.by_zone.items()}
        return LossRate(per_node_hour=LOSSES_PER_NODE_HOUR, by_zone=by_zone)

    @property
    def words(self) -> str:
        """Text such as `0.461 per node-hour, ...`."""
        return f"{self.per_node_hour:.3g} per node-hour, {self.source}"

    def body(self) -> dict[str, Any]:
        """The value for JSON."""
        return {
            "per_node_hour": self.per_node_hour,
            "by_zone": dict(self.by_zone),
            "source": self.source,
        }


PUBLISHED = LossRate(per_node_hour=LOSSES_PER_NODE_HOUR)


def said(per_node_hour: float, by: str = "--hazard") -> LossRate:
    """The rate that an option of the command line gives."""
    return LossRate(per_node_hour=per_node_hour, word=f"by {by}", source=f"as {by} says")


# ---------------------------------------------------------------- published bands


@dataclass(frozen=True, slots=True, kw_only=True)
class Bands:
    """Interruptions within a month, as published by AWS."""

    seen: str
    source: str
    by_region: Mapping[str, Mapping[str, str]]
    """Region -> instance type -> one of MIDDLES."""

    def of(self, kind: str, region: str) -> tuple[str, str]:
        """The band of a type and the region of that band, which is REGION if this one has none;
        both are empty if no region has one."""
        for where in (region, REGION):
            band = self.by_region.get(where, {}).get(kind)
            if band is not None:
                return band, where
        return "", ""

    def rate(self, kind: str, region: str) -> LossRate:
        """A modelled rate; that of the trace if the type has no band."""
        band, where = self.of(kind, region)
        if not band:
            source = f"modelled: {PUBLISHED.source}, as no band of {kind} is published"
            return replace(PUBLISHED, source=source)
        own, _ = self.of(TRACE_TYPE, REGION)
        lost = f"which lost {LOSSES_PER_NODE_HOUR:.3g} in Bamboo's trace"
        seen = f"({self.source}, {self.seen})"
        none_here = "" if where == region else f", as {region} has none,"
        return LossRate(
            per_node_hour=LOSSES_PER_NODE_HOUR * (_rate(band) / _rate(own)),
            word=BY_BAND,
            source=f"modelled by what is interrupted within a month: {band} of {kind} in {where}"
            f"{none_here} and {own} of {TRACE_TYPE}, {lost} {seen}",
            against="each by the ratio of the type's band of interruptions a month "
            f"{f'in {where}{none_here} ' if none_here else ''}to the {own} of {TRACE_TYPE}, {lost} "
            f"{seen}",
        )


def _rate(band: str) -> float:
    return -log(1 - MIDDLES[band])


def parse_bands(text: str) -> Bands:
    """The table from the text of the installed file. Raises ValueError when it is damaged."""
    raw = tomllib.loads(text)
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"bands of interruptions have schema_version {SCHEMA_VERSION}")
    by_region: dict[str, dict[str, str]] = {}
    for region, bands in raw["regions"].items():
        kinds = by_region.setdefault(region, {})
        for band, names in bands.items():
            if band not in MIDDLES:
                raise ValueError(f"{region}: {band!r} is none of {', '.join(MIDDLES)}")
            for name in names:
                if kinds.setdefault(name, band) != band:
                    raise ValueError(f"{region}: {name} is in two bands")
    if TRACE_TYPE not in by_region.get(REGION, {}):
        raise ValueError(f"{TRACE_TYPE} of {REGION} is what all others are held against")
    return Bands(seen=str(raw["seen"]), source=str(raw["source"]), by_region=by_region)


# ---------------------------------------------------------------- the user's own runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """The hours and losses of spot instances of one type and zone."""

    hours: float
    """The sum over all of these instances."""
    losses: int
    """Instances that the cloud took."""

    def __add__(self, other: "Lived") -> "Lived":
        return Lived(hours=self.hours + other.hours, losses=self.losses + other.losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRuns:
    """What the user's runs have measured for one type."""

    runs: int
    by_zone: Mapping[str, Lived]

    @property
    def lived(self) -> Lived:
        """The sum over all zones."""
        return sum(self.by_zone.values(), Lived(hours=0.0, losses=0))

    def __add__(self, other: "OwnRuns") -> "OwnRuns":
        zones = {**self.by_zone}
        for zone, lived in other.by_zone.items():
            zones[zone] = zones[zone] + lived if zone in zones else lived
        return OwnRuns(runs=self.runs + other.runs, by_zone=zones)


def learned(prior: LossRate, own: OwnRuns, *, kind: str) -> LossRate:
    """The rate of a type, updated by own runs; `prior` if they have no hours of it."""
    lived = own.lived
    if not lived.hours > 0 or not isfinite(lived.hours):
        return prior
    rate = _posterior(prior.per_node_hour, lived)
    by_zone = {zone: _posterior(rate, one) for zone, one in sorted(own.by_zone.items())}
    return LossRate(
        per_node_hour=rate,
        word="by your own runs",
        source=f"by your own runs: {_many(lived.losses, 'loss', 'losses')} in {lived.hours:,.3g} "
        f"instance-hours of {kind} in {_many(own.runs, 'run', 'runs')}{_zones_words(by_zone)}, "
        f"after {PRIOR_H:g} h at {prior.per_node_hour:.3g}, {prior.source}",
        by_zone=by_zone,
    )


def _zones_words(by_zone: Mapping[str, float]) -> str:
    if len(by_zone) < 2:
        return ""
    return f" ({', '.join(f'{rate:.3g} in {zone}' for zone, rate in by_zone.items())})"


def _posterior(prior: float, lived: Lived) -> float:
    """The mean of the posterior Gamma distribution."""
    return (prior * PRIOR_H + lived.losses) / (PRIOR_H + lived.hours)


def _many(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


# ---------------------------------------------------------------- which of them


def loss_rate(
    kind: str,
    region: str,
    *,
    bands: Bands,
    own: OwnRuns | None = None,
    asked: LossRate | None = None,
) -> LossRate:
    """The rate of an instance type in a region; `asked` is the rate from the command line."""
    if asked is not None:
        return asked
    prior = bands.rate(kind, region)
    return prior if own is None else learned(prior, own, kind=kind)
