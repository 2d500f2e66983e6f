"""`bamboo report`: a run as one HTML file, to read or to share; also as a picture."""

import json
from pathlib import Path

import click

from bamboo import api, extras
from cli.echo import echo
from cli.new_file import STDOUT, refuse_to_overwrite, write_new
from cli.pictures import report_png
from cli.views.report import report_body, report_html

NAME = "report.html"


@click.command("report")
@click.argument("run")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help=f"The HTML file, or - for standard output; by default {NAME} in the run's folder.",
)
@click.option(
    "--png", type=click.Path(path_type=Path), help="Draw a picture as well, with Chromium."
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: str, out: Path | None, png: Path | None, force: bool, as_json: bool) -> None:
    """Write a report of a run: one HTML file with its curves, losses and dollars.

    The run may have ended or not. The file needs no network and no script, and it says what is
    missing in the run's records.
    """
    opened = api.open_run(run)
    extras.need("plot", what="a report")
    path = opened.folder.path / NAME if out is None else out
    ours = out is None
    if not ours:
        refuse_to_overwrite(path, force=force)
    browser = ""
    if png is not None:
        refuse_to_overwrite(png, force=force)
        browser = report_png.find_browser()
    from cli.pictures.report import pictures_of

    report = opened.report()
    page = report_html(report, pictures_of(report))
    write_new(path, page.encode(), force=force or ours)
    if png is not None:
        write_new(png, report_png.page_png(page, browser=browser), force=force)
    files = {"html": str(path), "png": None if png is None else str(png)}
    printed = str(path) == STDOUT
    if as_json:
        echo(json.dumps(report_body(report, files)), err=printed)
        return
    for sentence in report.missing:
        echo(f"missing: {sentence}", err=True)
    for file in (path, png):
        if file is not None:
            echo(f"{opened.id}: {file}", err=printed)
