"""`bamboo prune`: remove the oldest ended runs from the disk."""

import json
from collections.abc import Mapping
from typing import Any

import click

from bamboo import api
from bamboo.errors import InputError
from bamboo.quantities import count, size
from cli.agreement import agreed
from cli.echo import echo_result, note
from cli.views.status import removed_text


@click.command("prune")
@click.option(
    "--keep", type=click.IntRange(min=0), required=True, help="Number of ended runs to keep."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of what was removed.")
def command(*, keep: int, yes: bool, as_json: bool) -> int:
    """Remove the folders of all ended runs but the newest.

    Runs that have not ended, and those without a receipt, are kept and do not count; `bamboo rm`
    removes one of those by its id.
    """
    old = api.old_runs(keep=keep)
    bytes_of = {one.id: sum(one.disk_use().values()) for one in old}
    if old:
        note(removed_text(_rows(bytes_of)))
        what = f"{count(len(old), 'run')}, {size(sum(bytes_of.values()))}"
        if not agreed(f"Remove {what}?", yes=yes):
            raise InputError("all runs stay as they are")
    code = 0
    for one in old:
        try:
            one.remove()
        except InputError as error:  # the others are removed all the same
            del bytes_of[one.id]
            if one.folder.path.exists():
                code = error.exit_code
                note(str(error))
    if as_json:
        echo_result(json.dumps(_rows(bytes_of)))
    else:
        done = f"{count(len(bytes_of), 'run')} removed, {size(sum(bytes_of.values()))}"
        echo_result(done if old else f"there are no more than {keep} ended runs")
    return code


def _rows(bytes_of: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"run": run, "bytes": held} for run, held in bytes_of.items()]
