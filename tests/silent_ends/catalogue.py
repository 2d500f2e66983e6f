"""The catalogue of what a generated model may be made of, read from the TOML files beside it."""

import tomllib
from pathlib import Path
from typing import Any

from tests.silent_ends.feature import Edit, Feature, Shape


def _read(name: str) -> dict[str, Any]:
    text = (Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _features(name: str, *, honest: bool) -> tuple[Feature, ...]:
    pieces = _read(name)["feature"]
    for piece in pieces:
        piece["edits"] = tuple(Edit(**edit) for edit in piece.get("edits", ()))
    return tuple(Feature(honest=honest, **piece) for piece in pieces)


HONEST = _features("honest", honest=True)
HAZARDS = _features("hazards", honest=False)
SURROUNDINGS = _features("surroundings", honest=False)
SHAPES = tuple(Shape(**piece) for piece in _read("shapes")["shape"])
