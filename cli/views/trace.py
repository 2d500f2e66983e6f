"""The trace of a run as text: how it is played, where it is now, what it took."""

from collections.abc import Mapping
from typing import Any

from bamboo.quantities import count, duration
from bamboo.runs.progress import TraceNow
from bamboo.study.played_trace import HOUR_S, Replayed


def trace_text(played: Replayed) -> str:
    """For the plan: the trace's nodes, scale, length and preemptions."""
    terms = played.terms
    hours = (played.end_s - terms.begin_s) / HOUR_S
    lines = [
        f"  nodes as in the trace {terms.name}, modelled: {played.nodes_at_begin} at the start, at "
        f"most {terms.max_nodes}, {count(played.preemptions, 'preemption')} in {hours:.2f} h",
        f"    {terms.time_scale:g} s of it pass in a second, from the start of training on: "
        f"{duration(hours * HOUR_S / terms.time_scale)} in all; "
        + ("then the run is stopped" if terms.hours else "then nothing more happens"),
    ]
    if terms.begin_s > 0:
        lines.append(
            f"    from {terms.begin_s / HOUR_S:.2f} h of the trace on, where there are nodes enough"
        )
    if terms.hours and played.end_s < terms.begin_s + terms.hours * HOUR_S:
        lines.append(
            f"    it is shorter than the {terms.hours:g} h asked for: its last nodes stay till then"
        )
    if terms.restart_s is not None:
        lines.append(
            f"    a restart (all stop and reconfigure) is charged {terms.restart_s:g} s of it; "
            "its own time counts once"
        )
    return "\n".join(lines)


def trace_figures(trace: TraceNow) -> str:
    """`trace 1.25 h (60 x), 7/8 nodes`."""
    return (
        f"trace {trace.played_s / HOUR_S:.2f} h ({trace.time_scale:g} x), "
        f"{trace.nodes}/{trace.max_nodes} nodes"
    )


def trace_line(trace: Mapping[str, Any]) -> str:
    """For the summary, from the receipt's value."""
    text = (
        f"{trace['played_s'] / HOUR_S:.2f} h of the trace {trace['name']} at "
        f"{trace['time_scale']:g} times its speed, at most {count(trace['max_nodes'], 'node')}: "
        f"{count(trace['preemptions'], 'preemption')} by the trace"
    )
    if trace["played_s"] > trace["length_s"]:
        text += f"; it ended after {trace['length_s'] / HOUR_S:.2f} h"
    return text


def trace_body(played: Replayed) -> dict[str, Any]:
    """For `launch --dry-run --json`."""
    terms = played.terms
    return {
        "name": terms.name,
        "time_scale": terms.time_scale,
        "restart_s": terms.restart_s,
        "max_nodes": terms.max_nodes,
        "nodes_at_begin": played.nodes_at_begin,
        "begin_s": terms.begin_s,
        "end_s": played.end_s,
        "preemptions": played.preemptions,
    }
