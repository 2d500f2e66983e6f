"""`--strategy`, for every command that places a job."""

from pathlib import Path

import click

strategy_option = click.option(
    "--strategy",
    type=click.Path(path_type=Path),
    help="Take grid, cut, redundancy and sync from this file, made by `bamboo plan --json`.",
)
