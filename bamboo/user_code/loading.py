"""A model file, imported as Python would import it: under its own name, registered, with its folder
on the path, as part of its package where it is in one.

Rule: in one process a model file is executed again each time that it is loaded, together with all
local modules that came with it: nobody gets what an earlier load left behind.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from bamboo.errors import InputError
from bamboo.own_packages import NAMES
from bamboo.user_code.imports import imported_names
from bamboo.user_code.local import is_local

PACKAGE_FILE = "__init__.py"


class SourceOnly(SourceFileLoader):
    """Compiles a source each time: bytecode that lies beside it has no digest."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model file as a module."""

    name: str
    """`model`, or `package.model` where its folder is a package."""
    file: Path
    search: tuple[Path, ...]
    """What is put in front of `sys.path`: its folder, and the one that its package lies in."""


def entry_of(file: Path) -> Entry:
    """How Python would import this file."""
    file = Path(os.path.abspath(file))
    parts, root = [file.stem], file.parent
    while (root / PACKAGE_FILE).is_file() and root.parent != root:
        parts.insert(0, root.name)
        root = root.parent
    return Entry(name=".".join(parts), file=file, search=tuple(dict.fromkeys((file.parent, root))))


def load_entry(entry: Entry) -> ModuleType:
    """Execute the file as the module that it is. Raises what its code raises, and ImportError when
    it is no Python file, OSError when it is not there."""
    entry.file.stat()
    _check_names(entry)
    forget_loaded()
    _put_on_path(entry.search)
    if _may_be_named(entry):
        module = importlib.import_module(entry.name)
        if _is_file_of(module, entry.file):
            return module
    # Python has another module of this name, say one of its own library.
    name = f"bamboo_user_{entry.file.stem}"
    loader = SourceOnly(name, str(entry.file))
    spec = importlib.util.spec_from_file_location(name, entry.file, loader=loader)
    if spec is None or spec.loader is None:
        raise ImportError(f"{entry.file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _check_names(entry: Entry) -> None:
    """A process that trains has Bamboo's packages loaded: under their names the user's would not be
    what is found. Raises InputError where the model's file imports one of its own, or a module
    beside it that it imports."""
    todo, seen = [(entry.file, entry.name.rpartition(".")[0])], {entry.file}
    while todo:
        file, package = todo.pop()
        for name in imported_names(file.read_bytes(), package=package):
            for found, origin, below in _modules_along(name, entry.search):
                if not is_local(str(origin)):
                    continue
                if found in NAMES:
                    raise InputError(
                        f"{file} imports {found} from {origin}, and Bamboo has a package of "
                        "this name in each process that trains; rename yours"
                    )
                if origin not in seen:
                    seen.add(origin)
                    todo.append((origin, below))


def _modules_along(name: str, search: Sequence[Path]) -> Iterator[tuple[str, Path, str]]:
    """Of a dotted name and of the packages above it, as far as they lie in these folders: name,
    file, and what its relative imports are relative to."""
    path, above = [str(folder) for folder in search], ""
    for part in name.split("."):
        # By its last part alone: of a dotted name Python would have the packages above imported.
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return
        found = f"{above}.{part}".lstrip(".")
        is_package = spec.submodule_search_locations is not None
        yield found, Path(spec.origin or ""), found if is_package else above
        if not is_package:
            return
        path, above = [os.path.join(folder, part) for folder in path], found


def _may_be_named(entry: Entry) -> bool:
    there = sys.modules.get(entry.name)
    return "." not in entry.file.stem and (there is None or _is_file_of(there, entry.file))


def local_modules(before: frozenset[str]) -> dict[str, ModuleType]:
    """Name -> module, of the user's that were imported since these names were all."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name not in before and is_local(file_of(module) or "")
    }


def file_of(module: object) -> str | None:
    """The absolute path of a module's source, without `..`; None: it has none, as one that was made
    up."""
    file = getattr(module, "__file__", None)
    return os.path.normpath(file) if isinstance(file, str) and os.path.isabs(file) else None


def forget_loaded() -> None:
    """Take back what the last load put into `sys.path` and `sys.modules`: of the modules that came
    since, the user's own below its folders."""
    folders = tuple(path + os.sep for path in _on_path)
    found = [
        name
        for name, module in list(sys.modules.items())
        if name not in _before
        and any(p.startswith(folders) and is_local(p) for p in _places_of(module))
    ]
    for name in found if folders else ():
        del sys.modules[name]
    for path in _on_path:
        if path in sys.path:
            sys.path.remove(path)
    _on_path.clear()
    importlib.invalidate_caches()


_on_path: list[str] = []
_before: frozenset[str] = frozenset()


def _put_on_path(folders: Sequence[Path]) -> None:
    global _before
    _before = frozenset(sys.modules)
    for folder in reversed(folders):
        sys.path.insert(0, str(folder))
        _on_path.append(str(folder))


def _places_of(module: ModuleType) -> list[str]:
    """Its file, or the folders of a package that has none."""
    file = file_of(module)
    if file is not None:
        return [file]
    try:
        return [str(path) for path in vars(module).get("__path__") or ()]
    except (TypeError, KeyError):  # of a made-up module, or of a package whose parent has gone
        return []


def _is_file_of(module: ModuleType, file: Path) -> bool:
    found = file_of(module)
    return found is not None and os.path.realpath(found) == os.path.realpath(file)
