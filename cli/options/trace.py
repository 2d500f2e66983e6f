"""The options of a trace that a run is played on.

Rule: a decorated command gets one value, `asked`; `bamboo.controller.launching` interprets it.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from bamboo.errors import InputError
from bamboo.study.played_trace import TIME_SCALE, TraceAsked

OPTIONS = (
    click.option(
        "--trace",
        type=click.Path(path_type=Path),
        help="Play this recorded market: nodes come and go as they did in it.",
    ),
    click.option(
        "--time-scale", type=float, help=f"Trace seconds per second; by default {TIME_SCALE:g}."
    ),
    click.option(
        "--max-nodes",
        type=int,
        help="Nodes of the trace to use, at most; by default as many as the job takes.",
    ),
    click.option("--hours", type=float, help="Stop after this many hours of the trace."),
    click.option(
        "--restart-seconds",
        type=float,
        help="Charge this many trace seconds for a restart; its own time then counts unscaled.",
    ),
)


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, and pass them on as one value; None without a trace. Raises InputError for a
    trace option without a trace."""

    @wraps(command)
    def with_trace(
        *,
        trace: Path | None,
        time_scale: float | None,
        max_nodes: int | None,
        hours: float | None,
        restart_seconds: float | None,
        **others: Any,
    ) -> Any:
        asked = None
        if trace is not None:
            asked = TraceAsked(
                path=trace,
                time_scale=TIME_SCALE if time_scale is None else time_scale,
                restart_s=restart_seconds,
                max_nodes=max_nodes,
                hours=hours,
            )
        given = {
            "--time-scale": time_scale,
            "--restart-seconds": restart_seconds,
            "--max-nodes": max_nodes,
            "--hours": hours,
        }
        for option, value in given.items() if asked is None else ():
            if value is not None:
                raise InputError(f"{option} {value:g} goes with a trace; give --trace FILE too")
        return command(asked=asked, **others)

    out: Callable[..., Any] = with_trace
    for option in reversed(OPTIONS):
        out = option(out)
    return out
