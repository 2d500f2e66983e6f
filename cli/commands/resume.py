"""`bamboo resume`: continue a run that ended early, from its newest good checkpoint, or train it
longer than planned."""

import json
import sys

import click

from bamboo.controller import launching, resuming
from bamboo.runs import run_folder
from bamboo.wiring.begun import Begun
from cli.commands.launch import plan_said
from cli.echo import echo, echo_result
from cli.options.budget import limit_options
from cli.screen import PlainScreen, end_text, open_screen, verbose_option


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
    folder = run_folder.find(run_folder.home(), run)
    echo("looking at model, data and checkpoints", err=True)
    ended_s = resuming.settle(folder, PlainScreen(to_stderr=as_json))
    with Begun() as begun:
        resumed = resuming.prepare(folder, overrides, begun, steps=steps)
        for reason in resumed.rejected:
            echo(f"passed over: {reason}", err=True)
        where = "the beginning: there is no good checkpoint"
        if resumed.final_stages:
            where = f"its final state, of step {resumed.from_step}"
        elif resumed.from_step:
            where = f"the checkpoint of step {resumed.from_step}"
        echo("\n".join(plan_said(resumed.prepared, verbose=verbose)), err=as_json)
        echo(f"{folder.id} goes on from {where}", err=as_json)
        if folder.trace.exists():
            echo("its trace is not played on: it gets as many nodes as the job has", err=as_json)
        held = resuming.claim(folder, resumed, ended_s=ended_s)
        terminal = sys.stdout.isatty() and not as_json
        with open_screen(terminal=terminal, to_stderr=as_json, verbose=verbose) as screen:
            body = launching.run_attached(folder, screen, begun)
    held.close()
    echo_result(json.dumps(body) if as_json else end_text(body, verbose=verbose))
    return int(body["exit_code"])
