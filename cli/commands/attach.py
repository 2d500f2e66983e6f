"""`bamboo attach`: watch a run that goes on elsewhere, and make sure that it has a launcher."""

import json
import sys
from typing import Any

import click

from bamboo.controller.attaching import attend
from bamboo.runs import run_folder
from bamboo.signals import Interrupts
from bamboo.sites import opened
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
    folder = run_folder.find(run_folder.home(), run)
    detached = opened.outlives_its_launcher(folder)
    if folder.receipt.exists():
        echo(f"run {folder.id} has ended", err=True)
        body: dict[str, Any] = folder.read_json(folder.receipt)
    else:
        echo(f"{folder.id}: Ctrl-C leaves it running; `bamboo stop {folder.id}` ends it", err=True)
        terminal = sys.stdout.isatty() and not as_json
        try:
            with (
                open_screen(terminal=terminal, to_stderr=as_json, verbose=verbose) as screen,
                Interrupts().listening(),
            ):
                body = attend(folder, screen)
        except KeyboardInterrupt:
            where = "in the background" if detached else "with the launcher that started it"
            echo(
                f"left: run {folder.id} goes on {where}; `bamboo stop {folder.id}` ends it",
                err=True,
            )
            return 130
    echo_result(json.dumps(body) if as_json else end_text(body, verbose=verbose))
    return int(body["exit_code"])
