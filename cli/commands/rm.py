"""`bamboo rm`: remove an ended run from the disk, or tokens that runs share from their bucket."""

import json

import click

from bamboo import api
from bamboo.errors import InputError
from bamboo.quantities import size
from cli.agreement import agreed
from cli.echo import echo_result, note
from cli.views.status import parts_text


@click.command("rm")
@click.argument("run", required=False)
@click.option("--data", "digest", metavar="DIGEST", help="Remove tokens that runs share instead.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, run: str | None, digest: str | None, yes: bool, as_json: bool) -> None:
    """Remove the folder of a run that has ended.

    With --yes RUN must be the whole id, because the same prefix could name another run later. With
    --data it removes tokens from the bucket of your stack, by their digest: `bamboo list --data`
    shows them. A run that is removed leaves them there, for the next one.
    """
    if (run is None) == (digest is None):
        raise InputError("name one thing to remove: RUN, or --data DIGEST")
    if digest is not None:
        _remove_data(digest, yes=yes, as_json=as_json)
    elif run is not None:
        _remove_run(run, yes=yes, as_json=as_json)


def _remove_run(run: str, *, yes: bool, as_json: bool) -> None:
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


def _remove_data(digest: str, *, yes: bool, as_json: bool) -> None:
    found = api.named_data(digest)
    note(f"the data {found.digest} are {size(found.size_bytes)} in the bucket")
    if not agreed("Remove them?", yes=yes):
        raise InputError(f"the data {found.digest[:12]} stay as they are")
    api.remove_data(found.digest)
    if as_json:
        echo_result(json.dumps({"data": found.digest, "bytes": found.size_bytes}))
    else:
        echo_result(f"the data {found.digest[:12]} are removed")
