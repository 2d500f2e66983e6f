"""`bamboo cost` as text."""

from collections.abc import Mapping
from typing import Any

from cli.views.quantities import columns, count, paragraph, rate, usd
from cli.views.spent import spent_lines


def job_cost_text(body: Mapping[str, Any]) -> str:
    """A line per market and zone, dearest last, with the share of on-demand."""
    grid, on_demand = body["grid"], body["on_demand"]
    lines = [
        f"{body['job']}: {count(body['instances'], 'instance')} of {body['instance_type']} "
        f"({body['gpu']}) for a grid {grid['pipelines']} x {grid['stages']}",
        f"  {rate(body['samples_per_s'])} samples/s, {body['samples_per_s_source']}",
    ]
    rows = [("market", "zone", "$/h", "of on-demand", "samples per dollar", "tokens per dollar")]
    offers = [("on-demand", "any", on_demand)]
    offers += [("spot", zone, price) for zone, price in body["spot"].items()]
    for market, zone, price in sorted(offers, key=lambda o: (o[2]["usd_per_hour"], o[1])):
        share = price["usd_per_hour"] / on_demand["usd_per_hour"]
        worth = (rate(price["samples_per_usd"]), rate(price["tokens_per_usd"]))
        rows.append((market, zone, usd(price["usd_per_hour"]), f"{share:.0%}", *worth))
    lines += columns(rows, right=frozenset({2, 3, 4, 5}))
    seen = body["catalogue"]
    lines.append(
        f"  on-demand as of {seen['on_demand_seen']}; spot is modelled from {seen['spot_seen']}"
    )
    return "\n".join(lines)


def run_cost_text(body: Mapping[str, Any]) -> str:
    """What the run came to, or has come to so far, and where it went."""
    when = "in all" if body["ended"] else f"so far, after step {body['step']}"
    word = " (modelled dollars)" if body["modelled"] else ""
    paid, full = body["usd"], body["on_demand_usd"]
    share = f", {paid / full:.0%} of {usd(full)} on-demand" if full else ""
    lines = [
        f"{body['run']}: {usd(paid)} {when}{word}{share}",
        f"  {rate(body['samples_per_s'])} samples/s (measured in the run), "
        f"{rate(body['samples_per_usd'])} samples per dollar, "
        f"{rate(body['tokens_per_usd'])} tokens per dollar",
    ]
    spent = body.get("spent")
    if spent is not None:
        lines += spent_lines(spent, ended=body["ended"])
    for resize in body.get("resizes", ()):
        lines += paragraph(f"after step {resize['step']}: {resize['reason']}")
    return "\n".join(lines)
