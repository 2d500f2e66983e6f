"""`bamboo cost` as text."""

from collections.abc import Mapping
from typing import Any

from cli.views.quantities import columns, count, rate, usd


def job_cost_text(body: Mapping[str, Any]) -> str:
    """A line per market and zone, dearest last, with the share of on-demand."""
    grid, on_demand = body["grid"], body["on_demand"]
    lines = [
        f"{body['job']}: {count(body['instances'], 'instance')} of {body['instance_type']} "
        f"({body['gpu']}) for a grid {grid['pipelines']} x {grid['stages']}",
        f"  {rate(body['samples_per_s'])} samples/s, {body['samples_per_s_source']}",
    ]
    rows = [("market", "zone", "$/h", "of on-demand", "samples per dollar")]
    for zone, price in sorted(body["spot"].items(), key=lambda i: (i[1]["usd_per_hour"], i[0])):
        share = price["usd_per_hour"] / on_demand["usd_per_hour"]
        rows.append(
            ("spot", zone, usd(price["usd_per_hour"]), f"{share:.0%}",
             rate(price["samples_per_usd"]))
        )  # fmt: skip
    rows.append(
        ("on-demand", "any", usd(on_demand["usd_per_hour"]), "100%",
         rate(on_demand["samples_per_usd"]))
    )  # fmt: skip
    lines += columns(rows, right=frozenset({2, 3, 4}))
    seen = body["catalogue"]
    lines.append(
        f"  on-demand as of {seen['on_demand_seen']}; spot is modelled from {seen['spot_seen']}"
    )
    return "\n".join(lines)


def run_cost_text(body: Mapping[str, Any]) -> str:
    """What the run came to, or has come to so far."""
    when = "in all" if body["ended"] else f"so far, after step {body['step']}"
    word = " (modelled dollars)" if body["modelled"] else ""
    share = f", {body['usd'] / body['on_demand_usd']:.0%} of" if body["on_demand_usd"] else ","
    return "\n".join(
        [
            f"{body['run']}: {usd(body['usd'])} {when}{word}{share} on-demand for the same "
            f"instance-seconds, {usd(body['on_demand_usd'])}",
            f"  {rate(body['samples_per_s'])} samples/s (measured in the run), "
            f"{rate(body['samples_per_usd'])} samples per dollar, "
            f"{rate(body['tokens_per_usd'])} tokens per dollar",
        ]
    )
