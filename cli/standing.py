"""Making and unmaking the stack of an account: the plan is shown, with what it costs to let it
stand, then it is asked, then it is done.

Rule: nothing changes before the answer; nothing is unmade under a run that holds something.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import click

from bamboo.config.catalogue import load_catalogue
from bamboo.errors import InputError
from bamboo.planner.auxiliary import HOURS_PER_MONTH, Extras, auxiliary_parts
from cli import terraform, wiring
from cli.ending import runs_in_account
from cli.terraform import Planned
from cli.views.quantities import count, usd

LAUNCHERS = "launcher_cidrs"
WHO_AM_I = "https://checkip.amazonaws.com"
ANSWER_S = 10.0
WITH_RUNS = "delete_runs_with_bucket"
BUCKET = "aws_s3_bucket.this"


def make_stack(
    stack: Path, chosen: Sequence[tuple[str, Any]], *, yes: bool, say: Callable[[str], None]
) -> None:
    """Apply the stack with these values of its variables. Raises InputError, click.Abort where the
    answer is no."""
    values = terraform.choose(stack, chosen)
    for name, value in sorted(values.items()):
        say(f"  {name} = {value}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan"
        say(f"asking terraform what {stack} would change")
        planned = terraform.plan(stack, file, destroy=False)
        if planned.nothing:
            say("the stack stands as it should; nothing is changed")
            return
        _show(planned, say)
        say(f"while it stands it bills {standing_costs()}")
        _ask("Make it?", yes=yes)
        terraform.carry_out(stack, file, say=_indented(say))


def unmake_stack(
    stack: Path, region: str, bucket: str, *, yes: bool, say: Callable[[str], None]
) -> None:
    """Destroy the stack, with all that its bucket holds; no `bucket`: it was not made whole, and
    has none. Raises InputError, also while anything of a run is in the account; CloudRefused;
    click.Abort where the answer is no."""
    there = runs_in_account(region)
    if there:
        raise InputError(
            f"{region} holds something of {', '.join(there)}; `bamboo stop --all --region "
            f"{region}` ends it, then destroy"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan"
        say(f"asking terraform what of {stack} stands")
        planned = terraform.plan(stack, file, destroy=True)
        if planned.nothing:
            say("nothing of the stack stands")
            return
        _show(planned, say)
        if bucket:
            held = wiring.bucket(f"s3://{bucket}", region=region).sizes("runs/")
            say(
                f"with s3://{bucket}: {count(len(held), 'file')} of runs, checkpoints among them, "
                f"{sum(held.values()) / 1e9:.3g} GB"
            )
        _ask("Destroy it?", yes=yes)
        if bucket:
            # Terraform deletes what a bucket holds only if it was told so before.
            terraform.let_go(stack, BUCKET, WITH_RUNS)
            terraform.plan(stack, file, destroy=True)
        terraform.carry_out(stack, file, say=_indented(say))


def standing_costs() -> str:
    """What the stack costs while no run is there, from list prices; and what ends that."""
    parts = auxiliary_parts(load_catalogue().auxiliary, Extras(instances=0))
    month = sum(part.usd_per_hour for part in parts) * HOURS_PER_MONTH
    why = "; ".join(part.why for part in parts if part.usd_per_hour > 0)
    return (
        f"{usd(month)} a month, run or no run (modelled: {why}), beside what its bucket holds; "
        "`bamboo init --destroy` ends it"
    )


def public_address(url: str = WHO_AM_I) -> str:
    """The address by which this machine is seen from outside, as a range of one. Raises
    InputError."""
    try:
        with urlopen(url, timeout=ANSWER_S) as answer:
            return f"{IPv4Address(answer.read(64).decode().strip())}/32"
    except (OSError, ValueError) as error:
        raise InputError(
            f"--here: {url} does not say by which address this machine is seen ({error}); give "
            f"--var '{LAUNCHERS}=[\"ADDRESS/32\"]'"
        ) from error


def _show(planned: Planned, say: Callable[[str], None]) -> None:
    made = sum(planned.added.values())
    say(f"it makes {made}, changes {planned.changed}, destroys {len(planned.gone)}")
    for kind, number in sorted(planned.added.items()):
        say(f"  + {number} {kind}")
    for address in planned.gone:
        say(f"  - {address}")


def _ask(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("nobody is there to be asked; --yes does what is said above unasked")
    click.confirm(question, abort=True, err=True)


def _indented(say: Callable[[str], None]) -> Callable[[str], None]:
    return lambda line: say(f"  {line}")
