"""`--set`: keys of the job file that the command line says anew.

Rule: every command that reads a job takes them in the same words, and hands them to `load_job`.
"""

import click

overrides_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a key of the job.",
)
