"""The stack of an account and the account file that names it: make, write down, destroy.

Rule: `standing` shows what would change and has it agreed to; the file is replaced only on request.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo.asked_files import write_new
from bamboo.config.account import account_defaults, account_file
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.ports import Note
from bamboo.sites.account.stack import account_toml, cloud_of, read_outputs
from bamboo.sites.account.standing import LAUNCHERS, make_stack, public_address, unmake_stack
from bamboo.sites.account.terraform import with_chosen

Agree = Callable[[str], bool]
"""Puts a question to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFile:
    """The account file, as it names a stack."""

    path: Path
    written: bool
    """False: it said so already."""
    cloud: Mapping[str, Any]
    """The keys of `[cloud]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destroyed:
    """A stack of which nothing stands any more."""

    path: Path
    removed: bool
    """Whether the account file named this stack, and is gone too."""


def set_up(
    stack: Path,
    values: Sequence[tuple[str, Any]],
    *,
    here: bool,
    force: bool,
    agree: Agree,
    note: Note,
) -> bool:
    """Make the stack of this directory, or bring it to this release, with these values of its
    variables; `here` lets this machine's address reach its store. `force`: the account file may
    name another one. False: `agree` said no. Raises InputError."""
    chosen = [*values, *([(LAUNCHERS, [public_address()])] if here else [])]
    named = "" if force else str(account_defaults().get("bucket", ""))
    return make_stack(stack, chosen, named=named, agree=agree, note=note)


def take_down(stack: Path, *, agree: Agree, note: Note) -> Destroyed | None:
    """Destroy the stack of this directory, and the account file where it names that. None: `agree`
    said no. Raises InputError, also while a run has anything in the account; CloudRefused."""
    chosen = with_chosen(stack, ())
    try:
        cloud = cloud_of(read_outputs(str(stack)))
    except InputError:  # a stack that was not completed has no outputs
        cloud = {"region": chosen.get("region", JobConfig().cloud.region), "bucket": ""}
    region = str(cloud["region"])
    bucket = str(cloud["bucket"])
    if not unmake_stack(stack, region, bucket, agree=agree, note=note):
        return None
    path = account_file()
    ours = path.exists() and not _differences(cloud, force=True)  # else it is another stack's
    if ours:
        path.unlink()
    return Destroyed(path=path, removed=ours)


def write_down(source: str, *, force: bool) -> AccountFile:
    """Write the outputs of a stack into the account file. `source` is the stack's directory, a file
    with what `terraform output -json` says there, or - for standard input. Raises InputError, also
    where the file names another stack and `force` is not given."""
    cloud = cloud_of(read_outputs(source))
    path = account_file()
    there = path.exists()
    differ = _differences(cloud, force=force) if there else []
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
    return AccountFile(path=path, written=written, cloud=cloud)


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
