"""Every test of this room leaves the process as it found it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.user_code.guard import unguarded
from bamboo.user_code.loading import forget_loaded
from bamboo.user_code.local import leave_data


@pytest.fixture(autouse=True)
def _left_as_it_was(tmp_path: Path) -> Iterator[None]:
    path, here = list(sys.path), os.getcwd()
    os.chdir(tmp_path)
    yield
    os.chdir(here)
    unguarded()
    forget_loaded()
    leave_data(None)
    sys.path[:] = path
