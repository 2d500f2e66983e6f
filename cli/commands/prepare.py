"""`bamboo prepare`: the data of a job, made ready once."""

import json
from pathlib import Path

import click

from bamboo import api
from cli.bar import bar
from cli.echo import echo_result
from cli.options.overrides import overrides_option
from cli.views.prepare import prepared_body, prepared_text


@click.command("prepare")
@click.argument("job", type=click.Path(path_type=Path))
@overrides_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, job: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Make the data of a job ready: text into tokens, once, and hashes of a token file.

    What is made of text lies in $BAMBOO_HOME/data, by its contents; of a token file the hashes lie
    beside it, in FILE.tree.
    """
    found = api.prepare_data(job, overrides=overrides, bar=bar)
    echo_result(json.dumps(prepared_body(found)) if as_json else prepared_text(found))
