"""`bamboo launch`: train a job on spot instances; stay attached until it ends, or let it go on."""

import json
import sys
import time
from pathlib import Path

import click

from bamboo.controller import background, launching
from bamboo.controller.launching import Prepared
from bamboo.runs import initial
from bamboo.study.played_trace import TraceAsked
from bamboo.wiring.begun import Begun
from cli.echo import echo, echo_result, note
from cli.options.budget import limit_options
from cli.options.gpu import gpu_option
from cli.options.overrides import overrides_option
from cli.options.strategy import strategy_option
from cli.options.trace import trace_options
from cli.screen import detached_text, end_text, open_screen, verbose_option
from cli.views.account import account_body, account_lines
from cli.views.brief import plan_lines
from cli.views.columns import paragraph
from cli.views.plan import plan_body, plan_text, quota_text, requests_text
from cli.views.trace import trace_body, trace_text


def plan_said(prepared: Prepared, *, verbose: bool) -> list[str]:
    """The plan before a start, each item a line or several."""
    run, planned, played = prepared.run, prepared.planned, prepared.trace
    weights = prepared.weights
    if not verbose:
        return plan_lines(run, planned, played=played, weights=weights)
    begins = [] if weights is None else paragraph(initial.said(weights))
    said = [quota_text(planned)] if prepared.job.cloud.provider != "local" else []
    said += [plan_text(run, planned), *begins]
    return said if played is None else [*said, trace_text(played)]


@click.command("launch")
@click.argument("job", type=click.Path(path_type=Path))
@click.option("--run", "name", default="", help="Id of the run; by default made from the job.")
@click.option("--dry-run", is_flag=True, help="Show plan, requests and price; start nothing.")
@overrides_option
@strategy_option
@gpu_option
@click.option("--check-replicas", is_flag=True, help="Compare owner and shadow after every step.")
@trace_options
@limit_options
@click.option(
    "--autoscale", is_flag=True, help="Grow while the next nodes are worth it, else shrink."
)
@verbose_option
@click.option("--detach", is_flag=True, help="Return once the run has started; it goes on.")
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
    strategy: Path | None,
    gpu: str | None,
    check_replicas: bool,
    asked: TraceAsked | None,
    autoscale: bool,
    verbose: bool,
    detach: bool,
    as_json: bool,
) -> int:
    """Train a job on spot instances.

    JOB is a TOML file; examples/reference.toml lists every key. Ctrl-C stops the run at its next
    step boundary; a second Ctrl-C stops it at once. With --detach the run goes on in the
    background; attach to it or stop it by its id. With --autoscale the run chooses how many nodes
    are worth their price, up to cluster.max_pipelines. With cloud.provider = "ec2" the nodes are
    instances in your account; quotas, store, bucket and job are checked before anything is started.
    With --trace nodes come and go on this machine as they did in a recorded spot market.
    """
    switched = {"cluster.check_replicas": check_replicas, "autoscale.enabled": autoscale}
    overrides = (*overrides, *(f"{key}=true" for key, on in switched.items() if on))
    echo("looking at model and data", err=True)
    with Begun() as begun:
        prepared = launching.prepare(
            job,
            overrides=overrides,
            name=name,
            dry_run=dry_run,
            trace=asked,
            strategy=strategy,
            gpu=gpu,
            begun=begun,
            note=note,
        )
        if dry_run and as_json:
            body = plan_body(prepared.run, prepared.planned) | account_body(prepared.job)
            if prepared.trace is not None:
                body["trace"] = trace_body(prepared.trace)
            echo_result(json.dumps(body))
            return 0
        if dry_run:
            said = [*plan_said(prepared, verbose=True), *account_lines(prepared.job)]
            said += map(requests_text, prepared.planned.requests)
            echo_result("\n".join([*said, "dry run: nothing was started"]))
            return 0
        said = plan_said(prepared, verbose=verbose)
        echo("\n".join(said), err=as_json)
        folder, held = launching.claim(prepared, source=job, started_s=time.time(), detached=detach)
        if detach:
            echo(f"{folder.id}: starting in the background", err=as_json)
            background.start(folder, held, begun, fresh=True)
            echo_result(detached_text(folder.id, as_json=as_json))
            return 0
        terminal = sys.stdout.isatty() and not as_json
        with open_screen(terminal=terminal, to_stderr=as_json, verbose=verbose) as screen:
            body = launching.run_attached(folder, screen, begun)
    held.close()
    echo_result(json.dumps(body) if as_json else end_text(body, verbose=verbose))
    return int(body["exit_code"])
