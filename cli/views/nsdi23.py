"""The preset `nsdi23` as text."""

from collections.abc import Mapping
from typing import Any

from bamboo.quantities import count, rate
from cli.views.columns import columns

LABELS = {
    "fatal": "fatal losses",
    "mean_nodes": "nodes, on average",
    "samples_per_s": "samples/s",
    "usd_per_hour": "dollars per hour",
    "usd": "dollars",
    "value": "samples/s per dollar/h",
}


def nsdi23_text(body: Mapping[str, Any]) -> str:
    """A line for each figure; over several seeds with their spread."""
    several = body["runs"] > 1
    lines = [
        f"{body['model']} by the paper's published rules and constants on {body['market']}: "
        f"{count(body['runs'], 'run')}, simulated",
    ]
    if "trace_hours" in body:
        lines += _length(body["played_hours"], body["trace_hours"])
    rows: list[tuple[str, ...]] = []
    if several:
        rows.append(("", "mean", "p50", "p90", "95 % of the mean"))
    for name, one in body["figures"].items():
        label = LABELS.get(name, name)
        if several:
            cells = [_figure(one[key]) for key in ("mean", "p50", "p90")]
            rows.append((label, *cells, f"± {_figure(one['confidence'])}"))
        else:
            rows.append((label, _figure(one["mean"])))
    return "\n".join([*lines, *columns(rows, right=frozenset(range(1, len(rows[0]))))])


def _length(played: float, trace: float) -> list[str]:
    """Where the two differ: the published simulator uses one length for all traces."""
    if trace < played:
        then = "its nodes stay from then on"
        return [f"  {played:g} h are played: the trace ends after {trace:.4g} h, and {then}"]
    if trace > played:
        return [f"  {played:g} h are played: of the trace's {trace:.4g} h the first ones"]
    return []


def _figure(value: float) -> str:
    return rate(value) if abs(value) >= 100 else f"{value:.4g}"
