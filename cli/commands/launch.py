"""`bamboo launch`: train a job on spot instances; stay attached until it ends, or let it go on."""

import json
import sys
import time
from pathlib import Path

import click

from bamboo.errors import InputError
from cli import background, launching
from cli.launching import TraceAsked
from cli.screen import end_text, open_screen
from cli.views.plan import plan_body, plan_text, requests_text
from cli.views.trace import trace_body, trace_text

TIME_SCALE = 60.0
"""An hour of a trace passes in a minute."""


@click.command("launch")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--run", "name", default="", help="Id of the run; by default made from the job.")
@click.option("--dry-run", is_flag=True, help="Show plan, requests and price; start nothing.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a key of the job.",
)
@click.option("--check-replicas", is_flag=True, help="Compare owner and shadow after every step.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Have as many nodes as this recorded market had, and lose them as it did.",
)
@click.option(
    "--time-scale", type=float, help=f"Trace seconds in a second; by default {TIME_SCALE:g}."
)
@click.option(
    "--max-nodes", type=int, help="Nodes of the trace that are admitted; as many as the job takes."
)
@click.option("--hours", type=float, help="Stop after so many hours of the trace.")
@click.option(
    "--restart-seconds",
    type=float,
    help="Charge a restart so many trace seconds, and its own time once, not scaled.",
)
@click.option(
    "--autoscale", is_flag=True, help="Grow while the next nodes are worth it, else shrink."
)
@click.option("--detach", is_flag=True, help="Return when the run is on; it goes on by itself.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object at the end; progress goes to stderr.",
)
def command(
    *,
    job: Path,
    name: str,
    dry_run: bool,
    overrides: tuple[str, ...],
    check_replicas: bool,
    trace: Path | None,
    time_scale: float | None,
    max_nodes: int | None,
    hours: float | None,
    restart_seconds: float | None,
    autoscale: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """Train a job on spot instances.

    JOB is a TOML file; examples/reference.toml has every key. Ctrl-C stops at the next step
    boundary, a second one at once. With --detach the run goes on in the background: attach to it
    again, or stop it, by its id. With --autoscale it finds how many nodes are worth their price,
    up to cluster.max_pipelines. With --trace nodes come and go as a recorded spot market had them,
    modelled on this machine.
    """
    switched = {"cluster.check_replicas": check_replicas, "autoscale.enabled": autoscale}
    overrides = (*overrides, *(f"{key}=true" for key, on in switched.items() if on))
    click.echo("looking at model and data", err=True)
    scales = {"time_scale": time_scale, "restart_seconds": restart_seconds}
    asked = _asked(trace, **scales, max_nodes=max_nodes, hours=hours)
    prepared = launching.prepare(job, overrides=overrides, name=name, dry_run=dry_run, trace=asked)
    cores = launching.cores_of(prepared.job)
    if dry_run and as_json:
        body = plan_body(prepared.run, prepared.planned)
        if prepared.trace is not None:
            body["trace"] = trace_body(prepared.trace)
        click.echo(json.dumps(body))
        return 0
    click.echo(plan_text(prepared.run, prepared.planned, cores=cores), err=as_json)
    if prepared.trace is not None:
        click.echo(trace_text(prepared.trace), err=as_json)
    if dry_run:
        for request in prepared.planned.requests:
            click.echo(requests_text(request))
        click.echo("dry run: nothing was started")
        return 0
    folder, held = launching.claim(prepared, source=job, started_s=time.time(), detached=detach)
    if detach:
        click.echo(f"{folder.id}: starting the local cloud", err=as_json)
        background.start(folder, held, fresh=True)
        click.echo(
            json.dumps({"run": folder.id, "detached": True})
            if as_json
            else f"{folder.id} goes on in the background\n"
            f"  bamboo attach {folder.id}   watches it\n"
            f"  bamboo stop {folder.id}   ends it at a step boundary"
        )
        return 0
    with open_screen(terminal=sys.stdout.isatty() and not as_json, to_stderr=as_json) as screen:
        body = launching.run_attached(folder, screen)
    held.close()
    click.echo(json.dumps(body) if as_json else end_text(body))
    return int(body["exit_code"])


def _asked(
    trace: Path | None,
    *,
    time_scale: float | None,
    restart_seconds: float | None,
    max_nodes: int | None,
    hours: float | None,
) -> TraceAsked | None:
    if trace is not None:
        return TraceAsked(
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
    for option, value in given.items():
        if value is not None:
            raise InputError(f"{option} {value:g} is of a trace; give --trace FILE too")
    return None
