"""`bamboo cost RUN` as text."""

from collections.abc import Mapping
from typing import Any

from bamboo.quantities import rate, usd
from cli.views.columns import paragraph
from cli.views.spent import spent_lines


def planned_lines(planned: Mapping[str, Any] | None) -> list[str]:
    """What the plan said of calm steps, for comparison with what became of it."""
    if planned is None or planned["samples_per_usd"] is None:
        return []
    return [
        f"  planned, for calm steps: {rate(planned['samples_per_s'])} samples/s at "
        f"{usd(planned['usd_per_hour'])}/h, {rate(planned['samples_per_usd'])} samples per dollar"
    ]


def run_cost_text(body: Mapping[str, Any]) -> str:
    """What the run cost, or has cost so far, and where the money went."""
    when = "in all" if body["ended"] else f"so far, after step {body['step']}"
    word = " (modelled dollars)" if body["modelled"] else ""
    paid, full = body["usd"], body["on_demand_usd"]
    share = f", {paid / full:.0%} of {usd(full)} on-demand" if full else ""
    over = "over the whole run" if body["ended"] else "measured in the run"
    lines = [
        f"{body['run']}: {usd(paid)} {when}{word}{share}",
        f"  {rate(body['samples_per_s'])} samples/s ({over}), "
        f"{rate(body['samples_per_usd'])} samples per dollar, "
        f"{rate(body['tokens_per_usd'])} tokens per dollar",
    ]
    if "silent" in body:
        lines += paragraph(body["silent"])
    lines += planned_lines(body.get("planned"))
    spent = body.get("spent")
    if spent is not None:
        lines += spent_lines(spent, ended=body["ended"])
    elif body.get("unspent"):
        lines += paragraph(body["unspent"])
    for resize in body.get("resizes", ()):
        lines += paragraph(f"after step {resize['step']}: {resize['reason']}")
    return "\n".join(lines)
