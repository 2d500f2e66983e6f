"""`bamboo rm`: remove an ended run from the disk."""

import json

import click

from bamboo.errors import InputError
from bamboo.runs import removing, run_folder
from cli.agreement import agreed
from cli.echo import echo_result, note
from cli.views.status import parts_text


@click.command("rm")
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, run: str, yes: bool, as_json: bool) -> None:
    """Remove the folder of a run that has ended.

    With --yes RUN must be the whole id, because the same prefix could name another run later.
    """
    folder = run_folder.find(run_folder.home(), run)
    if yes and run != folder.id:
        raise InputError(f"--yes: {run!r} is not a whole id; at present it means run {folder.id}")
    if why := removing.why_not(folder):
        raise InputError(f"run {folder.id} is not removed: {why}")
    parts, elsewhere = removing.disk_use(folder), removing.in_bucket(folder)
    note(f"{folder.path} holds {parts_text(parts)}")
    if not agreed("Remove it?", yes=yes):
        raise InputError(f"run {folder.id} stays as it is")
    removing.remove(folder)
    if as_json:
        body = {"run": folder.id, "bytes": removing.total(parts), "elsewhere": elsewhere or None}
        echo_result(json.dumps(body))
    else:
        echo_result(f"{folder.id} is removed")
    if elsewhere:
        note(f"its files at {elsewhere} stay there")
