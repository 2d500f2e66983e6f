"""The result of a swarm of seeds, as text and as one JSON object."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo.sim.swarm.many import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmResult:
    """Seeds from `first` on, in `took_s`; `scenario` is the file of the first red one, None where
    none was written."""

    tally: Tally
    first: int
    took_s: float
    scenario: Path | None


def swarm_text(result: SwarmResult) -> str:
    """One line where all is green; otherwise also what was found, and where it is."""
    tally = result.tally
    rate = tally.events / max(result.took_s, 1e-9)
    figures = f"{tally.events:,} events, {rate:,.0f} events/s"
    if tally.red is None:
        ends = ", ".join(f"{count:,} {name}" for name, count in sorted(tally.outcomes.items()))
        return f"{tally.seeds:,} seeds green, {figures}; the runs ended {ends}"
    red = tally.red
    where = f" ({red.where})" if red.where else ""
    return "\n".join(
        [
            f"seed {red.seed} is red after {tally.seeds - 1:,} green ones, {figures}",
            f"  {red.checker}{where}, {red.at_s:g} s: {red.sentence}",
            f"  shrunk to {result.scenario or 'what standard error says: no file would take it'}",
        ]
    )


def swarm_body(result: SwarmResult) -> dict[str, Any]:
    """For `--json`."""
    tally, red = result.tally, result.tally.red
    return {
        "schema_version": 1,
        "first_seed": result.first,
        "seeds": tally.seeds,
        "events": tally.events,
        "seconds": round(result.took_s, 3),
        "events_per_s": round(tally.events / max(result.took_s, 1e-9), 1),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "red": None
        if red is None
        else {
            "seed": red.seed,
            "checker": red.checker,
            "at_s": red.at_s,
            "sentence": red.sentence,
            "scenario": None if result.scenario is None else str(result.scenario),
        },
    }
