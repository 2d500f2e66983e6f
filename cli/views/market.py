"""Traces and made-up markets as text: their figures, and how they were changed."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bamboo.quantities import count, duration
from bamboo.sim.market.synth import Market
from bamboo.sim.market.trace import Trace
from bamboo.sim.market.trace_shape import Tiling
from bamboo.sim.market.trace_stats import HOUR_S, TraceStats
from cli.echo import columns, paragraph


def stats_text(name: str, found: TraceStats) -> str:
    """`bamboo trace stats`."""
    lines = [
        f"{name}: {found.length_s / HOUR_S:.2f} h, {found.mean_nodes:.2f} nodes alive on average, "
        f"{found.peak} at most",
        f"  {count(found.at_begin, 'node')} at the start, {found.joins:,} came later; "
        f"{count(found.preemptions, 'preemption')}, "
        f"{found.preemptions_per_node_hour:.2f} per node-hour",
    ]
    if not found.instants:
        return "\n".join(lines)
    several = sum(times for size, times in found.bulk if size > 1)
    lines.append(
        f"  {count(found.instants, 'preemption instant')}, {several} of them "
        f"({found.bulk_share:.0%}) take 2 nodes or more; {found.bulk_mean:.2f} nodes on average, "
        f"{found.bulk_most} at most"
    )
    sizes = ", ".join(f"{size}: {times}" for size, times in found.bulk)
    lines += paragraph(f"instants by the nodes they took: {sizes}", indent=4)
    lines.append(
        f"  of the nodes alive an instant takes {found.taken_mean:.0%} on average, "
        f"{found.taken_most:.0%} at most; {_times(found.took_all)} all of them"
    )
    if found.instants > 1:
        gaps = found.gaps
        lines.append(
            f"  from one instant to the next: median {duration(gaps.median_s)}, mean "
            f"{duration(gaps.mean_s)}, nine in ten within {duration(gaps.p90_s)}"
        )
    lines.append(_back(found))
    return "\n".join([*lines, *_zones(found)])


def stats_body(name: str, found: TraceStats) -> dict[str, Any]:
    """`bamboo trace stats --json`."""
    figures = asdict(found)
    figures["bulk"] = [{"nodes": size, "instants": times} for size, times in found.bulk]
    return {"schema_version": 1, "trace": name, **figures}


def market_text(market: Market) -> str:
    """A made-up market in a line."""
    zones = f" in {count(len(market.zones), 'zone')}" if len(market.zones) > 1 else ""
    return (
        f"modelled: {count(market.nodes, 'node')} wanted{zones}, "
        f"{market.preemptions_per_node_hour:.4g} preemptions per node-hour, "
        f"{market.bulk_mean:.2f} at an instant, replaced after {duration(market.back_s)} on average"
    )


def written_text(path: object, trace: Trace, found: TraceStats) -> str:
    """What a written file contains."""
    return (
        f"{path}: {trace.length_s / HOUR_S:.2f} h, {found.mean_nodes:.2f} nodes alive on average, "
        f"{found.peak} at most, {count(found.preemptions, 'preemption')}"
    )


def tiling_text(length_s: float, hours: float, tiling: Tiling) -> str:
    """How a trace was made to last so long."""
    if tiling.plays == 1:
        how = "cut" if hours * HOUR_S < length_s else "made to last"
        return f"{how} from {length_s / HOUR_S:.2f} h to {hours:g} h"
    at_seam = [f"{tiling.comes} come"] * (tiling.comes > 0) + [f"{tiling.goes} go"] * (
        tiling.goes > 0
    )
    return (
        f"tiled: {length_s / HOUR_S:.2f} h played {tiling.plays} times to fill {hours:g} h; at "
        f"each seam {' and '.join(at_seam) or 'nobody comes or goes'}"
    )


def counted_text(trace: Trace, counted: Trace) -> str:
    """What is lost where nodes are only counted, or ""."""
    lost = trace.preemptions - counted.preemptions
    if lost <= 0:
        return ""
    return (
        f"{lost} of {count(trace.preemptions, 'preemption')} cannot be seen in counts, because as "
        "many came by the next one; --to events keeps them"
    )


def _back(found: TraceStats) -> str:
    never = f"; after {found.never_back} of {found.instants} never" if found.never_back else ""
    if found.back_s is None:
        return f"  as many nodes as before an instant: in most cases never again{never}"
    return f"  as many nodes as before an instant: after {duration(found.back_s)} (median){never}"


def _zones(found: TraceStats) -> list[str]:
    if found.spans is None:
        return []
    rows = [("zone", "nodes at most", "on average", "preemptions")]
    rows += [
        (zone.zone, f"{zone.peak}", f"{zone.mean_nodes:.2f}", f"{zone.preemptions}")
        for zone in found.zones
    ]
    spanning = round(found.spans * found.instants)
    return [
        f"  {spanning} of {count(found.instants, 'instant')} ({found.spans:.0%}) span zones",
        *columns(rows, indent=4, right=frozenset({1, 2, 3})),
    ]


def _times(number: int) -> str:
    said: Mapping[int, str] = {0: "none takes", 1: "one takes"}
    return said.get(number, f"{number} take")
