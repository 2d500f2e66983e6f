"""The user's account as `bamboo init` wrote it down: what `[cloud]` is of a job on EC2 that does
not say it itself.

    $BAMBOO_CONFIG, or $XDG_CONFIG_HOME/bamboo/cloud.toml, or ~/.config/bamboo/cloud.toml

Rule: it has the section `[cloud]` with keys of the job file and nothing else; it names secrets, and
holds none. A local job does not look at it.
"""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from bamboo.config.parse import parse_job
from bamboo.errors import InputError
from bamboo.named_files import read_bounded

VARIABLE = "BAMBOO_CONFIG"
SECRET_ARN = re.compile(r"arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:[\w/+=.@-]+")
"""A secret by reference."""


def account_file() -> Path:
    """Where the account stands, whether there is such a file or not."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return Path(named).absolute()
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # By its specification a relative one is to be taken as none.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".config"
    return root / "bamboo" / "cloud.toml"


def account_defaults() -> dict[str, Any]:
    """The keys of `[cloud]` that the account file gives; none where there is no such file.

    Raises InputError: it cannot be read, is no TOML, or names what a job file does not know.
    """
    path = account_file()
    if not path.exists():
        return {}
    tables = read_toml(path, remedy="make it readable, or write it anew with `bamboo init --force`")
    others = sorted(tables.keys() - {"cloud"})
    if others:
        raise InputError(
            f"{path}: holds {', '.join(others)}, and may hold [cloud] only; move that to the job"
        )
    parse_job(tables, file=str(path))
    return dict(tables.get("cloud", {}))


def read_toml(path: Path, *, remedy: str) -> dict[str, Any]:
    """The tables of a TOML file. Raises InputError, with `remedy` where it cannot be read."""
    try:
        # Editors on Windows begin a file with a mark, which TOML has no place for.
        return tomllib.loads(read_bounded(path, encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; {remedy}") from error
    except (ValueError, RecursionError) as error:
        # Also text that is not UTF-8, an integer of thousands of digits, a list as deep.
        line = " ".join(str(error).split())
        raise InputError(f"{path}: is not valid TOML: {line}; correct that place") from error
