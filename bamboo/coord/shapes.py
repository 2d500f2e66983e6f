"""Frozen dataclasses to JSON values and back, driven by their declared types.

Rule: strict both ways. A missing field, an unknown field or a value of another type is an error
that names its place. An int in a float field becomes a float, so that equal values give equal text.
Only the types in a run's documents are supported: text, numbers, booleans, None, enumerations of
text, slots (as `0.2`), tuples and dataclasses of these.
"""

import dataclasses
import math
import types
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Any, Literal, NamedTuple, NewType, Union, get_args, get_origin, get_type_hints

from bamboo.errors import CoreMisuse, UnreadableRecord
from bamboo.topology.slots import Slot


class Shape(NamedTuple):
    """How one type is written and read; `read` receives the place for its error messages."""

    write: Callable[[Any], Any]
    read: Callable[[Any, str], Any]


@cache
def shape_of(kind: Any) -> Shape:
    """The shape of a type. Raises TypeError for a type that no document may contain."""
    if isinstance(kind, NewType):
        return shape_of(kind.__supertype__)
    if kind is float:
        return Shape(float, _read_float)
    if kind in (str, int, bool, types.NoneType):
        return Shape(lambda value: value, lambda raw, at: _read_plain(kind, raw, at))
    if kind is Slot:
        return Shape(str, _read_slot)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return Shape(lambda value: value.value, lambda raw, at: _read_choice(kind, raw, at))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_shape(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return Shape(lambda value: value, lambda raw, at: _read_literal(arguments, raw, at))
    if origin is tuple:
        return _tuple_shape(arguments)
    if origin in (Union, types.UnionType) and types.NoneType in arguments and len(arguments) == 2:
        inner = shape_of(next(a for a in arguments if a is not types.NoneType))
        return Shape(
            lambda value: None if value is None else inner.write(value),
            lambda raw, at: None if raw is None else inner.read(raw, at),
        )
    raise TypeError(f"{kind} has no form in a document")


def _dataclass_shape(kind: type) -> Shape:
    hints = get_type_hints(kind)
    # A field that is not an argument follows from the others, and is no part of a document.
    given = [field.name for field in dataclasses.fields(kind) if field.init]
    fields = {name: shape_of(hints[name]) for name in given}

    def write(value: Any) -> dict[str, Any]:
        return {name: shape.write(getattr(value, name)) for name, shape in fields.items()}

    def read(raw: Any, at: str) -> Any:
        if not isinstance(raw, dict):
            raise UnreadableRecord(f"{at} is {raw!r}, not a {kind.__name__}")
        if raw.keys() != fields.keys():
            odd = ", ".join(sorted(raw.keys() ^ fields.keys()))
            raise UnreadableRecord(f"{at}: the fields {odd} of {kind.__name__} do not fit")
        try:
            return kind(**{n: shape.read(raw[n], f"{at}.{n}") for n, shape in fields.items()})
        except (ValueError, CoreMisuse) as error:
            # A value that its own rules refuse: here the document is wrong, not a driver.
            raise UnreadableRecord(f"{at} is no {kind.__name__}: {error}") from error

    return Shape(write, read)


def _tuple_shape(arguments: tuple[Any, ...]) -> Shape:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = shape_of(arguments[0])

        def read_all(raw: Any, at: str) -> tuple[Any, ...]:
            return tuple(item.read(r, f"{at}[{i}]") for i, r in enumerate(_list(raw, at)))

        return Shape(lambda value: [item.write(v) for v in value], read_all)
    items = [shape_of(argument) for argument in arguments]

    def read_each(raw: Any, at: str) -> tuple[Any, ...]:
        values = _list(raw, at)
        if len(values) != len(items):
            raise UnreadableRecord(f"{at} has {len(values)} values, not {len(items)}")
        return tuple(
            item.read(r, f"{at}[{i}]")
            for i, (item, r) in enumerate(zip(items, values, strict=True))
        )

    return Shape(
        lambda value: [item.write(v) for item, v in zip(items, value, strict=True)], read_each
    )


def _list(raw: Any, at: str) -> list[Any]:
    if not isinstance(raw, list):
        raise UnreadableRecord(f"{at} is {raw!r}, not a list")
    return raw


def _read_float(raw: Any, at: str) -> float:
    try:
        if not isinstance(raw, bool) and isinstance(raw, int | float) and math.isfinite(raw):
            return float(raw)
    except OverflowError:
        pass  # a whole number too large for a float
    raise UnreadableRecord(f"{at} is {raw!r}, not a finite number")


def _read_plain(kind: type, raw: Any, at: str) -> Any:
    if type(raw) is not kind:
        raise UnreadableRecord(f"{at} is {raw!r}, not a value of type {kind.__name__}")
    return raw


def _read_slot(raw: Any, at: str) -> Slot:
    try:
        return Slot.parse(raw)
    except (ValueError, AttributeError) as error:
        raise UnreadableRecord(f"{at} is {raw!r}, not a slot such as 0.2") from error


def _read_choice(kind: type[StrEnum], raw: Any, at: str) -> StrEnum:
    try:
        return kind(raw)
    except ValueError as error:
        raise UnreadableRecord(f"{at} is {raw!r}, not one of {[k.value for k in kind]}") from error


def _read_literal(choices: tuple[Any, ...], raw: Any, at: str) -> Any:
    if raw not in choices:
        raise UnreadableRecord(f"{at} is {raw!r}, not one of {list(choices)}")
    return raw
