"""While a model is loaded from a run's code: local code from elsewhere is refused by name, and a
file that the model opens by its old path is read from the bundle.

Rule: what the run took along is found first; what it did not take along is not found at all. This
holds for the rest of the process, so also for what a forward imports or opens.
"""

import builtins
import functools
import importlib.abc
import io
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from bamboo.errors import InputError
from bamboo.user_code import environment
from bamboo.user_code.local import is_local, place_of, user_frame
from bamboo.user_code.manifest import Manifest

_MODULES = (".py", ".so")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class NotTakenAlong(InputError):
    """Code or a file of the user's that the run did not take along at launch. It is no ImportError
    and no OSError: code that expects those must not go on without what it had at launch."""


def guarded(folder: Path, manifest: Manifest) -> None:
    """From now on this process knows the user's code from this bundle alone. A later call takes the
    place of this one."""
    global _guard, _hooked
    unguarded()
    _guard = _Guard(folder, manifest)
    sys.meta_path.insert(0, _guard)
    environment.ask(_guard)
    if not _hooked:
        _hooked = True
        sys.addaudithook(_saw)
    if any(not file.path.endswith(_MODULES) for file in manifest.files):
        _redirect_opens()


def unguarded() -> None:
    """The process may load local code again; for tests, which load several models."""
    global _guard
    if _guard is not None:
        sys.meta_path.remove(_guard)
        environment.ask(None)
        _guard = None


_guard: "_Guard | None" = None
_hooked = False
_redirects = False


class _Guard(importlib.abc.MetaPathFinder):
    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = str(folder)
        self._launch_folder = manifest.folder
        self._search = [str(folder / path) for path in manifest.search]
        self._by_origin = {file.origin: str(folder / file.path) for file in manifest.files}
        self._roots = {
            file.path.partition("/")[0]: file.origin.removesuffix(file.path.partition("/")[2])
            for file in manifest.files
        }
        self._written: set[str] = set()
        self._environment = manifest.environment
        self._set: set[str] = set()

    # ------------------------------------------------------------ imports

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None:
            own = PathFinder.find_spec(name, self._search, target)
            if own is not None:
                return own
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                self._refuse_elsewhere(name, spec)
                return spec
        return None

    def _refuse_elsewhere(self, name: str, spec: ModuleSpec) -> None:
        origin = spec.origin
        if origin is None or not os.path.isabs(origin) or self._is_mine(origin):
            return
        if is_local(origin):
            where = place_of(user_frame(sys._getframe(1)))
            raise NotTakenAlong(
                f"{where} imports {name} from {origin}, which the run did not take along: it was "
                "neither imported nor named in an import statement at launch; import it at the top "
                "of the model's file"
            )

    # ------------------------------------------------------------ the environment

    def read(self, name: str, value: str | None, frame: FrameType) -> str | None:
        """A variable as it was at launch, or as the code has set it since."""
        if name in self._set:
            return value
        if name not in self._environment:
            raise NotTakenAlong(
                f"{place_of(frame)} reads the environment variable {name}, which it did not read "
                "at launch, so its value was not taken along; read it while the model is built"
            )
        return self._environment[name]

    def wrote(self, name: str) -> None:
        self._set.add(name)

    def listed(self, frame: FrameType) -> None:
        raise NotTakenAlong(
            f"{place_of(frame)} reads the whole environment, which it did not read at launch; read "
            "the variables that it needs by their names, while the model is built"
        )

    # ------------------------------------------------------------ files

    def moved(self, path: Any) -> Any:
        """Where a file is read from; what the run did not take along stays as it is."""
        if not isinstance(path, str | bytes | os.PathLike):
            return path
        name = os.fsdecode(path)
        full = os.path.join(self._launch_folder, name)
        if full.startswith(self._folder + os.sep):
            # `..` may lead out of the bundle, to where another folder lay beside this one.
            number, _, rest = full[len(self._folder) + 1 :].partition(os.sep)
            root = self._roots.get(number)
            before = os.path.join(root, rest) if root else self._above_first(number, rest)
            full = before
        found = self._by_origin.get(os.path.normpath(full))
        if found is None or found == name:
            return path
        return os.fsencode(found) if isinstance(path, bytes) else found

    def _above_first(self, *parts: str) -> str:
        return os.path.join(os.path.dirname(self._roots["0"].rstrip(os.sep)), *parts)

    def saw_open(self, path: object, flags: int) -> None:
        """Refuse a local file that the user's code opens and the run did not take along."""
        if not isinstance(path, str | bytes | os.PathLike):
            return
        full = os.path.abspath(os.fsdecode(path))
        frame = user_frame(sys._getframe(2)) if is_local(full) else None
        if frame is None:
            return
        if flags & _WRITES:
            if full in self._by_origin.values():
                raise NotTakenAlong(
                    f"{place_of(frame)} writes {full}, which is part of the run's code; write "
                    "elsewhere"
                )
            self._written.add(full)
        elif self._is_mine(full):
            return
        elif full not in self._written and os.path.isfile(full):
            raise NotTakenAlong(
                f"{place_of(frame)} opens {full}, which the run did not take along: the model did "
                "not open it at launch; open it while the model is built"
            )

    def _is_mine(self, path: str) -> bool:
        return os.path.normpath(path).startswith(self._folder + os.sep)


def _saw(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _guard is not None:
        _guard.saw_open(arguments[0], int(arguments[2] or 0))


def _redirect_opens() -> None:
    """Python's own ways to a file ask first where it lies. What opens files below Python, as some
    libraries do, is not seen."""
    global _redirects
    if _redirects:
        return
    _redirects = True
    builtins.open = io.open = _redirected(builtins.open, "file")
    for name in ("open", "stat"):
        plain = getattr(os, name)
        redirected = _redirected(plain, "path")
        for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
            if plain in able:
                able.add(redirected)
        setattr(os, name, redirected)


def _redirected(call: Callable[..., Any], keyword: str) -> Callable[..., Any]:
    @functools.wraps(call)
    def at_its_place(*arguments: Any, **named: Any) -> Any:
        if _guard is not None and user_frame(sys._getframe(1)) is not None:
            if arguments:
                arguments = (_guard.moved(arguments[0]), *arguments[1:])
            elif keyword in named:
                named = {**named, keyword: _guard.moved(named[keyword])}
        return call(*arguments, **named)

    return at_its_place
