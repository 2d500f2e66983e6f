"""Creates and destroys the stack of an account. The plan is shown with what the stack costs while
it exists, then the user is asked, then it is done.

Rule: nothing changes before the answer, and no stack is destroyed while a run holds something in
it.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bamboo import wiring
from bamboo.checkpoint.shared_data import SHARED
from bamboo.config.account import account_file
from bamboo.config.catalogue import load_catalogue
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.planner.prices.auxiliary import HOURS_PER_MONTH, Extras, auxiliary_parts
from bamboo.quantities import count, size, usd
from bamboo.sites.account import terraform
from bamboo.sites.account.ending import remove_left, runs_in_account
from bamboo.sites.account.terraform import Planned

LAUNCHERS = "launcher_cidrs"
WHO_AM_I = "https://checkip.amazonaws.com"
ANSWER_S = 10.0
WITH_RUNS = "delete_runs_with_bucket"
BUCKET = "aws_s3_bucket.this"
BILLS = ("aws_instance", "aws_secretsmanager_secret", "aws_s3_bucket")
"""Kinds of resources that cost something while they exist."""


def make_stack(
    stack: Path,
    chosen: Sequence[tuple[str, Any]],
    *,
    named: str,
    agree: Callable[[str], bool],
    note: Callable[[str], None],
) -> bool:
    """Apply the stack with these values of its variables; False: `agree` answered the question with
    no. `named` is the bucket of the account file, "" for none. Raises InputError."""
    values = terraform.with_chosen(stack, chosen)
    _refuse_another(stack, values, named)
    for name, value in sorted(values.items()):
        note(f"  {name} = {value}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan"
        note(f"asking Terraform what it would make of {stack}/")
        planned = terraform.plan(stack, file, destroy=False, values=values, note=note)
        if planned.nothing:
            note("the stack is as it should be; nothing is changed")
            terraform.keep(stack, values)
            return True
        _show(planned, note)
        note(f"while it exists it bills {standing_costs()}")
        if not agree("Make it?"):
            return False
        terraform.keep(stack, values)
        terraform.carry_out(stack, file, note=note)
        if planned.added:
            note(
                "the store of runs boots for some minutes; `bamboo doctor JOB` says when it answers"
            )
    return True


def unmake_stack(
    stack: Path,
    region: str,
    bucket: str,
    *,
    agree: Callable[[str], bool],
    note: Callable[[str], None],
) -> bool:
    """Destroy the stack, with everything in its bucket. Without `bucket` the stack was not
    completed and has none. False: the answer was no. Raises InputError, also while a run has
    anything in the account; CloudRefused."""
    values = terraform.with_chosen(stack, ())
    _refuse_another(stack, values, "")
    name = str(values.get("name", JobConfig().cloud.stack))
    there = runs_in_account(region, account=partial(wiring.account, stack=name))
    if there:
        raise InputError(
            f"{region} holds something of {', '.join(there)}; `bamboo stop --all --region "
            f"{region}` ends it, then destroy"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan"
        note(f"asking Terraform what exists of {stack}/")
        planned = terraform.plan(stack, file, destroy=True, values=values, note=note)
        if planned.nothing:
            return True
        _show(planned, note)
        if bucket:
            objects = wiring.bucket(f"s3://{bucket}", region=region)
            held, shared = objects.sizes("runs/"), objects.sizes(SHARED)
            note(
                f"with s3://{bucket}: {count(len(held), 'file')} of runs, checkpoints among them, "
                f"{sum(held.values()) / 1e9:.3g} GB; {size(sum(shared.values()))} of tokens"
            )
        if not agree("Destroy it?"):
            return False
        # Terraform knows none of it. The stack has the boundary of the roles, which cannot be
        # deleted before them.
        left = remove_left(region, name)
        if left:
            note(f"roles or secrets of {', '.join(left)} had been left, and are gone")
        if bucket:
            # Terraform deletes the contents of a bucket only if it was configured so before.
            terraform.let_go(stack, BUCKET, WITH_RUNS, note=note)
            terraform.plan(stack, file, destroy=True, values=values, note=note)
        _destroy(stack, file, values, note=note)
    return True


def _destroy(
    stack: Path, file: Path, values: Mapping[str, Any], *, note: Callable[[str], None]
) -> None:
    """Carry out the plan `file`. If it stops half-way, it is planned and carried out again,
    which also finds resources that were deleted although the answer was lost. Raises InputError
    with what still exists and is billed."""
    try:
        terraform.carry_out(stack, file, note=note)
        return
    except InputError as error:
        note(f"{error}; again, from what is still there")
    if terraform.plan(stack, file, destroy=True, values=values, note=note).nothing:
        return
    try:
        terraform.carry_out(stack, file, note=note)
    except InputError as error:
        left = terraform.plan(stack, file, destroy=True, values=values, note=note).gone
        if left:
            raise InputError(f"{_still_there(left)}: {error}") from error


def _still_there(left: Sequence[str]) -> str:
    """What was not destroyed: first what is billed, then the rest."""
    bills = [address for address in left if address.partition(".")[0] in BILLS]
    others = [address for address in left if address not in bills]
    named = [f"{', '.join(bills)} (billed until gone)"] if bills else []
    named += [f"{', '.join(others)} (not billed)"] if others else []
    return f"of the stack there is still {' and '.join(named)}; `bamboo init --destroy` again"


def _refuse_another(stack: Path, values: Mapping[str, Any], named: str) -> None:
    """Refuse, since a stack that exists elsewhere would be forgotten, and billed on."""
    region = str(values.get("region", JobConfig().cloud.region))
    stands = terraform.standing_region(stack)
    if stands and stands != region:
        raise InputError(
            f"--var region={region}: the stack of {stack} stands in {stands}, and would be "
            f"forgotten there and bill on; `bamboo init --destroy` it first, or make the other "
            f"from a second copy of {stack}"
        )
    if named and not stands:
        raise InputError(
            f"{account_file()} names a stack, s3://{named}, of which the state in {stack} knows "
            f"nothing: it was made from elsewhere, and would be made a second time; go there, or "
            f"--force makes another"
        )


def standing_costs() -> str:
    """What the stack costs without a run, from list prices, without its secret; and what ends
    that."""
    parts = auxiliary_parts(load_catalogue().auxiliary, Extras(instances=0))
    month = sum(part.usd_per_hour for part in parts) * HOURS_PER_MONTH
    why = "; ".join(part.why for part in parts if part.usd_per_hour > 0)
    return (
        f"{usd(month)} a month, run or no run (modelled: {why}), beside what its bucket holds; "
        "`bamboo init --destroy` ends it"
    )


def public_address(url: str = WHO_AM_I) -> str:
    """This machine's address as seen from outside, as a range of one address. Raises InputError."""
    try:
        with urlopen(url, timeout=ANSWER_S) as answer:
            return f"{IPv4Address(answer.read(64).decode().strip())}/32"
    except (OSError, ValueError) as error:
        raise InputError(
            f"--here: {url} does not say by which address this machine is seen ({error}); give "
            f"--var '{LAUNCHERS}=[\"ADDRESS/32\"]'"
        ) from error


def _show(planned: Planned, note: Callable[[str], None]) -> None:
    made = sum(planned.added.values())
    note(f"it makes {made}, changes {planned.changed}, destroys {len(planned.gone)}")
    for kind, number in sorted(planned.added.items()):
        note(f"  + {number} {kind}")
    for address in planned.gone:
        note(f"  - {address}")
