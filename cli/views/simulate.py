"""What a simulation found, as text and as one JSON object."""

from collections.abc import Mapping, Sequence
from typing import Any

from bamboo.sim.report import spread
from bamboo.sim.run import Figures
from cli.simulating import HOUR_S, Simulated
from cli.views.quantities import columns, count, rate, usd

FIGURES = (
    "steps",
    "samples_per_s",
    "preemptions",
    "failovers",
    "hand_overs",
    "reconfigurations",
    "restores",
    "lost_steps",
    "mean_nodes",
    "seconds",
    "trained_s",
    "usd",
    "usd_per_hour",
    "samples_per_usd",
)
_LABELS = {
    "samples_per_s": "samples/s",
    "hand_overs": "hand-overs",
    "lost_steps": "steps done again",
    "mean_nodes": "nodes, on average",
    "seconds": "hours",
    "trained_s": "hours in which steps were taken",
    "usd": "dollars",
    "usd_per_hour": "dollars per hour",
    "samples_per_usd": "samples per dollar",
}


def simulation_body(
    simulated: Simulated, found: Sequence[Figures], *, source: str
) -> dict[str, Any]:
    """For `--json`."""
    return {
        "schema_version": 1,
        "simulated": True,
        "job": simulated.job.file,
        "market": source,
        "step_times": simulated.asked.workload.source,
        "usd_per_instance_hour": simulated.asked.usd_per_hour,
        "runs": len(found),
        "figures": {name: _spread(found, name) for name in FIGURES},
        "ended": sorted({one.ended for one in found if one.ended}),
    }


def _spread(found: Sequence[Figures], name: str) -> Mapping[str, float]:
    one = spread([float(getattr(figures, name)) for figures in found])
    return {"mean": one.mean, "p50": one.p50, "p90": one.p90, "confidence": one.confidence}


def simulation_text(simulated: Simulated, found: Sequence[Figures], *, source: str) -> str:
    """A line a figure; over several seeds with their spread."""
    asked = simulated.asked
    lines = [
        f"{simulated.job.file} simulated on {source}: {count(len(found), 'run')}, "
        f"redundancy {asked.redundancy}, up to {asked.policy.pipelines} x {asked.policy.stages} "
        f"nodes and {count(asked.standbys, 'standby')}",
        f"  step times {asked.workload.source}; {usd(asked.usd_per_hour)} per instance and hour, "
        "modelled",
    ]
    several = len(found) > 1
    rows: list[tuple[str, ...]] = []
    if several:
        rows.append(("", "mean", "p50", "p90", "95 % of the mean"))
    for name in FIGURES:
        scale = HOUR_S if name in ("seconds", "trained_s") else 1.0
        one = spread([getattr(figures, name) / scale for figures in found])
        label = _LABELS.get(name, name)
        if several:
            sure = f"± {_figure(one.confidence)}"
            rows.append((label, *(_figure(x) for x in (one.mean, one.p50, one.p90)), sure))
        else:
            rows.append((label, _figure(one.mean)))
    lines += columns(rows, right=frozenset(range(1, len(rows[0]))))
    lines += [f"  ended: {why}" for why in sorted({one.ended for one in found if one.ended})][:3]
    return "\n".join(lines)


def _figure(value: float) -> str:
    return rate(value) if abs(value) >= 10 or value == 0 else f"{value:.3g}"
