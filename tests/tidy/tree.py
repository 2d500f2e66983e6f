"""The files that tidiness is asked of: what git tracks, or would track, read and parsed once."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from bamboo import loading

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("bamboo/", "cloud/", "cli/")
IGNORED = {".git", ".venv", ".hypothesis", ".terraform", "__pycache__", "build", "dist"}
TEXT_SUFFIXES = (".py", ".toml", ".md", ".sh", ".service", ".tf", ".hcl", ".txt", ".lua", ".yml")


@dataclass(frozen=True)
class Source:
    """One file, by its path from the root with forward slashes; `tree` only for Python."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Raises SyntaxError, which names the file."""
        return ast.parse(self.text, filename=self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree, walked once for all rules."""
        return tuple(ast.walk(self.tree))

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def is_product(self) -> bool:
        return self.path.startswith(PRODUCT)


@cache
def paths() -> tuple[str, ...]:
    """Tracked files and new ones that are not ignored, as git sees them; none that was deleted.

    In an unpacked archive, which has no git, every file outside of the ignored folders.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        timeout=30,
    )
    if listed.returncode != 0:
        return tuple(sorted(_walk(ROOT)))
    names = {name for name in listed.stdout.decode().split("\0") if name}
    return tuple(sorted(name for name in names if (ROOT / name).is_file()))


def _walk(folder: Path) -> Iterator[str]:
    for path in folder.iterdir():
        if path.is_file():
            yield path.relative_to(ROOT).as_posix()
        elif (
            path != ROOT / "runs"
            and path.name not in IGNORED
            and not path.name.endswith((".egg-info", "_cache"))
        ):
            yield from _walk(path)


@cache
def text_sources() -> tuple[Source, ...]:
    """Every text file of the project, Python included."""
    names = ("Makefile", ".ci/run")
    return tuple(
        Source(p, (ROOT / p).read_text(encoding="utf-8"))
        for p in paths()
        if p.endswith(TEXT_SUFFIXES) or p in names
    )


@cache
def python_sources() -> tuple[Source, ...]:
    """Every Python file of the project, parsed."""
    found = tuple(s for s in text_sources() if s.path.endswith(".py"))
    with loading.for_good():  # millions of nodes, which stay: looking for cycles takes most of it
        for source in found:
            assert source.tree
    return found
