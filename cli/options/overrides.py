"""`--set`: keys of the job file that the command line overrides.

Rule: every command that reads a job takes them in the same form, and passes them to `load_job`.
"""

import click

overrides_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a key of the job; repeatable.",
)
