"""What a model is built from: the local modules that are imported and the files that are opened
while it is built and run.

Rule: only what the user's code opens counts, as the frames that lead to it show; a file that it
wrote itself before is no part of the model.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from bamboo.errors import InputError
from bamboo.named_files import sha256_of
from bamboo.user_code.imports import imported_names, specs_along
from bamboo.user_code.loading import Entry, file_of, local_modules
from bamboo.user_code.local import is_local, place_of
from bamboo.user_code.manifest import CodeFile, Manifest
from bamboo.user_code.own_files import OwnFiles
from bamboo.user_code.watch import WRITES, listen

MOST_BYTES = 2 << 30
"""Of one file that a run takes along."""
_NUMERICS = frozenset({"torch"})
"""Distributions whose version stands in the numerics of a run already."""


class Recorder:
    """What was seen since it began."""

    def __init__(self) -> None:
        self._before = frozenset(sys.modules)
        self._read: dict[str, None] = {}
        self._folder = os.getcwd()
        self._own = OwnFiles()
        self._added_to: set[str] = set()
        """Files that were there, and that the code writes behind their end."""
        self._examined: dict[str, bool] = {}
        """Path -> whether it was there when it was first looked at."""
        self._environment: dict[str, str | None] = {}
        self._set: set[str] = set()
        self._refused: list[str] = []
        """What a run could not take along, a line each."""

    def read(self, name: str, value: str | None, frame: FrameType) -> str | None:
        """An environment variable, as it is here."""
        if name not in self._set:
            self._environment.setdefault(name, value)
        return value

    def wrote(self, name: str) -> None:
        """An environment variable that the code sets for itself."""
        self._set.add(name)

    def listed(self, frame: FrameType) -> None:
        """All environment variables: they are others on every node."""
        self._refused.append(
            f"{place_of(frame)} reads the whole environment, which is another one on each node; "
            "read the variables that it needs by their names"
        )

    def opened(self, path: str, flags: int, frame: FrameType) -> None:
        """A file, before it is opened."""
        if flags & WRITES:
            if flags & os.O_APPEND and path not in self._own and os.path.isfile(path):
                self._added_to.add(path)
            if path in self._read or (path in self._added_to and flags & os.O_RDWR):
                self._refuse_adding(path, frame)
            self._own.wrote(path)
        elif path in self._added_to:
            self._refuse_adding(path, frame)
        elif path not in self._own:
            there = self._examined.setdefault(path, os.path.lexists(path))
            if there:
                self._read[path] = None

    def _refuse_adding(self, path: str, frame: FrameType) -> None:
        self._refused.append(
            f"{place_of(frame)} writes {path}, which the model reads, or reads what it added to: "
            "what is in it would depend on how often the model was built; write elsewhere"
        )

    def loaded(self, path: str, frame: FrameType) -> None:
        """A library or a database: what it reads is not seen, but its own file goes along."""
        if path not in self._own:
            self._read[path] = None

    def listed_folder(self, path: str, frame: FrameType) -> None:
        """A folder was listed: only those of its files that are opened are copied, and the process
        that builds the model from the copy is told so."""

    def moved_folder(self, path: Any, frame: FrameType) -> Any:
        """It is where it is."""
        return path

    def made_folder(self, path: Any, *, anew: bool) -> bool:
        """A folder of its own: whether it was there before goes along."""
        full = os.path.abspath(os.fsdecode(path))
        self._examined.setdefault(full, not anew)
        if anew:
            self._own.made(full)
        else:
            self._own.wrote(full)
        return False

    def renamed(self, path: str, to: str) -> None:
        """What was the code's own is so by its new name."""
        self._own.renamed(path, to)

    def entered(self, path: Any, frame: FrameType) -> Any:
        """It is where it is; whether it is there goes along."""
        return self.moved(path, examined=True, frame=frame)

    def working_folder(self, here: str) -> str:
        """The one that it is: that of the launch goes along."""
        return here

    def moved(self, path: Any, *, examined: bool, frame: FrameType) -> Any:
        """Every file is where it is; whether there is one goes along."""
        full = os.path.abspath(os.fsdecode(path))
        if examined and full in self._added_to:
            self._refuse_adding(full, frame)
        if examined and is_local(full):
            there = os.path.lexists(full)
            if not there or full not in self._own:
                self._examined.setdefault(full, there)
        return path

    def manifest(self, entry: Entry) -> Manifest:
        """All that the model in this file was built from, read now. Raises InputError for what
        cannot be taken along."""
        if self._refused:
            raise InputError(self._refused[0])
        modules = local_modules(self._before)
        places = _Places(entry)
        for name, module in modules.items():
            places.module(name, file_of(module) or "")
        for name, file in _imported_later(modules):
            places.module(name, file)
        for path in self._read:
            if os.path.isfile(path):
                places.opened(path)
        files = sorted(places.files.items())
        there = sorted(p for p, there in self._examined.items() if there and p not in places.files)
        return Manifest(
            entry=entry.name,
            entry_path=places.files[str(entry.file)],
            search=places.search(),
            links=places.links(),
            folder=self._folder,
            files=tuple(sorted((_read(o, p) for o, p in files), key=lambda file: file.path)),
            requires=_requires(modules, self._before),
            environment=dict(sorted(self._environment.items())),
            absent=tuple(sorted(path for path, there in self._examined.items() if not there)),
            present={path: _status_of(path) for path in there if os.path.lexists(path)},
        )


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """See what is imported, opened and read of the environment in this block, in this process.
    Blocks do not nest."""
    recorder = Recorder()
    listen(recorder)
    try:
        yield recorder
    finally:
        listen(None)


