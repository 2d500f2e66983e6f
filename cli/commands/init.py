"""`bamboo init`: make the stack in your account, and write what it has into the account file."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from bamboo.config.account import account_defaults, account_file
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.sites.account.stack import account_toml, cloud_of, read_outputs
from cli.agreement import agreed
from cli.echo import echo_result, note
from cli.new_file import write_new


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
        return _destroy(source, agree, as_json=as_json)
    if make:
        from bamboo.sites.account.standing import make_stack

        chosen = _chosen(pairs, here=here)
        named = "" if force else str(account_defaults().get("bucket", ""))
        if not make_stack(Path(source), chosen, named=named, agree=agree, note=note):
            note("nothing was created, and the choices were not kept")
            return 1
    _write_down(cloud_of(read_outputs(source)), force=force, as_json=as_json)
    return 0


def _destroy(source: str, agree: Callable[[str], bool], *, as_json: bool) -> int:
    from bamboo.sites.account.standing import unmake_stack
    from bamboo.sites.account.terraform import with_chosen

    chosen = with_chosen(Path(source), ())
    try:
        cloud = cloud_of(read_outputs(source))
    except InputError:  # a stack that was not completed has no outputs
        cloud = {"region": chosen.get("region", JobConfig().cloud.region), "bucket": ""}
    region, bucket = str(cloud["region"]), str(cloud["bucket"])
    if not unmake_stack(Path(source), region, bucket, agree=agree, note=note):
        note("nothing was destroyed")
        return 1
    path = account_file()
    if ours := path.exists() and not _differences(cloud, force=True):  # else it is another stack's
        path.unlink()
    if as_json:
        echo_result(json.dumps({"file": str(path), "removed": ours, "destroyed": True}))
    else:
        gone = f"; {path} is gone, too" if ours else ""
        echo_result(f"the stack is gone{gone}")
    return 0


def _chosen(pairs: tuple[str, ...], *, here: bool) -> list[tuple[str, Any]]:
    from bamboo.sites.account.standing import LAUNCHERS, public_address

    chosen: list[tuple[str, Any]] = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--var {pair}: give NAME=VALUE")
        try:
            chosen.append((name, json.loads(value)))
        except (ValueError, RecursionError):
            chosen.append((name, value))
    if here:
        chosen.append((LAUNCHERS, [public_address()]))
    return chosen


def _write_down(cloud: Mapping[str, Any], *, force: bool, as_json: bool) -> None:
    path = account_file()
    differ = _differences(cloud, force=force) if (there := path.exists()) else []
    if differ and not force:
        raise InputError(
            f"{path} is there already, with another {', '.join(differ)}; "
            "--force replaces it, BAMBOO_CONFIG names another file"
        )
    # A stack of an earlier release lacks the outputs that were added since.
    written = not there or bool(differ) or not cloud.keys() <= account_defaults().keys()
    if written:
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{path.parent} cannot be made: {error.strerror}; "
                "give another file with BAMBOO_CONFIG"
            ) from error
        write_new(path, account_toml(cloud).encode(), force=there, mode=0o600)
    if as_json:
        echo_result(json.dumps({"file": str(path), "written": written, "cloud": cloud}))
        return
    echo_result(f"{path}: {'written' if written else 'is up to date, nothing was changed'}")
    for name, value in cloud.items():
        listed = [one if isinstance(one, str) else one["id"] for one in value]
        echo_result(f"  {name:17}{value if isinstance(value, str) else ', '.join(listed)}")


def _differences(cloud: Mapping[str, Any], *, force: bool) -> list[str]:
    """The keys in which the file differs; a missing bucket of its own is no difference."""
    try:
        before = account_defaults()
    except InputError:
        if not force:
            raise
        return ["content"]
    same = before.get("bucket") == cloud["bucket"]
    named = before.keys() if same else before.keys() | cloud.keys()
    return sorted(key for key in named if before.get(key) != cloud.get(key))
