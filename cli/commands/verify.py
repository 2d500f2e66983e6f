"""`bamboo verify`: is the run, bit for bit, what a calm one gives; were its decisions right?"""

import json
import sys

import click

from bamboo.errors import InputError, VerifyDiffers
from cli import runs, wiring
from cli.decisions import check_decisions
from cli.views.verify import decisions_text, verify_text


@click.command("verify")
@click.argument("run")
@click.option("--decisions", is_flag=True, help="Recompute every decision from the log instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run: str, decisions: bool, as_json: bool) -> None:
    """Train a run again calmly and compare every bit.

    It takes about as long as the run did, in one process.
    """
    folder = runs.find(runs.home(), run)
    if decisions:
        body = check_decisions(folder)
        text = decisions_text(body)
    else:
        _check_ended(folder)
        body = wiring.run_verify(folder.path, told=_tell)
        text = verify_text(folder.id, body)
    click.echo(json.dumps(body) if as_json else text)
    if not body["equal"]:
        raise VerifyDiffers(f"run {folder.id} is not what it must be: {body['first_difference']}")


def _check_ended(folder: runs.RunFolder) -> None:
    """Raise InputError where there is no final state to compare."""
    if folder.final_manifest.exists():
        return
    if not folder.receipt.exists():
        raise InputError(
            f"run {folder.id} has no receipt: it goes on, or was killed; `bamboo status "
            f"{folder.id}` says which, and verify works once a run has ended in order"
        )
    outcome = folder.read_json(folder.receipt)["outcome"]
    raise InputError(
        f"run {folder.id} ended {outcome} without a final state; only a run that ended in order "
        "(done, stopped, budget) can be verified"
    )


def _tell(step: int, steps: int) -> None:
    """A counter on the terminal's error stream; nothing where nobody watches."""
    if sys.stderr.isatty():
        click.echo(f"\rcalm run: step {step}/{steps}", err=True, nl=step == steps)
