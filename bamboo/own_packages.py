"""Finds `cli` and `cloud`, Bamboo's packages beside `bamboo`.

Rule: an installed distribution takes no name but `bamboo`. Its build puts these two below
`bamboo/own` (`setup.py`), where no other import finds them; a checkout has them beside `bamboo`.
Every process of Bamboo starts in `bamboo.loading`, which makes them importable from there first. So
a user's own `cli` neither shadows ours nor is shadowed by it. A program that calls `bamboo.api`
gets `cloud` in the same way, and keeps a `cli` of its own.
"""

import importlib.abc
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from bamboo.errors import InputError

NAMES = ("cli", "cloud")
BELOW = "bamboo/own/"
"""The prefix of their paths in a wheel."""
_HERE = Path(__file__).resolve().parent
FOLDER = _HERE / "own" if (_HERE / "own").is_dir() else _HERE.parent


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.names:
            return None
        return PathFinder.find_spec(name, [str(FOLDER)], target)


def find_own(names: Sequence[str] = NAMES) -> None:
    """From now on `import cli` and `import cloud`, or those of `names`, find Bamboo's packages in
    this process."""
    found = [one for one in sys.meta_path if isinstance(one, _Finder) and one.names >= set(names)]
    if not found:
        sys.meta_path.insert(0, _Finder(names))


@cache
def find_cloud() -> None:
    """From now on this process, which may be a user's program, finds Bamboo's own package `cloud`.
    Raises InputError where it has imported another one of that name."""
    find_own(("cloud",))
    module, ours = sys.modules.get("cloud"), FOLDER / "cloud"
    if module is None or Path(module.__file__ or "").resolve().is_relative_to(ours):
        return
    raise InputError(
        f"this program has imported a package 'cloud' that is not Bamboo's, {module.__file__}; "
        "rename it, or use Bamboo from a process of its own"
    )
