"""The product as one program: which file imports which, and what its classes are made of.

Everything is read from the text, so nothing is imported here. An import counts wherever it stands:
at the top, within a function, or under `TYPE_CHECKING`.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from tests.tidy.tree import Source

Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, frozenset[str]]
"""By module, the modules that it imports."""

VALUE_BASES = {"Enum", "StrEnum", "IntEnum", "NamedTuple", "TypedDict", "Exception"}


@dataclass(frozen=True)
class Class:
    """A class at the top level of a file."""

    module: str
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return f"{self.module}.{self.node.name}"

    @property
    def lines(self) -> int:
        return (self.node.end_lineno or 0) - self.node.lineno + 1

    @cached_property
    def bases(self) -> set[str]:
        """The names of the classes that it inherits from."""
        return {ast.unparse(base).split(".")[-1] for base in self.node.bases}

    @cached_property
    def is_value(self) -> bool:
        """A frozen dataclass, an enumeration, a named tuple, an exception."""
        return "frozen=True" in self._decorators or bool(self.bases & VALUE_BASES)

    @cached_property
    def has_methods(self) -> bool:
        """Whether it has methods of its own. What only has fields is a bag of them."""
        return any(
            isinstance(node, Function) and not node.name.startswith("__") for node in self.node.body
        )

    @property
    def _decorators(self) -> str:
        return " ".join(map(ast.unparse, self.node.decorator_list))

    def parameters(self) -> Iterator[tuple[str, ast.expr | None]]:
        """What its constructor takes, with annotations; the fields of a dataclass."""
        for node in self.node.body:
            if isinstance(node, Function) and node.name == "__init__":
                given = node.args
                for one in [*given.posonlyargs, *given.args, *given.kwonlyargs][1:]:
                    yield one.arg, one.annotation
                return
        for node in self.node.body if "dataclass" in self._decorators else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                made_here = node.value is not None and "init=False" in ast.unparse(node.value)
                if not made_here:
                    yield node.target.id, node.annotation


class Program:
    """The given files, which stand for the whole product."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = {module_of(source.path): source for source in sources}

    # ------------------------------------------------------------------ imports

    @cached_property
    def imports(self) -> Graph:
        """Who imports whom, among these files."""
        return {
            module: frozenset(self._imported_by(source)) - {module}
            for module, source in self.sources.items()
        }

    def _imported_by(self, source: Source) -> Iterator[str]:
        for node in source.nodes:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in self.sources)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    named = f"{node.module}.{alias.name}"
                    found = named if named in self.sources else node.module
                    if found in self.sources:
                        yield str(found)

    @cached_property
    def importers(self) -> Graph:
        """Who is imported by whom."""
        return {
            module: frozenset(m for m, imported in self.imports.items() if module in imported)
            for module in self.sources
        }

    def circle(self) -> list[str]:
        """Files that import each other in a circle, or none."""
        try:
            TopologicalSorter(self.imports).prepare()
        except CycleError as error:
            return list(error.args[1])
        return []

    # ------------------------------------------------------------------ classes

    @cached_property
    def classes(self) -> tuple[Class, ...]:
        """All classes at the top level of a file."""
        return tuple(
            Class(module, node)
            for module, source in self.sources.items()
            for node in source.tree.body
            if isinstance(node, ast.ClassDef)
        )

    @cached_property
    def by_name(self) -> Mapping[str, Class]:
        """The classes by their short names. Where several have one name, one that acts."""
        acting = sorted(self.classes, key=lambda one: one.has_methods and not one.is_value)
        return {one.node.name: one for one in acting}

    def collaborators(self, made: Class, above: frozenset[str] = frozenset()) -> list[str]:
        """What the constructor is given that acts: objects of a class of ours with behaviour, and
        functions. Of a bag, a class without behaviour, what is in it counts; no value does."""
        found: list[str] = []
        for name, annotation in made.parameters():
            text = "" if annotation is None else ast.unparse(annotation)
            if "Callable" in text:
                found.append(name)
                continue
            best: list[str] = []
            for word in re.findall(r"\w+", text):
                one = self.by_name.get(word)
                if one is None or one.name in above:
                    continue
                if self._behaves(one):
                    parts = [name]
                elif any(isinstance(node, Function) for node in one.node.body):
                    parts = []
                else:
                    parts = self.collaborators(one, above | {one.name})
                best = max(best, parts, key=len)
            found += best
        return found

    def _behaves(self, one: Class) -> bool:
        """Whether it has methods, its own or inherited ones, and is no value."""
        if one.is_value or one.has_methods:
            return one.has_methods and not one.is_value
        bases = (self.by_name.get(base) for base in one.bases)
        return any(base is not None and self._behaves(base) for base in bases)


def module_of(path: str) -> str:
    """`bamboo/core/state.py` -> `bamboo.core.state`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def code_lines(source: Source) -> int:
    """Lines with code: no blanks, no comments, no docstrings."""
    docstrings: set[int] = set()
    for node in source.nodes:
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if alone and isinstance(node.value.value, str):
            docstrings |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    void = {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
        *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in void:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)