@contextlib.contextmanager
def importing_for_bamboo() -> Iterator[None]:
    """What is first imported in this block is nothing that the user's code requires, unless its
    sources name it."""
    before = set(sys.modules)
    try:
        yield
    finally:
        _for_bamboo.update(sys.modules.keys() - before)


_for_bamboo: set[str] = set()


class _Places:
    """Where each file lies in the bundle: below the root that it is imported from."""

    def __init__(self, entry: Entry) -> None:
        self.files: dict[str, str] = {}
        """Origin -> path in the bundle."""
        self._entry = entry
        # The outermost folder first, so that a package's files stay together.
        self._roots: list[str] = [str(entry.search[-1])]
        self._imported_from: set[str] = set(self._roots)
        self.module(entry.name, str(entry.file))

    def module(self, name: str, file: str) -> None:
        """Place a module's file."""
        if not os.path.isfile(file):
            raise InputError(
                f"the module {name} comes from {file}, which is no file that a run could take "
                "along; unpack it into a folder"
            )
        root = self._root_over(file) or _root_by_name(name, file)
        if root is None:  # it was loaded by its path, under a name of the code's choice
            self.opened(file)
            return
        self._imported_from.add(root)
        self._place(file, root, file)

    def opened(self, file: str) -> None:
        """Place a file that the model reads."""
        root = self._root_over(file)
        if root is None:
            # What lies behind a link may be found by where that leads.
            for folder, real in self.links().items():
                if file.startswith(real + os.sep):
                    self._place(file, folder, folder + file.removeprefix(real))
                    return
            root = os.path.dirname(file)
        self._place(file, root, file)

    def links(self) -> dict[str, str]:
        """Root -> where it leads, of those that lie behind a link."""
        leads = {root: os.path.realpath(root) for root in self._roots}
        return {root: real for root, real in leads.items() if real != root}

    def search(self) -> tuple[str, ...]:
        """The folders of the bundle that stand for those that modules were found in."""
        mine = [str(folder) for folder in self._entry.search]
        wanted = dict.fromkeys(
            [*mine, *map(os.path.abspath, sys.path), *sorted(self._imported_from)]
        )
        found: dict[str, None] = {}
        for folder in wanted:
            root = self._root_over(os.path.join(folder, "x"))
            if root is not None:
                inner = os.path.relpath(folder, root)
                number = str(self._roots.index(root))
                found[number if inner == "." else f"{number}/{Path(inner).as_posix()}"] = None
        there = {parent for path in self.files.values() for parent in _parents(path)}
        return tuple(path for path in found if path in there)

    def _place(self, file: str, root: str, place: str) -> None:
        if root not in self._roots:
            self._roots.append(root)
        inner = Path(os.path.relpath(place, root)).as_posix()
        self.files[file] = f"{self._roots.index(root)}/{inner}"

    def _root_over(self, file: str) -> str | None:
        return next((root for root in self._roots if file.startswith(root + os.sep)), None)


