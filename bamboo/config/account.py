"""The user's account as `bamboo init` wrote it: the values of `[cloud]` that a job on EC2 does not
give itself.

    $BAMBOO_CONFIG, or $XDG_CONFIG_HOME/bamboo/cloud.toml, or ~/.config/bamboo/cloud.toml

Rule: it has the section `[cloud]` with keys of the job file and nothing else; it names secrets and
contains none. A local job does not read it.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from bamboo.config.parse import parse_job
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.named_files import read_bounded

VARIABLE = "BAMBOO_CONFIG"
SECRET_ARN = re.compile(r"arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:[\w/+=.@-]+")
"""A secret by reference."""


def account_file() -> Path:
    """The path of the account file, whether it exists or not."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # By its specification, a relative path in this variable is to be ignored.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".config"
    return root / "bamboo" / "cloud.toml"


def account_defaults() -> dict[str, Any]:
    """The keys of `[cloud]` that the account file gives; none if it does not exist.

    Raises InputError if it cannot be read, is not TOML, or has keys that a job file does not know.
    """
    path = account_file()
    if not path.exists():
        return {}
    tables = read_toml(
        path, remedy="make it readable, or write it again with `bamboo init --force`"
    )
    others = sorted(tables.keys() - {"cloud"})
    if others:
        raise InputError(
            f"{path}: holds {', '.join(others)}, and may hold [cloud] only; move that to the job"
        )
    parse_job(tables, file=str(path))
    return dict(tables.get("cloud", {}))


def account_job() -> JobConfig | None:
    """A job with only the account file's settings; None where no account is named."""
    if not account_file().exists():
        return None
    return parse_job({"cloud": {**account_defaults(), "provider": "ec2"}}, file=str(account_file()))


def read_toml(path: Path, *, remedy: str) -> dict[str, Any]:
    """The tables of a TOML file. Raises InputError, with `remedy` if it cannot be read."""
    try:
        # Editors on Windows begin a file with a byte order mark, which TOML does not allow.
        return tomllib.loads(read_bounded(path, encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        # Also text that is not UTF-8, an integer of thousands of digits, or a list nested as deep.
        line = " ".join(str(error).split())
        raise InputError(f"{path}: is not valid TOML: {line}; correct that place") from error
