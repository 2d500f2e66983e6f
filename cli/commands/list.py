"""`bamboo list`: all runs of this home."""

import json

import click

from bamboo.runs import run_folder
from bamboo.runs.removing import disk_use, total
from bamboo.runs.run_status import row_of
from cli.echo import echo_result
from cli.views.status import list_text


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array.")
def command(as_json: bool) -> None:
    """List the runs."""
    rows = [
        row_of(folder) | {"disk_bytes": total(disk_use(folder))}
        for folder in run_folder.all_runs(run_folder.home())
    ]
    rows = [
        row for row in rows if (run_folder.home() / row["run"]).exists()
    ]  # some may go meanwhile
    if as_json:
        echo_result(json.dumps(rows))
    else:
        echo_result(list_text(rows) if rows else f"no runs in {run_folder.home()}")
