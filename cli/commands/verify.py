"""`bamboo verify`: compare a run, or a segment of it, bit by bit with a calm one; recompute its
decisions; check that each sample was used once."""

import json
import re
import sys
from functools import partial

import click

from bamboo import api
from bamboo.errors import InputError, VerifyDiffers
from cli.agreement import agreed
from cli.echo import echo, echo_result, note
from cli.views.verify import decisions_text, samples_text, segment_text, verify_text


@click.command("verify")
@click.argument("run")
@click.option("--decisions", is_flag=True, help="Recompute every decision from the log instead.")
@click.option("--samples", is_flag=True, help="Check that each sample was used once instead.")
@click.option(
    "--steps",
    "segment",
    metavar="A:B",
    help="Check steps A to B-1 only, from the newest checkpoint at or before A.",
)
@click.option("--rent", is_flag=True, help="Check on a machine of the account, rented for it.")
@click.option("--yes", is_flag=True, help="Rent without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    run: str,
    decisions: bool,
    samples: bool,
    segment: str | None,
    rent: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Train a run again calmly and compare every bit.

    It takes about as long as the run did, in one process. With --rent that process is on an
    instance in the account of the run, of the run's type: the command shows the price and asks,
    then rents it, waits, and gives it back.
    """
    if decisions + samples + (segment is not None) + rent > 1:
        raise click.UsageError(
            "--decisions, --samples, --steps and --rent are checks of their own; ask for one at a "
            "time"
        )
    if yes and not rent:
        raise click.UsageError("--yes agrees to the price of --rent; leave it out")
    opened = api.open_run(run)
    if decisions:
        body = opened.verify_decisions()
        text = decisions_text(body)
    elif samples:
        body = opened.verify_samples(told=_tell)
        text = samples_text(opened.id, body)
    elif segment is not None:
        body = opened.verify(steps=_first_and_stop(segment), told=_tell)
        text = segment_text(opened.id, body)
    else:
        found = (
            opened.verify_rented(agree=partial(agreed, yes=yes), note=note, told=_tell)
            if rent
            else opened.verify(told=_tell)
        )
        if found is None:
            note("nothing was rented")
            return 1
        body = found
        text = verify_text(opened.id, body)
    echo_result(json.dumps(body) if as_json else text)
    if not body["equal"]:
        first = body["first_difference"]
        said = first["sentence"] if samples else first
        raise VerifyDiffers(f"run {opened.id} is not what it must be: {said}")
    return 0


def _first_and_stop(segment: str) -> tuple[int, int]:
    """A and B of `A:B`. Raises InputError for any other form."""
    found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", segment)
    if found is None:
        raise InputError(
            f"--steps {segment!r} is no segment; give A:B, say 40:60 for steps 40 to 59"
        )
    return int(found[1]), int(found[2])


def _tell(step: int, steps: int) -> None:
    """A counter on the terminal's error stream; nothing where that is not a terminal."""
    if sys.stderr.isatty():
        echo(f"verified: step {step}/{steps}", err=True, nl=step == steps, over=True)
