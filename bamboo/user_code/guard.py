"""While a model is loaded from a run's code: local code from elsewhere is refused by name, and a
file that the model opens by its old path is read from the bundle.

Rule: what the run took along is found first; what it did not take along is not found at all. This
holds for the rest of the process, so also for what a forward imports or opens.
"""

import errno
import importlib.abc
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from bamboo.errors import InputError
from bamboo.user_code.loading import SourceOnly
from bamboo.user_code.local import is_local, place_of, user_frame
from bamboo.user_code.manifest import Manifest
from bamboo.user_code.own_files import OwnFiles
from bamboo.user_code.watch import WRITES, listen


class NotTakenAlong(InputError):
    """Code or a file of the user's that the run did not take along at launch. It is no ImportError
    and no OSError: code that expects those must not go on without what it had at launch."""


def guarded(folder: Path, manifest: Manifest) -> None:
    """From now on this process knows the user's code from this bundle alone. A later call takes the
    place of this one."""
    global _guard
    unguarded()
    _guard = _Guard(folder, manifest)
    sys.meta_path.insert(0, _guard)
    listen(_guard)


def unguarded() -> None:
    """The process may load local code again; for tests, which load several models."""
    global _guard
    if _guard is not None:
        sys.meta_path.remove(_guard)
        listen(None)
        _guard = None


_guard: "_Guard | None" = None


