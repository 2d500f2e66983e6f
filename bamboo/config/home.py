"""The folder of a user's runs, profiles and prices."""

import os
from pathlib import Path

from bamboo.errors import InputError


def home() -> Path:
    """`$BAMBOO_HOME`, by default `./runs`; it need not exist. Raises InputError where that cannot
    be known: its name is too long, we may not look there, or the working directory is gone."""
    named = os.environ.get("BAMBOO_HOME") or "./runs"
    try:
        path = Path(os.path.realpath(named))
        path.exists()
    except OSError as error:
        raise InputError(
            f"the folder of runs {named} cannot be reached: {error.strerror}; set BAMBOO_HOME to a "
            "folder that you may write"
        ) from error
    return path
