"""The modules that a source names in its import statements, also those inside of its functions: a
run takes along what it will import later, too.

Rule: nothing is executed to find out. A name that is put together while the program runs is not
seen; its import in a worker is refused by name.
"""

import ast
import importlib.machinery
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec


def imported_names(source: bytes, *, package: str) -> list[str]:
    """Absolute dotted names, each followed by what may be a module below it; `package` is what a
    relative import is relative to. A source that does not parse names nothing."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            if base is not None:
                names += [base] if base else []
                names += [f"{base}.{a.name}".lstrip(".") for a in node.names if a.name != "*"]
    return list(dict.fromkeys(names))


def _base(node: ast.ImportFrom, package: str) -> str | None:
    """The module that names are taken from; None: it lies above the package."""
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if node.level > len(parts):
        return None
    kept = parts[: len(parts) - (node.level - 1)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def specs_along(name: str) -> Iterator[ModuleSpec]:
    """The specs of a dotted name and of the packages above it, as far as there are any, found
    without importing."""
    path: Sequence[str] | None = None
    prefix = ""
    for part in name.split("."):
        prefix = f"{prefix}.{part}".lstrip(".")
        spec = _find(prefix, path)
        if spec is None:
            return
        yield spec
        path = spec.submodule_search_locations
        if path is None:
            return
        path = list(path)


def _find(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None or finder is importlib.machinery.BuiltinImporter:
            continue
        try:
            spec: ModuleSpec | None = find(name, path)
        except (ImportError, AttributeError, ValueError):
            continue
        if spec is not None:
            return spec
    return None
