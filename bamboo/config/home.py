"""The folder of a user's runs, profiles and prices."""

import os
from pathlib import Path


def home() -> Path:
    """`$BAMBOO_HOME`, by default `./runs`."""
    return Path(os.path.realpath(os.environ.get("BAMBOO_HOME") or "runs"))
