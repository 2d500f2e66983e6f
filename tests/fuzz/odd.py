"""Malformed inputs: bytes and values, drawn from nothing or bent from one that is in order."""

import copy
import json
import string
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

HUGE_TEXT = "x" * 3000
DEEP = "[" * 8_000
ODD_TEXTS = (
    *("", " ", "x", "0", "-1", "1e999", "nan", "null", "true", "\0", "\x1b[31m", "\n", "\ud800"),
    *("../../x", "/x", "a/../b", "C:\\x", "~", "%00", "{}", "[]", "1" * 5000, HUGE_TEXT, "é", "٣"),
    *("2026-01-01", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0.2", "0.2.3", "s3://b/k"),
)
ODD_NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 255, 2**31, 2**53, 2**63, -(2**63), 10**30, 10**400, -(10**400)),
    *(0.5, -0.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")),
)
scalars = (
    st.none() | st.booleans() | st.sampled_from(ODD_NUMBERS) | st.sampled_from(ODD_TEXTS)
    | st.integers() | st.floats() | st.text(max_size=20)
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
_LINES = ("\n", "\r\n", ",", "=", "[", "]", "{", "}", '"', "'", "#", ":", "\\", "\0", ".")
_CUTS = st.tuples(st.integers(0, 2**20), st.integers(0, 40))
_PIECES = (
    st.sampled_from([*_LINES, *(t for t in ODD_TEXTS if "\ud800" not in t)]).map(str.encode)
    | st.binary(max_size=8)
    | st.text(string.printable, max_size=12).map(str.encode)
)
_BYTE_EDITS = st.tuples(_CUTS, _PIECES, st.sampled_from(["cut", "put", "copy", "swap"]))


@st.composite
def bent_bytes(draw: st.DrawFn, samples: Sequence[bytes]) -> bytes:
    """Bytes near one of the samples, or far from all."""
    data = draw(st.sampled_from(samples) if samples else st.just(b""))
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200) | st.just(DEEP.encode()))
    for (where, length), piece, edit in draw(st.lists(_BYTE_EDITS, min_size=1, max_size=4)):
        at = where % (len(data) + 1)
        head, part, tail = data[:at], data[at : at + length], data[at + length :]
        data = {
            "cut": head + tail,
            "put": head + piece + part + tail,
            "copy": head + part + part + tail,
            "swap": head + piece + tail,
        }[edit]
    return data


@st.composite
def bent(draw: st.DrawFn, samples: Sequence[Any]) -> Any:
    """A value of JSON near one of the samples, or far from all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(values)
    value = copy.deepcopy(draw(st.sampled_from(samples)))
    for where, odd, edit in draw(
        st.lists(
            st.tuples(
                st.integers(0, 2**20),
                scalars | values,
                st.sampled_from(["put", "put", "drop", "add", "twice"]),
            ),
            min_size=1,
            max_size=3,
        )
    ):
        places = list(_places(value))
        if not places:
            return odd
        owner, key = places[where % len(places)]
        if edit == "put":
            owner[key] = odd
        elif edit == "drop":
            del owner[key]
        elif edit == "add" and isinstance(owner, dict):
            owner[draw(st.sampled_from([*ODD_TEXTS, "file", "kind", "v"]))] = odd
        elif isinstance(owner, list):
            owner.insert(key, copy.deepcopy(owner[key]))
    return value


def _places(value: Any) -> "list[tuple[Any, Any]]":
    """Every place in a value: who holds it, and under which key."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        owner = waiting.pop()
        if isinstance(owner, dict | list):
            keys = list(owner) if isinstance(owner, dict) else range(len(owner))
            found += [(owner, key) for key in keys]
            waiting += [owner[key] for key in keys]
    return found


def as_json(value: Any) -> str:
    """As text; infinities and not-a-number as Python writes them, which others do as well."""
    return json.dumps(value)


def bent_json(samples: Sequence[str]) -> st.SearchStrategy[str]:
    """A JSON text near one of the samples: bent as a value, or as text."""
    structured = bent([json.loads(text) for text in samples]).map(as_json)
    texts = [text.encode() for text in samples]
    return structured | bent_bytes(texts).map(lambda data: data.decode(errors="replace"))
