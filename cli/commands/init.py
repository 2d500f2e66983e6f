"""`bamboo init`: make the stack in your account, and write what it has into the account file."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from bamboo import api
from bamboo.errors import InputError
from cli.agreement import agreed
from cli.echo import echo_result, note


@click.command("init")
@click.argument("source", default="terraform")
@click.option("--apply", "make", is_flag=True, help="Create the stack, or update it.")
@click.option("--destroy", is_flag=True, help="Destroy the stack and all that its bucket holds.")
@click.option(
    "--var", "pairs", multiple=True, metavar="NAME=VALUE", help="A variable of the stack, as JSON."
)
@click.option("--here", is_flag=True, help="Let this machine's address reach the stack's store.")
@click.option("--yes", is_flag=True, help="Create or destroy without asking.")
@click.option("--force", is_flag=True, help="Overwrite an account file that differs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    source: str,
    make: bool,
    destroy: bool,
    pairs: tuple[str, ...],
    here: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Create the stack in your AWS account, and record what it contains.

    SOURCE is the directory of the stack, a file with the output of `terraform output -json`, or -
    for standard input. With --apply Terraform creates the stack; the command shows what would be
    created and its price, and asks first. The names of what the stack contains are written to
    $XDG_CONFIG_HOME/bamboo/cloud.toml (or BAMBOO_CONFIG); a job with cloud.provider = "ec2" takes
    from there what it does not set itself. `bamboo launch --dry-run` shows the result.
    """
    if make == destroy and (make or pairs or here or yes):
        raise InputError("give --apply or --destroy; --var, --here and --yes say how")
    if destroy and (pairs or here):
        raise InputError("--destroy takes no --var and no --here")
    if (make or destroy) and not Path(source).is_dir():
        raise InputError(f"{source} is no directory; give that of the stack, terraform/")
    agree = partial(agreed, yes=yes)
    if destroy:
        gone = api.destroy_stack(source, agree=agree, note=note)
        if gone is None:
            note("nothing was destroyed")
            return 1
        _say_destroyed(gone.path, removed=gone.removed, as_json=as_json)
        return 0
    if make and not api.make_stack(
        source, variables=_values(pairs), here=here, force=force, agree=agree, note=note
    ):
        note("nothing was created, and the choices were not kept")
        return 1
    file = api.write_account_file(source, force=force)
    _say_written(file.path, file.cloud, written=file.written, as_json=as_json)
    return 0


def _values(pairs: tuple[str, ...]) -> list[tuple[str, Any]]:
    chosen: list[tuple[str, Any]] = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--var {pair}: give NAME=VALUE")
        try:
            chosen.append((name, json.loads(value)))
        except (ValueError, RecursionError):
            chosen.append((name, value))
    return chosen


def _say_destroyed(path: Path, *, removed: bool, as_json: bool) -> None:
    if as_json:
        body = {"file": str(path), "removed": removed, "destroyed": True}
        echo_result(json.dumps(body))
        return
    file = f"; {path} is gone, too" if removed else ""
    echo_result(f"the stack is gone{file}")


def _say_written(path: Path, cloud: Mapping[str, Any], *, written: bool, as_json: bool) -> None:
    if as_json:
        body = {"file": str(path), "written": written, "cloud": cloud}
        echo_result(json.dumps(body))
        return
    said = "written" if written else "is up to date, nothing was changed"
    echo_result(f"{path}: {said}")
    for name, value in cloud.items():
        listed = [one if isinstance(one, str) else one["id"] for one in value]
        echo_result(f"  {name:17}{value if isinstance(value, str) else ', '.join(listed)}")
