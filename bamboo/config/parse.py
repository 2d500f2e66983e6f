"""Turns plain tables (TOML or JSON) into the configuration tree, by the tree's own types.

Rule: an unknown key is refused, with the nearest known name; a value has the field's type.
"""

import difflib
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from bamboo.config.tree import JobConfig, Segment
from bamboo.errors import InputError

_ELSEWHERE = {
    "lr": "learning_rate",
    "epochs": "steps",
    "max_steps": "steps",
    "num_steps": "steps",
    "batch_size": "batch",
    "micro_batch_size": "microbatch",
    "betas": "beta1",
    "eps": "epsilon",
    "max_grad_norm": "clip_norm",
    "num_layers": "layers",
    "hidden_size": "width",
    "block_size": "context",
    "vocab_size": "vocabulary",
}
"""What keys are called in other programs -> here."""
NAMED = 5
"""Errors that one line names, at most."""
WORDS: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
}
REMEDIES: dict[type, str] = {
    bool: "write true or false, without quotes",
    int: "write it in digits, such as 4",
    float: "write it in digits, such as 0.5",
    str: "put it in quotes",
}


def sections() -> dict[str, type[Any]]:
    """Name -> dataclass of every `[section]` of a job file."""
    hints = typing.get_type_hints(JobConfig)
    return {n: hint for n, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}


def parse_job(tables: Mapping[str, Any], *, file: str) -> JobConfig:
    """Build the tree from a job file's tables; `file` is its name in errors.

    Raises InputError for an unknown section or key and for a value of a wrong type.
    """
    known = sections()
    if unknown := list(_unknown_names(tables, known, file)):
        raise together(unknown)
    values: dict[str, Any] = {}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise InputError.at(
                file=file,
                key=name,
                value=table,
                problem="is a section, not a value",
                remedy=f"write [{name}] with its keys below",
            )
        values[name] = _build(known[name], table, file=file, prefix=name)
    return JobConfig(**values, file=file)


def together(errors: Sequence[InputError]) -> InputError:
    """One error for several, on one line; beyond `NAMED` of them it gives their number."""
    if len(errors) == 1:
        return errors[0]
    said = [str(error) for error in errors[:NAMED]]
    if len(errors) > NAMED:
        said.append(f"and {len(errors) - NAMED} more")
    return InputError(" ".join(one if one.endswith("?") else f"{one};" for one in said).rstrip(";"))


def _unknown_names(
    tables: Mapping[str, Any], known: Mapping[str, type[Any]], file: str
) -> Iterator[InputError]:
    """Every unknown section, and every unknown key directly in a section."""
    for name, table in tables.items():
        if name not in known:
            yield _unknown(file, name, table, list(known), "sections")
        elif isinstance(table, Mapping):
            keys = [field.name for field in fields(known[name])]
            for key, value in table.items():
                if key not in keys:
                    yield _unknown(file, f"{name}.{key}", value, keys, f"keys of {name}")


def parse_segments(value: Any, *, file: str) -> tuple[Segment, ...]:
    """The segments of a resolved job. Raises InputError."""
    found: tuple[Segment, ...] = _convert(tuple[Segment, ...], value, file=file, key="segments")
    begin = 0
    for number, one in enumerate(found):
        if not begin < one.to_step <= one.steps:
            raise InputError.at(
                file=file,
                key=f"segments[{number}].to_step",
                value=one.to_step,
                problem=f"is not after step {begin}, or beyond the {one.steps} that were planned",
                remedy="put the original back",
            )
        begin = one.to_step
    return found


def _build(cls: type[Any], table: Mapping[str, Any], *, file: str, prefix: str) -> Any:
    hints = typing.get_type_hints(cls)
    values = {}
    for name, value in table.items():
        key = f"{prefix}.{name}"
        if name not in hints:
            raise _unknown(file, key, value, list(hints), f"keys of {prefix}")
        values[name] = _convert(hints[name], value, file=file, key=key)
    missing = [f.name for f in fields(cls) if _required(f) and f.name not in values]
    if missing:
        raise InputError.at(
            file=file,
            key=prefix,
            value=dict(table),
            problem=f"lacks {', '.join(missing)}",
            remedy="add it",
        )
    return cls(**values)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _convert(hint: Any, value: Any, *, file: str, key: str) -> Any:
    if isinstance(hint, types.UnionType):  # a number, or a word in its place
        number, word = typing.get_args(hint)
        hint = word if isinstance(value, str) else number
    if isinstance(hint, types.GenericAlias):
        item = typing.get_args(hint)[0]
        if not isinstance(value, list | tuple):
            raise _wrong(file, key, value, "a list", "put it in brackets: [...]")
        return tuple(_convert(item, v, file=file, key=f"{key}[{i}]") for i, v in enumerate(value))
    if isinstance(hint, type) and is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong(file, key, value, "a table", "write { key = value, ... }")
        return _build(hint, value, file=file, prefix=key)
    if hint is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError as error:
            shown = f"a whole number of {value.bit_length()} bits"  # Python may refuse its text
            raise _wrong(file, key, shown, "a finite number", REMEDIES[float]) from error
    # `type is`, because isinstance takes a bool for an int.
    if type(value) is not hint:
        raise _wrong(file, key, value, WORDS[hint], REMEDIES[hint])
    if hint is float and not math.isfinite(value):
        raise _wrong(file, key, value, "a finite number", REMEDIES[float])
    return value


def _wrong(file: str, key: str, value: object, wanted: str, remedy: str) -> InputError:
    return InputError.at(
        file=file, key=key, value=value, problem=f"must be {wanted}", remedy=remedy
    )


def _unknown(file: str, key: str, value: object, known: list[str], what: str) -> InputError:
    name = key.rpartition(".")[2]
    near = difflib.get_close_matches(name, known, n=1)
    near = [key for key in (_ELSEWHERE.get(name),) if key in known] or near
    remedy = f"did you mean {near[0]!r}?" if near else f"the {what} are {', '.join(known)}"
    if isinstance(value, Mapping):  # a section, whose keys are not the mistake
        return InputError(f"{file}: [{key}]: is unknown; {remedy}")
    return InputError.at(file=file, key=key, value=value, problem="is unknown", remedy=remedy)
