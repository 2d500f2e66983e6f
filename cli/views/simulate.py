"""The result of a simulation, as text and as one JSON object.

Rule: every figure is simulated and every dollar modelled, and both forms say so.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bamboo.quantities import count, duration, number, rate, usd
from bamboo.sim.compared import no_ratio
from bamboo.sim.report import spread
from bamboo.sim.run import Figures
from bamboo.sim.ways import OURS, terms_of_rivals
from bamboo.study.planning import Planned
from bamboo.study.simulating import HOUR_S, Simulated
from bamboo.value import MINIMUM_BILLED_S
from cli.echo import columns, paragraph
from cli.views.plan import on_spot

FIGURES = {
    "steps": "steps",
    "samples_per_s": "samples/s",
    "preemptions": "preemptions",
    "failovers": "failovers",
    "hand_overs": "hand-overs",
    "reconfigurations": "reconfigurations",
    "restores": "fatal losses, restored from a checkpoint",
    "lost_steps": "steps done again",
    "resizes": "resizes",
    "mean_nodes": "nodes, on average",
    "seconds": "hours",
    "trained_s": "hours of training",
    "usd": "dollars, modelled",
    "transfer_usd": "of these, bytes between zones",
    "usd_per_hour": "dollars per hour",
    "samples_per_usd": "samples per dollar",
}
"""Field -> its label for people."""
BODY_ALONE = ("store_usd", "minimum_usd", "instance_usd_per_hour")
"""Fields that the text has only in words, if at all."""
LEAST_SAID = 0.05
"""Share of the dollars from which the effect of the billed minimum is mentioned."""
_HOURS = ("seconds", "trained_s")
_SAID = 12
"""How many resizes of a run are listed; the rest is counted."""
Found = Sequence[Mapping[str, Figures]]
"""For each seed, the figures of each system."""


def picture_title(simulated: Simulated, *, seed: int) -> str:
    drawn = f", seed {seed}" if simulated.random else ""
    return f"{simulated.asked.workload.name} on {simulated.source}{drawn} (simulated)"


def simulation_body(simulated: Simulated, found: Found, *, first_seed: int) -> dict[str, Any]:
    """For `--json`."""
    asked, planned = simulated.asked, simulated.planned
    terms = terms_of_rivals(asked.restart_s, every=asked.given_every)
    return {
        "schema_version": 1,
        "simulated": True,
        "job": simulated.job.file,
        "market": simulated.source,
        "step_times": asked.workload.source,
        "dollars": "modelled",
        "instance_type": simulated.planned.plan.instance_type.name,
        "cloud_market": simulated.job.cloud.market,
        "spot_prices": None if simulated.on_demand else asked.prices.source,
        "on_demand_usd_per_instance_hour": asked.on_demand_usd_per_hour,
        "price_warnings": list(simulated.planned.price_warnings()),
        "planned_for": planned.plan.rate.body() if on_spot(planned) else None,
        "autoscale": _sizes_body(simulated, found),
        "runs": len(found),
        "first_seed": first_seed if simulated.random else None,
        "systems": {
            name: {
                "figures": {
                    field: asdict(spread([float(getattr(one[name], field)) for one in found]))
                    for field in (*FIGURES, *BODY_ALONE)
                },
                "ended": sorted({one[name].ended for one in found if one[name].ended}),
                "terms": terms.get(name, ""),
                "no_ratio": no_ratio(found, name, ours=OURS, last_step=asked.last_step),
            }
            for name in found[0]
        },
    }


def simulation_text(simulated: Simulated, found: Found, *, first_seed: int) -> str:
    """A line for each figure; over several seeds with their spread; then a line for each rival."""
    asked = simulated.asked
    lines = [
        f"{asked.workload.name} on {simulated.source}: {count(len(found), 'run')}"
        f"{_seeds(simulated, first_seed, len(found))}, simulated",
        f"  up to {asked.policy.pipelines} x {asked.policy.stages} nodes and "
        f"{count(asked.standbys, 'standby')}, redundancy {asked.redundancy}",
        f"  step times {asked.workload.source}",
        *planned_for(simulated.planned, interval_is_open=asked.interval_is_open),
        *_terms(simulated, _mean(found, OURS, "instance_usd_per_hour")),
        *_figures([one[OURS] for one in found], resized=asked.sizes is not None),
        *_least_bill(found),
        *_resizes(simulated, found),
    ]
    if len(found[0]) > 1:
        lines += ["  the same market, used in other ways (models, on the same step times):"]
        lines += _rivals(found, last_step=asked.last_step)
        if any(one[name].store_usd for one in found for name in one):
            lines.append("    here samples per $ count the object store of checkpoints, too")
        terms = terms_of_rivals(asked.restart_s, every=asked.given_every)
        lines += [f"    {name}: {terms[name]}" for name in found[0] if name in terms]
    ended = [one[OURS].ended for one in found if one[OURS].ended]
    for why in sorted(set(ended)):
        some = f"{ended.count(why)} of {len(found)} ended" if len(found) > 1 else "ended"
        lines.append(f"  {some}: {why}")
    if not any(one[OURS].trained_s for one in found):
        least = asked.grid.size
        lines.append(f"  it never began: {count(least, 'node')} were never there at one time")
    return "\n".join(lines)


def _seeds(simulated: Simulated, first: int, runs: int) -> str:
    if not simulated.random:
        return ""
    return f" (seed {first})" if runs == 1 else f" (seeds {first} to {first + runs - 1})"


def planned_for(planned: Planned, *, interval_is_open: bool) -> list[str]:
    """The rate of losses that the planner's choices assume, which may differ from the market's."""
    if not on_spot(planned) or not (planned.redundancy_why or interval_is_open):
        return []
    return paragraph(f"what the job leaves to its plan is for losses of {planned.plan.rate.words}")


def _terms(simulated: Simulated, price: float) -> list[str]:
    """What an instance costs, modelled. `price` is the mean over all that ran."""
    asked, kind = simulated.asked, simulated.planned.plan.instance_type.name
    full = usd(asked.on_demand_usd_per_hour)
    catalogue = simulated.planned.catalogue
    bought = simulated.on_demand
    dated = paragraph(f"catalogue: {catalogue.sources([kind], spot=not bought)}")
    for said in simulated.planned.price_warnings():
        dated += paragraph(said)
    if bought:
        return [
            f"  a {kind} is {full} an hour on demand by {asked.prices.source}, modelled",
            *dated,
            "  the market is what takes nodes; each is paid for every second that it ran",
        ]
    spot = f"{usd(price)} an hour on average on the spot market" if price else "on the spot market"
    return [
        f"  a {kind} is {spot}, {full} on demand, modelled",
        f"  (spot by {asked.prices.source}, on demand by the catalogue of "
        f"{catalogue.on_demand_seen})",
        *dated,
        "  a spot instance that is taken back within its first hour is not paid"
        if asked.free_first_hour
        else "  each is paid for every second that it ran",
    ]


def _least_bill(found: Found) -> list[str]:
    """Why a very short run costs far more an hour than its instances."""
    paid, beyond = _mean(found, OURS, "usd"), _mean(found, OURS, "minimum_usd")
    if not paid or beyond <= LEAST_SAID * paid:
        return []
    least = f"an instance is paid for {MINIMUM_BILLED_S} s at least"
    return [f"  {beyond / paid:.0%} of the dollars are for time that was not used, as {least}"]


def _size_at_end(simulated: Simulated, figures: Figures) -> int:
    """How many nodes a run wanted at its end, standbys included."""
    assert simulated.asked.sizes is not None, "asked only of a run that chooses its size"
    return figures.resized[-1].nodes if figures.resized else simulated.asked.sizes.terms.begin


def _sizes_body(simulated: Simulated, found: Found) -> dict[str, Any] | None:
    """How each run chose its size, in the form of `bamboo cost RUN --json`."""
    sizes = simulated.asked.sizes
    if sizes is None:
        return None
    return {
        "sizes": list(sizes.terms.rule.sizes),
        "begin": sizes.terms.begin,
        "runs": [
            {
                "nodes_at_end": _size_at_end(simulated, one[OURS]),
                "resizes": [asdict(resize) for resize in one[OURS].resized],
            }
            for one in found
        ],
    }


def _resizes(simulated: Simulated, found: Found) -> list[str]:
    """Each resize of one run with its sentence; for several runs their last sizes."""
    sizes = simulated.asked.sizes
    if sizes is None:
        return []
    able = ", ".join(map(str, sizes.terms.rule.sizes))
    if len(found) > 1:
        ends = Counter(_size_at_end(simulated, one[OURS]) for one in found)
        came = ", ".join(f"{runs} to {nodes}" for nodes, runs in sorted(ends.items()))
        begin = count(sizes.terms.begin, "node")
        return paragraph(f"autoscale: from {begin}, of {able}: of {len(found)} runs came {came}")
    resized = found[0][OURS].resized
    lines = paragraph(
        f"autoscale: from {count(sizes.terms.begin, 'node')} to "
        f"{_size_at_end(simulated, found[0][OURS])}, of {able}"
    )
    for one in resized[:_SAID]:
        lines += paragraph(f"after step {one.step}: {one.reason}", indent=4)
    if len(resized) > _SAID:
        lines.append(f"    and {count(len(resized) - _SAID, 'resize')} more")
    return lines


def _figures(found: Sequence[Figures], *, resized: bool) -> list[str]:
    several = len(found) > 1
    rows: list[tuple[str, ...]] = []
    if several:
        rows.append(("", "mean", "p50", "p90", "95 % of the mean"))
    for name, label in FIGURES.items():
        if name == "resizes" and not resized:
            continue
        scale = HOUR_S if name in _HOURS else 1.0
        one = spread([getattr(figures, name) / scale for figures in found])
        if several:
            cells = [*map(number, (one.mean, one.p50, one.p90)), f"± {number(one.confidence)}"]
            rows.append((label, *cells))
        else:
            rows.append((label, number(one.mean)))
    return columns(rows, right=frozenset(range(1, len(rows[0]))))


def _rivals(found: Found, *, last_step: float) -> list[str]:
    why = {n: no_ratio(found, n, ours=OURS, last_step=last_step) for n in found[0]}
    fields = (*FIGURES, "store_usd")
    means = {n: {field: _mean(found, n, field) for field in fields} for n in found[0]}
    zones = any(mean["transfer_usd"] for mean in means.values())
    stored = any(mean["store_usd"] for mean in means.values())
    beside = [*(["zones $/h"] if zones else []), *(["store $/h"] if stored else [])]
    head = ("", "hours", "steps", "samples/s", "nodes", "$/h", *beside)
    rows: list[tuple[str, ...]] = [(*head, "samples per $", "of ours", "done again", "stood still")]
    value = _with_store(means[OURS])
    for name, mean in means.items():
        share = _with_store(mean) / value if value else 0.0
        hours = max(mean["seconds"], 1e-9) / HOUR_S
        rows.append(
            (
                name,
                number(mean["seconds"] / HOUR_S),
                number(round(mean["steps"])),
                number(mean["samples_per_s"]),
                number(mean["mean_nodes"]),
                usd(mean["usd_per_hour"]),
                *([usd(mean["transfer_usd"] / hours)] if zones else []),
                *([usd(mean["store_usd"] / hours)] if stored else []),
                rate(_with_store(mean)),
                "-" if why[name] else f"{share:.2f}",
                number(mean["lost_steps"]),
                duration(max(0.0, mean["seconds"] - mean["trained_s"])),
            )
        )
    lines = columns(rows, right=frozenset(range(1, len(rows[0]))))
    for reason in dict.fromkeys(filter(None, why.values())):
        names = ", ".join(name for name, one in why.items() if one == reason)
        lines += paragraph(f"no ratio of {names} to ours: {reason}", indent=4)
    return lines


def _with_store(mean: Mapping[str, float]) -> float:
    """Samples per dollar, with the dollars of the checkpoints' store."""
    paid = mean["usd"] + mean["store_usd"]
    return mean["samples_per_usd"] * mean["usd"] / paid if paid else 0.0


def _mean(found: Found, name: str, field: str) -> float:
    return spread([float(getattr(one[name], field)) for one in found]).mean
