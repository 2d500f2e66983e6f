"""The preset `nsdi23`: the simulator that was published with the paper, on a trace or at random.

Rule: it has its own constants, rules and averages (`bamboo.sim.other_ways.nsdi23`) and takes no
job, so that its figures can be compared with the published ones.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from bamboo.errors import InputError
from bamboo.sim.market.trace import read_trace
from bamboo.sim.other_ways.nsdi23 import (
    HOUR_S,
    MODELS,
    TRACE_HOURS,
    PublishedRun,
    play,
    play_random,
)
from bamboo.sim.report import spread
from bamboo.study.markets import MarketAsked, check_seed
from cli.echo import progress_is_hidden

FIGURES = (
    "preemptions",
    "fatal",
    "failovers",
    "reconfigurations",
    "steps",
    "hours",
    "mean_nodes",
    "samples_per_s",
    "usd_per_hour",
    "usd",
    "value",
)
MOST_SEEDS = 100_000


def run(
    model: str,
    *,
    job: Path | None,
    market: MarketAsked,
    seeds: int,
    first_seed: int,
) -> dict[str, Any]:
    """Figures of one model, with their spread over seeds. Raises InputError, also for a job."""
    if job is not None:
        raise InputError(f"--preset nsdi23 has models of its own; leave {job} out")
    trace, hazard = market.trace, market.options.hazard
    if model not in MODELS:
        raise InputError(f"--model {model!r} is none of the paper's; take one of {_named(MODELS)}")
    if (trace is None) == (hazard is None):
        raise InputError("--preset nsdi23 plays --trace FILE, or --hazard P; give one of them")
    if not 1 <= seeds <= MOST_SEEDS:
        raise InputError(f"--seeds {seeds} is no number of runs; give 1 to {MOST_SEEDS:,}")
    check_seed("--first-seed", first_seed)
    if trace is not None:
        if seeds != 1:
            raise InputError(f"--seeds {seeds}: a trace has no chance in it; leave it out")
        read = read_trace(trace)
        found = [play(MODELS[model], read)]
        source = trace.name
        lengths = {"played_hours": TRACE_HOURS, "trace_hours": read.length_s / HOUR_S}
    else:
        assert hazard is not None, "one of both is given"
        if not 0 <= hazard <= 1:
            raise InputError(
                f"--hazard {hazard:g} is no chance of a node's loss in an hour; give 0 to 1"
            )
        chosen = range(first_seed, first_seed + seeds)
        seen = track(
            chosen,
            description="simulating",
            console=Console(stderr=True),
            transient=True,
            disable=progress_is_hidden(),
        )
        found = [play_random(hazard, seed, model=MODELS[model]) for seed in seen]
        source = f"random markets, hazard {hazard:g}"
        lengths = {}
    return {
        "schema_version": 1,
        "simulated": True,
        "preset": "nsdi23",
        "model": model,
        "market": source,
        **lengths,
        "runs": len(found),
        "figures": {name: asdict(spread(_column(found, name))) for name in FIGURES},
    }


def _column(found: Sequence[PublishedRun], name: str) -> list[float]:
    return [float(getattr(one, name)) for one in found]


def _named(models: Any) -> str:
    return ", ".join(models)
