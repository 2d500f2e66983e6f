"""The files that tidiness is asked of: what git tracks, or would track, read and parsed once."""

import ast
import subprocess
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("bamboo/", "cloud/", "cli/")
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

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def is_product(self) -> bool:
        return self.path.startswith(PRODUCT)

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")


@cache
def paths() -> tuple[str, ...]:
    """Tracked files and new ones that are not ignored, as git sees them; none that was deleted."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=30,
    ).stdout.decode()
    return tuple(sorted({p for p in listed.split("\0") if p and (ROOT / p).is_file()}))


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
    """Every Python file of the project."""
    return tuple(s for s in text_sources() if s.path.endswith(".py"))