def _parents(path: str) -> Iterator[str]:
    parts = path.split("/")[:-1]
    for end in range(1, len(parts) + 1):
        yield "/".join(parts[:end])


def _root_by_name(name: str, file: str) -> str | None:
    """The folder from which a module of this name is imported, by its file's path."""
    path, parts = Path(file), tuple(name.split("."))
    stem = path.name.partition(".")[0]
    location = path.parent if stem == "__init__" else path.with_name(stem)
    if location.parts[-len(parts) :] != parts:
        return None
    return str(location.parents[len(parts) - 1])


def _imported_later(modules: Mapping[str, ModuleType]) -> Iterator[tuple[str, str]]:
    """(Name, file) of the local modules that these would import, and those again, that were not."""
    waiting = [
        (name, file_of(module) or "", _package_of(module)) for name, module in modules.items()
    ]
    seen = {name for name, _, _ in waiting}
    while waiting:
        _, file, package = waiting.pop()
        if not file.endswith(".py"):
            continue
        for wanted in imported_names(Path(file).read_bytes(), package=package):
            for spec in specs_along(wanted):
                found = os.path.normpath(spec.origin or "") if spec.has_location else None
                if spec.name in seen or found is None or not is_local(found):
                    continue
                seen.add(spec.name)
                yield spec.name, found
                is_package = spec.submodule_search_locations is not None
                above = spec.name if is_package else spec.name.rpartition(".")[0]
                waiting.append((spec.name, found, above))


def _package_of(module: ModuleType) -> str:
    return getattr(module, "__package__", None) or ""


def _requires(modules: Mapping[str, ModuleType], before: frozenset[str]) -> dict[str, str]:
    """Distribution -> version of what is installed and imported by the user's code: named in its
    sources, or imported since the recording began."""
    since = sys.modules.keys() - before - _for_bamboo
    named: set[str] = {name.partition(".")[0] for name in since}
    for module in modules.values():
        file = file_of(module) or ""
        if file.endswith(".py"):
            names = imported_names(Path(file).read_bytes(), package=_package_of(module))
            named |= {name.partition(".")[0] for name in names}
    named -= {name.partition(".")[0] for name in modules}
    named = {name for name in named if _is_installed(name)}
    distributions = metadata.packages_distributions() if named else {}
    found = {one for name in named for one in distributions.get(name, ())}
    return {name: metadata.version(name) for name in sorted(found - _NUMERICS - {"bamboo-train"})}


def _status_of(path: str) -> tuple[int, ...]:
    s = os.stat(path) if os.path.exists(path) else os.lstat(path)
    return s.st_mode, s.st_ino, s.st_dev, s.st_size, s.st_mtime_ns


def _is_installed(name: str) -> bool:
    if name in sys.stdlib_module_names or name.startswith("_"):
        return False
    module = sys.modules.get(name)
    file = None if module is None else file_of(module)
    return file is None or not is_local(file)


def _read(origin: str, path: str) -> CodeFile:
    size = os.stat(origin).st_size
    if size > MOST_BYTES:
        raise InputError(
            f"{origin} has {size:,} bytes, and the model reads it while it is built: a run takes "
            f"such files along up to {MOST_BYTES:,} bytes; read a smaller one"
        )
    return CodeFile(path=path, origin=origin, sha256=sha256_of(Path(origin)), bytes=size)