class _Guard(importlib.abc.MetaPathFinder):
    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = str(folder)
        self._working_folder = manifest.folder
        self._search = [str(folder / path) for path in manifest.search]
        self._links = manifest.links
        self._by_origin: dict[str, str] = {}
        self._copied_folders: dict[str, str] = {}
        self._roots: dict[str, str] = {}
        for file in manifest.files:
            self._copied(self._named(file.origin), file.path)
        self._own = OwnFiles()
        self._environment = manifest.environment
        self._absent = {self._named(path) for path in manifest.absent}
        self._present = {self._named(path): was for path, was in manifest.present.items()}
        self._set: set[str] = set()

    # ------------------------------------------------------------ imports

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None:
            own = PathFinder.find_spec(name, self._search, target)
            # A folder without a file of its own is a package only where nothing else has its name.
            if own is not None and own.has_location:
                return self._checked(name, own)
            spec = self._found_by_others(name, path, target)
            if own is not None and spec is not None and spec.loader is None:
                # Parts of a package without a file of its own: those that came along come first.
                spec.submodule_search_locations = [
                    *(own.submodule_search_locations or ()),
                    *(spec.submodule_search_locations or ()),
                ]
            return spec
        return self._found_by_others(name, path, target)

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None and self._is_mine(spec.origin or ""):
                return self._checked(name, spec)
            if spec is not None:
                self._refuse_elsewhere(name, spec)
                return spec
        return None

    def _checked(self, name: str, spec: ModuleSpec) -> ModuleSpec:
        """A module of the bundle: one that the manifest has, and never what was compiled of it."""
        origin = os.path.normpath(spec.origin or "")
        if origin not in self._by_origin.values():
            raise NotTakenAlong(
                f"{origin} is no file that the run took along at launch, and {name} would be "
                "loaded from it; remove it"
            )
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = SourceOnly(name, origin)
            spec.cached = None
        return spec

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

    def working_folder(self, here: str) -> str:
        """That of the launch, which need not be on this machine, or the one entered since."""
        return self._working_folder

    def entered(self, path: Any, frame: FrameType) -> Any:
        """The copy of a folder, where there is one; a folder that only was there at launch changes
        what relative paths mean, and nothing else."""
        full = self._at_launch(path)
        if full in self._absent:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full)
        there = self._copied_folders.get(full, full)
        if not os.path.isdir(there) and full in self._present:
            there = os.curdir
        if os.path.isdir(there):
            self._working_folder = full
        return there

    def renamed(self, path: str, to: str) -> None:
        """What was the code's own is so by its new name."""
        self._own.renamed(path, to)

    def moved_folder(self, path: Any, frame: FrameType) -> Any:
        """The copy of a folder."""
        full = self._at_launch(path)
        if full in self._own or os.path.abspath(os.fsdecode(path)) in self._own:
            return path
        found = self._copied_folders.get(full)
        if found is not None:
            return os.fsencode(found) if isinstance(path, bytes) else found
        if is_local(full):
            self._refuse_folder(full, frame)
        return path

    def moved(self, path: Any, *, examined: bool, frame: FrameType) -> Any:
        """Where a file is looked for. What was not there at launch is not there now, but for what
        the code has written since."""
        name, full = os.fsdecode(path), self._at_launch(path)
        if full in self._own or os.path.abspath(name) in self._own:
            return path
        found = self._by_origin.get(full)
        if found is not None and found != name:
            return os.fsencode(found) if isinstance(path, bytes) else found
        if not examined or found is not None:
            return path
        return self._as_at_launch(full, os.path.abspath(name), frame)

    def made_folder(self, path: Any, *, anew: bool) -> bool:
        """One that was not there at launch may be there by now: the launch has made it, or another
        process of the run."""
        here, full = os.path.abspath(os.fsdecode(path)), self._at_launch(path)
        is_good = anew or (full in self._absent and here not in self._own)
        if anew:
            self._own.made(here)
        elif is_good:
            self._own.wrote(here)
        return is_good

    def _at_launch(self, path: Any) -> str:
        """The absolute path that this one was at launch, of a file that was not written since."""
        full = os.path.join(self._working_folder, os.fsdecode(path))
        if full.startswith(self._folder + os.sep):
            # `..` may lead out of the bundle, to where another folder lay beside this one.
            number, _, rest = full[len(self._folder) + 1 :].partition(os.sep)
            root = self._roots.get(number)
            full = os.path.join(root, rest) if root else self._above_first(number, rest)
        return self._named(os.path.normpath(full))

    def _named(self, path: str) -> str:
        """The one name that a path has here, though it may lie behind a link."""
        for folder, real in self._links.items():
            if path == real or path.startswith(real + os.sep):
                return folder + path.removeprefix(real)
        return path

    def _copied(self, origin: str, path: str) -> None:
        """A file that was there at launch lies here in the bundle, and so do its folders."""
        self._by_origin[origin] = os.path.join(self._folder, path)
        number, _, rest = path.partition("/")
        self._roots[number] = origin.removesuffix(rest)
        while path := os.path.dirname(path):
            origin = os.path.dirname(origin)
            self._copied_folders[origin] = os.path.join(self._folder, path)

    def _as_at_launch(self, path: str, here: str, frame: FrameType) -> str | os.stat_result:
        """Of a path that is only looked at, `path` by its place at launch, `here` by its place now:
        what to look at, or what it was at launch. Raises FileNotFoundError where there was
        nothing."""
        # A path is made absolute by a look at each folder that it leads through.
        leads_here = self._folder.startswith(here.rstrip(os.sep) + os.sep)
        if leads_here or (self._is_mine(here) and os.path.lexists(here)) or not is_local(path):
            return here
        if path in self._absent:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if path in self._present:
            return _status_of(*self._present[path])
        raise NotTakenAlong(
            f"{place_of(frame)} looks whether {path} is there, which the model did not do at "
            "launch; look while the model is built"
        )

    def _above_first(self, *parts: str) -> str:
        return os.path.join(os.path.dirname(self._roots["0"].rstrip(os.sep)), *parts)

    def opened(self, path: str, flags: int, frame: FrameType) -> None:
        """Refuse a local file that the run did not take along."""
        if flags & WRITES:
            if path in self._by_origin.values():
                raise NotTakenAlong(
                    f"{place_of(frame)} writes {path}, which is part of the run's code; write "
                    "elsewhere"
                )
            self._own.wrote(path)
            return
        if path in self._own or self._is_mine(path):
            return
        if path in self._absent:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if os.path.isfile(path):
            self._refuse_file(path, "opens", frame)

    def loaded(self, path: str, frame: FrameType) -> None:
        """The same for what is opened below Python."""
        if path not in self._own and not self._is_mine(path) and os.path.isfile(path):
            self._refuse_file(path, "loads", frame)

    def listed_folder(self, path: str, frame: FrameType) -> None:
        """Refuse a folder outside: its files are others at another time."""
        if not self._is_mine(path) and path not in self._own:
            self._refuse_folder(path, frame)

    def _refuse_folder(self, path: str, frame: FrameType) -> NoReturn:
        raise NotTakenAlong(
            f"{place_of(frame)} lists the folder {path}: a run takes along the files that the "
            "model opens, not what else lies beside them; name the files"
        )

    def _refuse_file(self, path: str, does: str, frame: FrameType) -> None:
        raise NotTakenAlong(
            f"{place_of(frame)} {does} {path}, which the run did not take along: the model did not "
            "open it at launch; open it by its name while the model is built"
        )

    def _is_mine(self, path: str) -> bool:
        path = os.path.normpath(path)
        return path == self._folder or path.startswith(self._folder + os.sep)


def _status_of(mode: int, inode: int, device: int, size: int, changed_ns: int) -> os.stat_result:
    times_s = (changed_ns // 10**9,) * 3
    named_ns = {f"st_{which}time_ns": changed_ns for which in "amc"}
    # As the interpreter reckons it: a quotient may differ in its last bit.
    changed_s = changed_ns // 10**9 + 1e-9 * (changed_ns % 10**9)
    named_s = {f"st_{which}time": changed_s for which in "amc"}
    first = (mode, inode, device, 1, 0, 0, size, *times_s)
    return os.stat_result(first, {**named_ns, **named_s})
