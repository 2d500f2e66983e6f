"""`bamboo cost RUN` as text."""

from collections.abc import Mapping
from typing import Any

from cli.views.quantities import paragraph, rate, usd
from cli.views.spent import spent_lines


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
