"""`bamboo resume`: continue a run that ended early, from its newest good checkpoint, or train it
longer than planned."""

import json
import sys

import click

from bamboo import api
from bamboo.run_handle import Ready, Run
from cli.echo import echo, echo_result, note
from cli.options.budget import limit_options
from cli.screen import PlainScreen, end_text, open_screen, plan_said, verbose_option


@click.command("resume")
@click.argument("run")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Change grid, redundancy, cloud or budget; with --steps the learning rate, too.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Train longer: N is the new total, with the steps that are done.",
)
@limit_options
@verbose_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object at the end; progress goes to stderr.",
)
def command(
    *, run: str, overrides: tuple[str, ...], steps: int | None, verbose: bool, as_json: bool
) -> int:
    """Continue a run that ended before its last step.

    The steps after the newest good checkpoint are trained again; losses and weights are those of a
    run that was never interrupted. The grid may change, for example with --set cluster.stages=2.

    With --steps N a run that is done or was stopped is continued in a further segment, from its
    last step, with weights and moments as they are. Warm-up and cosine count from the segment's
    first step to N. The keys train.learning_rate, train.warmup_steps and train.final_learning_rate
    may change.
    """
    opened = api.open_run(run)
    echo("looking at model, data and checkpoints", err=True)
    notes = PlainScreen(to_stderr=as_json)
    with opened.prepare_resume(
        overrides=overrides, steps=steps, screen=notes, note=note, listens=True
    ) as ready:
        _say_where(opened, ready, verbose=verbose, as_json=as_json)
        terminal = sys.stdout.isatty() and not as_json
        with open_screen(terminal=terminal, to_stderr=as_json, verbose=verbose) as screen:
            body = ready.lead(screen)
    echo_result(json.dumps(body) if as_json else end_text(body, verbose=verbose))
    return int(body["exit_code"])


def _say_where(opened: Run, ready: Ready, *, verbose: bool, as_json: bool) -> None:
    """Print its plan, and the step that it goes on from."""
    resumed = ready.resumed
    assert resumed is not None, "this run was launched before"
    for reason in resumed.rejected:
        echo(f"passed over: {reason}", err=True)
    where = "the beginning: there is no good checkpoint"
    if resumed.final_stages:
        where = f"its final state, of step {resumed.from_step}"
    elif resumed.from_step:
        where = f"the checkpoint of step {resumed.from_step}"
    echo("\n".join(plan_said(ready.prepared, verbose=verbose)), err=as_json)
    echo(f"{opened.id} goes on from {where}", err=as_json)
    if opened.folder.trace.exists():
        echo("its trace is not played on: it gets as many nodes as the job has", err=as_json)
