"""`bamboo launch`: train a job on spot instances; stay attached until it ends, or let it go on."""

import json
import sys
from pathlib import Path

import click

from bamboo import api
from bamboo.study.played_trace import TraceAsked
from cli.echo import echo, echo_result, note
from cli.options.budget import limit_options
from cli.options.gpu import gpu_option
from cli.options.overrides import overrides_option
from cli.options.strategy import strategy_option
from cli.options.trace import trace_options
from cli.screen import detached_text, end_text, open_screen, plan_said, verbose_option
from cli.views.plan import account_body, account_lines, plan_body, requests_text
from cli.views.trace import trace_body


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
    With --trace nodes come and go on this machine as they did in a recorded spot market. With --set
    'chaos.kill=[{step=5, stage=1}]' the run loses a node on purpose.
    """
    switched = {"cluster.check_replicas": check_replicas, "autoscale.enabled": autoscale}
    overrides = (*overrides, *(f"{key}=true" for key, on in switched.items() if on))
    echo("looking at model and data", err=True)
    with api.prepare(
        job,
        overrides=overrides,
        run=name,
        strategy=strategy,
        trace=asked,
        gpu=gpu,
        dry_run=dry_run,
        note=note,
    ) as ready:
        prepared = ready.prepared
        if dry_run and as_json:
            body = plan_body(prepared.run, prepared.planned) | account_body(prepared.job)
            if prepared.trace is not None:
                body["trace"] = trace_body(prepared.trace)
            body["in_bucket"] = [one.body() for one in prepared.in_bucket]
            body |= {"logs_to": prepared.logs_to} if prepared.logs_to else {}
            echo_result(json.dumps(body))
            return 0
        if dry_run:
            said = [*plan_said(prepared, verbose=True), *account_lines(prepared.job)]
            said += map(requests_text, prepared.planned.requests)
            echo_result("\n".join([*said, "dry run: nothing was started"]))
            return 0
        echo("\n".join(plan_said(prepared, verbose=verbose)), err=as_json)
        if detach:
            run = ready.start(note=lambda text: echo(text, err=as_json))
            echo_result(detached_text(run.id, as_json=as_json))
            return 0
        terminal = sys.stdout.isatty() and not as_json
        with open_screen(terminal=terminal, to_stderr=as_json, verbose=verbose) as screen:
            body = ready.lead(screen)
    echo_result(json.dumps(body) if as_json else end_text(body, verbose=verbose))
    return int(body["exit_code"])
