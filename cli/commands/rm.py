"""`bamboo rm`: remove an ended run from the disk."""

import json

import click

from bamboo import api
from bamboo.errors import InputError
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
    opened = api.open_run(run)
    if yes and run != opened.id:
        raise InputError(f"--yes: {run!r} is not a whole id; at present it means run {opened.id}")
    if why := opened.why_not_removed():
        raise InputError(f"run {opened.id} is not removed: {why}")
    parts = opened.disk_use()
    elsewhere = opened.elsewhere()
    note(f"{opened.folder.path} holds {parts_text(parts)}")
    if not agreed("Remove it?", yes=yes):
        raise InputError(f"run {opened.id} stays as it is")
    opened.remove()
    if as_json:
        body = {"run": opened.id, "bytes": sum(parts.values()), "elsewhere": elsewhere or None}
        echo_result(json.dumps(body))
    else:
        echo_result(f"{opened.id} is removed")
    if elsewhere:
        note(f"its files at {elsewhere} stay there")
