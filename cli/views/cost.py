"""`bamboo cost RUN` as text: what the run cost, and where the money went, with a bar for each use.

Rule: the lines add up to the bill as they are printed, so micro-dollars are shown in full.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bamboo.quantities import clock, count, duration, micro_text, rate, size, usd
from bamboo.value import MINIMUM_BILLED_S
from cli.echo import columns, paragraph

BAR = 24
"""Columns of the longest bar."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LABELS = {
    "steps": "training steps",
    "booting": "waiting: booting",
    "forming": "waiting: forming",
    "parked": "waiting: parked",
    "minimum": f"{MINIMUM_BILLED_S} s minimum",
    "rounding": "whole seconds",
    "free": "free first hour",
}
BESIDE = ("coordinator", "disks", "addresses", "transfer")
"""The overheads, in the order in which they are printed."""
_NAMED = 8
"""How many instances are named; the rest is counted."""


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
        f"{rate(body['samples_per_usd'])} samples per dollar"
        + (f", {rate(tokens)} tokens per dollar" if (tokens := body["tokens_per_usd"]) else ""),
    ]
    if "silent" in body:
        lines += paragraph(body["silent"])
    lines += planned_lines(body.get("planned"))
    spent = body.get("spent")
    if spent is not None:
        lines += spent_lines(spent, ended=body["ended"])
    elif body.get("unspent"):
        lines += paragraph(body["unspent"])
    if (trials := body.get("trials")) is not None:
        tried = count(trials["count"], "trial of another strategy", "trials of other strategies")
        lines += paragraph(
            f"of this, {usd(trials['usd'])} for {tried}, which took {duration(trials['excess_s'])} "
            "longer than the best one that was known"
        )
    for resize in body.get("resizes", ()):
        lines += paragraph(f"after step {resize['step']}: {resize['reason']}")
    return "\n".join(lines)


def spent_lines(spent: Mapping[str, Any], *, ended: bool) -> list[str]:
    """The bill in its parts, the overheads, rates and budget, and instances that take no part."""
    lines = [f"  where it went, by use, of {clock(spent['instance_seconds'])} of all instances:"]
    uses: Sequence[Mapping[str, Any]] = spent["uses"]
    if uses:
        lines += _waterfall(uses, spent["bill_micro_usd"])
        lines += paragraph(how_known(spent))
    else:
        lines = paragraph(f"where it went is not known: {spent['unknown'] or 'no step was taken'}")
    if spent["saved_micro_usd"] > 0:
        saved, full = spent["saved_micro_usd"], spent["on_demand_micro_usd"]
        lines.append(
            f"  saved against on-demand: {micro_text(saved)} of {micro_text(full)}, "
            f"{saved / full:.0%}"
        )
    lines += paragraph(_rate(spent, ended=ended))
    lines += paragraph(beside_text(spent["beside"]))
    if spent["not_members"]:
        lines += paragraph(_strangers(spent["not_members"], ended=ended))
    return lines


def label_of(use: str) -> str:
    """The label of a use of money."""
    return _LABELS.get(use, use)


def bar(share: float, *, width: int = BAR) -> str:
    """A bar of `share` of the width, to an eighth of a column; a share above 0 always shows."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    eighths = max(eighths, 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _waterfall(uses: Sequence[Mapping[str, Any]], bill_micro_usd: int) -> list[str]:
    largest = max(abs(one["micro_usd"]) for one in uses) or 1
    whole = sum(max(0, one["micro_usd"]) for one in uses) or 1
    rows = [
        (
            label_of(one["use"]),
            clock(one["seconds"]) if one["seconds"] else "",
            micro_text(one["micro_usd"]),
            f"{one['micro_usd'] / whole:.1%}",
            bar(one["micro_usd"] / largest),
        )
        for one in uses
    ]
    rows.append(("the bill", "", micro_text(bill_micro_usd), "", ""))
    return columns(rows, indent=4, right=frozenset({1, 2, 3}))


def how_known(spent: Mapping[str, Any]) -> str:
    """How much of the parts of a training step was measured."""
    words = [f"duties by the {' and the '.join(spent['sources'])}"]
    names = {one["use"] for one in spent["uses"]}
    trained = sum("useful" in one["seconds"] for one in spent["instances"])
    if "useful" in names:
        rough = trained - spent["busy_measured"]
        words.append(
            f"useful and redundant time of {count(rough, 'instance')} of {trained} that trained is "
            "from leases: redundancy is estimated from numbers of operations, exchange and "
            "optimizer count as bubble"
            if rough
            else "useful and redundant time as measured by the nodes"
        )
    if "steps" in names:
        words.append(
            "it is not recorded how busy these instances were: useful, redundancy and bubble in one"
        )
    return "; ".join(words)


def _rate(spent: Mapping[str, Any], *, ended: bool) -> str:
    word = "on average, while any ran" if ended else "now"
    line = f"instances for {usd(spent['usd_per_hour'])}/h {word}"
    budget = spent["budget"]
    if budget is None:
        return line
    if budget["left_usd"] is not None:
        line += f"; {usd(max(0.0, budget['left_usd']))} of the budget left"
        if not ended and budget["lasts_s"] is not None:
            line += f", which lasts {duration(max(0.0, budget['lasts_s']))}"
    if budget["left_s"] is not None and not ended:
        line += f"; {duration(max(0.0, budget['left_s']))} of budget.max_hours left"
    return line


def beside_text(beside: Mapping[str, Any]) -> str:
    """The overheads, part by part."""
    transfer = beside["transfer_micro_usd"]
    words = ", ".join(f"{name} {micro_text(beside[f'{name}_micro_usd'])}" for name in BESIDE[:-1])
    words = f"not in the bill, modelled: {words}, transfer between zones "
    words += (
        f"{micro_text(transfer)} ({size(beside['transfer_bytes'])}, steps at the planned grid of "
        "the newest part)"
        if transfer
        else "$0"
    )
    return f"{words}; {micro_text(beside['micro_usd'])} in all"


def _strangers(found: Sequence[Mapping[str, Any]], *, ended: bool) -> str:
    head = f"{count(len(found), 'instance')} tagged as the run's and no member: "
    if ended:
        head = f"{count(len(found), 'instance')} paid for from which no node ever came: "
    named = [
        f"{one['instance']} in {one['zone']} ({one['duty']} for {duration(one['seconds'])}, "
        f"{micro_text(one['bill_micro_usd'])})"
        for one in found[:_NAMED]
    ]
    more = len(found) - len(named)
    return head + ", ".join(named) + (f" and {more} more" if more else "")
