"""The links between zones of a simulated market, as the command line asks for them.

    --far-gbps 2.5 --far-ms 0.8         between any two zones
    --far us-east-1a,us-east-1b=1,2     between these two: 1 Gbit/s and 2 ms

Rule: a figure that is not given for a pair is that of any two zones, and one that is not given for
those is that within one zone.
"""

import math
from dataclasses import replace

from bamboo.errors import InputError
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.links import Link, ZoneLinks
from bamboo.study.markets import MarketAsked

MOST_LATENCY_MS = 3_600_000.0


def linked(workload: WorkloadFigures, asked: MarketAsked) -> WorkloadFigures:
    """The workload with the requested links between zones. Raises InputError for a wrong one."""
    near = Link(latency_s=workload.latency_s, bytes_per_s=workload.bytes_per_s)
    rate, latency = ("--far-gbps", asked.far_gbps), ("--far-ms", asked.far_ms)
    others = _link(rate, latency, otherwise=near)
    pairs: dict[frozenset[str], Link] = {}
    for given in asked.far_pairs:
        zones, link = _pair(given, otherwise=others)
        if zones in pairs:
            raise InputError(f"--far {given}: the link of these two is given twice; give it once")
        pairs[zones] = link
    if others == near and not pairs:
        return workload
    return replace(workload, far=ZoneLinks(others=others, pairs=pairs))


def _pair(given: str, *, otherwise: Link) -> tuple[frozenset[str], Link]:
    zones, _, figures = given.partition("=")
    names = frozenset(zone.strip() for zone in zones.split(","))
    try:
        numbers = [float(figure) for figure in figures.split(",")]
    except ValueError:
        numbers = []
    if len(names) != 2 or "" in names or len(numbers) not in (1, 2):
        raise InputError(
            f"--far {given} is no link; give two zones and Gbit/s, and milliseconds if they are "
            "others, such as a,b=2.5 or a,b=2.5,0.8"
        )
    name = f"--far {given}:"
    latency_ms = numbers[1] if len(numbers) == 2 else None
    return names, _link((name, numbers[0]), (name, latency_ms), otherwise=otherwise)


def _link(gbps: tuple[str, float | None], ms: tuple[str, float | None], *, otherwise: Link) -> Link:
    """A link of these figures, each with the name of its option."""
    (rate_name, rate), (latency_name, latency_ms) = gbps, ms
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"{rate_name} {rate:g} is no link; give Gbit/s above 0")
    if latency_ms is not None and not 0 <= latency_ms <= MOST_LATENCY_MS:
        raise InputError(
            f"{latency_name} {latency_ms:g} is no link; give milliseconds from 0 to "
            f"{MOST_LATENCY_MS:g}"
        )
    return Link(
        latency_s=otherwise.latency_s if latency_ms is None else latency_ms / 1e3,
        bytes_per_s=otherwise.bytes_per_s if rate is None else rate * 1e9 / 8,
    )
