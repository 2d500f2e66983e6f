"""The option that names a checkpoint of a run."""

import click

step_option = click.option(
    "--step",
    type=click.IntRange(min=1),
    help="Take the checkpoint of this step; by default the final state.",
)
