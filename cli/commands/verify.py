"""`bamboo verify`: is the run, bit for bit, what a calm one gives; were its decisions right?"""

import json
import sys

import click

from bamboo.errors import VerifyDiffers
from cli import runs, wiring
from cli.decisions import check_decisions
from cli.views.verify import decisions_text, verify_text


@click.command("verify")
@click.argument("run")
@click.option("--decisions", is_flag=True, help="Recompute every decision instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: str, decisions: bool, as_json: bool) -> None:
    """Train a run again calmly and compare every bit."""
    folder = runs.find(runs.home(), run)
    if decisions:
        body = check_decisions(folder)
        text = decisions_text(body)
    else:
        body = wiring.run_verify(folder.path, told=_tell)
        text = verify_text(folder.id, body)
    click.echo(json.dumps(body) if as_json else text)
    if not body["equal"]:
        raise VerifyDiffers(f"run {folder.id} is not what it must be: {body['first_difference']}")


def _tell(step: int, steps: int) -> None:
    """A counter on the terminal's error stream; nothing where nobody watches."""
    if sys.stderr.isatty():
        click.echo(f"\rcalm run: step {step}/{steps}", err=True, nl=step == steps)
