"""`bamboo attach`: watch a run that goes on elsewhere, and make sure that it has a launcher."""

import json
import sys

import click

from bamboo import api
from bamboo.signals import Interrupts
from cli.echo import echo, echo_result
from cli.screen import end_text, open_screen, verbose_option


@click.command("attach")
@click.argument("run")
@verbose_option
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object at the end; progress goes to stderr.",
)
def command(*, run: str, verbose: bool, as_json: bool) -> int:
    """Watch a run, and give it a launcher if it has lost its own.

    Ctrl-C ends the watching and leaves the run as it is; `bamboo stop` ends the run. At the end of
    the run its receipt is printed, and the exit code is the run's.
    """
    opened = api.open_run(run)
    detached = opened.detached
    receipt = opened.receipt()
    if receipt is not None:
        echo(f"run {opened.id} has ended", err=True)
    else:
        echo(f"{opened.id}: Ctrl-C leaves it running; `bamboo stop {opened.id}` ends it", err=True)
        terminal = sys.stdout.isatty() and not as_json
        try:
            with (
                open_screen(terminal=terminal, to_stderr=as_json, verbose=verbose) as screen,
                Interrupts().listening(),
            ):
                receipt = opened.attach(screen)
        except KeyboardInterrupt:
            where = "in the background" if detached else "with the launcher that started it"
            echo(
                f"left: run {opened.id} goes on {where}; `bamboo stop {opened.id}` ends it",
                err=True,
            )
            return 130
    echo_result(json.dumps(receipt) if as_json else end_text(receipt, verbose=verbose))
    return int(receipt["exit_code"])
