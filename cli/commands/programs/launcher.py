"""`bamboo launcher`: what `launch --detach` and `attach` start; people do not call it."""

from functools import partial

import click

from bamboo.controller import background
from bamboo.runs import run_folder
from bamboo.wiring.begun import Begun
from cli.screen import PlainScreen, end_text


@click.command("launcher", hidden=True)
@click.argument("run")
@click.option("--lock-fd", type=int, required=True, help="An open descriptor with the run's lock.")
@click.option("--ready-fd", type=int, required=True, help="Where to say that the run is reached.")
@click.option("--begun", default="", help="The local cloud that has begun for it.")
@click.option("--fresh", is_flag=True, help="Start the run; by default, take it up.")
def command(run: str, lock_fd: int, ready_fd: int, begun: str, fresh: bool) -> int:
    """Lead a detached run."""
    folder = run_folder.find(run_folder.home(), run)
    with Begun.inherited(begun) as cloud:
        return background.live(
            folder,
            cloud,
            screen=PlainScreen(verbose=True),
            end_text=partial(end_text, verbose=True),
            lock_fd=lock_fd,
            ready_fd=ready_fd,
            fresh=fresh,
        )
