"""Where a Python source can be mutated, and how. Pure.

Rule: a mutant replaces one piece of the text by position, so the rest of the file stays as it is,
comments too. What could only make an equivalent mutant, or one that a reader alone would see, is
left out by the rules of EXCLUDED.
"""

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass

EXCLUDED = (
    "docstrings and texts: string literals, f-strings, and what is added to them or chosen of them",
    "type annotations, type aliases, imports and decorators",
    "assertions, calls of assert_never, and what a raised exception says (not the raise itself)",
    "__repr__, and what is under TYPE_CHECKING",
    "the removal of a name's first assignment, which is a NameError",
)

COMPARED = {
    ast.Lt: ("<", "<=", ">="),
    ast.LtE: ("<=", "<", ">"),
    ast.Gt: (">", ">=", "<="),
    ast.GtE: (">=", ">", "<"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
"""Each comparison as a pattern, and what takes its place: a boundary, the opposite."""
COMPUTED = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
CHOSEN = {"any": "all", "all": "any", "min": "max", "max": "min"}
CHANGED = ("replace", "having")
"""Calls whose keywords are the parts of a change; each part may be left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one file: the bytes from `begin` to `end` become `new`."""

    path: str
    line: int
    kind: str
    begin: int
    end: int
    new: str
    function: int | None
    """First line of the outermost function, its decorators counted; None at module level."""

    def apply(self, text: str) -> str:
        """The mutated text."""
        raw = text.encode()
        return (raw[: self.begin] + self.new.encode() + raw[self.end :]).decode()

    def is_another(self, text: str) -> bool:
        """Whether the mutated text is valid Python, and another program."""
        try:
            return ast.dump(ast.parse(self.apply(text))) != ast.dump(ast.parse(text))
        except SyntaxError:
            return False

    def diff(self, text: str) -> list[str]:
        """The lines that differ, as a diff without context."""
        both = text.splitlines(), self.apply(text).splitlines()
        lines = list(difflib.unified_diff(*both, lineterm="", n=0))
        return [line for line in lines[2:] if not line.startswith("@@")]


def mutants_of(path: str, text: str) -> list[Mutant]:
    """All mutants of a source, by their place.

    Raises SyntaxError when the source itself is none.
    """
    found = _Finder(path, text).of_body(ast.parse(text, filename=path))
    return sorted(found, key=lambda one: (one.begin, one.end, one.new))


class _Finder:
    def __init__(self, path: str, text: str) -> None:
        self.path, self.raw = path, text.encode()
        self.starts = [0]
        for line in self.raw.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.function: int | None = None
        self.bound: set[str] = set()

    def of_body(self, node: ast.AST) -> Iterator[Mutant]:
        for child in ast.iter_child_nodes(node):
            yield from self.of(child)

    def of(self, node: ast.AST) -> Iterator[Mutant]:
        """The mutants of a node and of all that is in it."""
        if _excluded(node) or (self.function is None and _is_alias(node)):
            return
        if isinstance(node, ast.FunctionDef):
            yield from self._of_function(node)
            return
        yield from self._here(node)
        if isinstance(node, ast.Raise):
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from self.of(node.value)
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                yield from self.of(statement)
        else:
            yield from self.of_body(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.bound.add(node.id)

    def _of_function(self, node: ast.FunctionDef) -> Iterator[Mutant]:
        if node.name == "__repr__":
            return
        outermost = self.function is None
        if outermost:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            self.function, self.bound = first, set()
        given = node.args
        self.bound.update(a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs))
        for part in (*given.defaults, *filter(None, given.kw_defaults), *node.body):
            yield from self.of(part)
        if outermost:
            self.function = None

    def _here(self, node: ast.AST) -> Iterator[Mutant]:
        """The mutants of the node itself."""
        match node:
            case ast.Compare():
                yield from self._compared(node)
            case ast.BoolOp():
                yield self._joined(node)
            case ast.UnaryOp(op=ast.Not()):
                begin = self._begin(node)
                yield self._made(node, "not", begin, begin + len("not"), "")
            case ast.UnaryOp(op=ast.USub()):
                begin = self._begin(node)
                yield self._made(node, "sign", begin, begin + 1, "")
            case ast.BinOp():
                yield from self._computed(node, node.left, node.right)
            case ast.Constant():
                if (new := _other_constant(node.value)) is not None:
                    yield self._whole(node, "constant", new)
            case ast.If() | ast.IfExp():
                yield from self._negated(node.test)
            case ast.comprehension():
                for test in node.ifs:
                    yield from self._negated(test)
            case ast.match_case(guard=ast.expr()):
                yield from self._negated(node.guard)
            case ast.Call():
                yield from self._called(node)
            case ast.Tuple() | ast.List() | ast.Set():
                if any(isinstance(item, ast.Starred) for item in node.elts):
                    for item in node.elts:
                        yield self._left_out(item, "element left out")
            case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
                yield self._whole(node, "return value", "return None")
            case ast.stmt():
                if self._removable(node):
                    yield self._whole(node, "statement removed", "pass")

    def _removable(self, node: ast.stmt) -> bool:
        match node:
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete():
                return True
            case ast.Continue() | ast.Break() | ast.Raise():
                return True
            case ast.Assign() if self.function is not None:
                names = {
                    name.id
                    for target in node.targets
                    for name in ast.walk(target)
                    if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
                }
                return names <= self.bound
        return False

    def _compared(self, node: ast.Compare) -> Iterator[Mutant]:
        sides = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
            pattern, *others = COMPARED[type(op)]
            if (place := self._between(left, right, pattern)) is not None:
                for other in others:
                    yield self._made(left, "comparison", *place, other)

    def _joined(self, node: ast.BoolOp) -> Mutant:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        places = [
            place
            for left, right in zip(node.values, node.values[1:], strict=False)
            if (place := self._between(left, right, rf"\b{old}\b")) is not None
        ]
        begin, end = self._begin(node), self._end(node)
        text, at = b"", begin
        for first, last in places:
            text, at = text + self.raw[at:first] + new.encode(), last
        text += self.raw[at:end]
        return self._made(node, "and/or", begin, end, text.decode())

    def _computed(self, node: ast.AST, left: ast.expr, right: ast.expr) -> Iterator[Mutant]:
        assert isinstance(node, ast.BinOp)
        old, new = COMPUTED.get(type(node.op), ("", ""))
        if old and (place := self._between(left, right, re.escape(old))) is not None:
            yield self._made(node, "arithmetic", *place, new)

    def _negated(self, test: ast.expr) -> Iterator[Mutant]:
        single = isinstance(test, ast.Compare) and len(test.ops) == 1
        if single or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            return  # its own mutants are the opposite
        begin, end = self._begin(test), self._end(test)
        text = self.raw[begin:end].decode()
        yield self._made(test, "branches swapped", begin, end, f"(not ({text}))")

    def _called(self, node: ast.Call) -> Iterator[Mutant]:
        name = _name(node.func)
        if isinstance(node.func, ast.Name) and name in CHOSEN:
            yield self._whole(node.func, "builtin", CHOSEN[name])
        if name in CHANGED:
            for word in node.keywords:
                if word.arg is not None and not _is_text(word.value):
                    yield self._left_out(word, "change left out")

    def _left_out(self, node: ast.expr | ast.keyword, kind: str) -> Mutant:
        begin, end = self._begin(node), self._end(node)
        if (comma := re.match(rb"\s*,", self.raw[end:])) is not None:
            end += comma.end()
        return self._made(node, kind, begin, end, "")

    def _between(self, left: ast.expr, right: ast.expr, pattern: str) -> tuple[int, int] | None:
        begin = self._end(left)
        found = re.search(pattern.encode(), self.raw[begin : self._begin(right)])
        return None if found is None else (begin + found.start(), begin + found.end())

    def _begin(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def _whole(self, node: ast.expr | ast.stmt, kind: str, new: str) -> Mutant:
        return self._made(node, kind, self._begin(node), self._end(node), new)

    def _made(
        self, node: ast.expr | ast.stmt | ast.keyword, kind: str, begin: int, end: int, new: str
    ) -> Mutant:
        line = self.raw[:begin].count(b"\n") + 1
        return Mutant(
            path=self.path, line=line, kind=kind, begin=begin, end=end, new=new,
            function=self.function,
        )  # fmt: skip


def _excluded(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Assert():
            return True
        case ast.Return(value=ast.expr()) | ast.Assign() | ast.AugAssign():
            return _is_text(node.value)
        case ast.expr():
            return _is_text(node) or (
                isinstance(node, ast.Call) and _name(node.func) == "assert_never"
            )
        case ast.Expr():
            return _excluded(node.value)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _is_text(node: ast.expr | None) -> bool:
    match node:
        case ast.JoinedStr() | ast.Constant(value=str()):
            return True
        case ast.BinOp():
            return _is_text(node.left) or _is_text(node.right)
        case ast.IfExp():
            return _is_text(node.body) or _is_text(node.orelse)
    return False


def _is_alias(node: ast.AST) -> bool:
    """Whether a statement at module level names a union of types."""
    if isinstance(node, ast.AnnAssign):
        return _name(node.annotation) == "TypeAlias"
    value = node.value if isinstance(node, ast.Assign) else None
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr)


def _other_constant(value: object) -> str | None:
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int | float):
        return repr(value + 1)
    return None


def _name(node: ast.expr) -> str:
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )
