"""`--strategy`, for every command that places a job."""

from pathlib import Path

import click

strategy_option = click.option(
    "--strategy",
    type=click.Path(path_type=Path),
    help="Grid, cut and redundancy from this file, of `bamboo plan --json`.",
)
