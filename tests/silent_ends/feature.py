"""What a generated model is composed of: pieces of a user's Python, with the edits they invite.

A piece is text. `$n` in it is a number of its own, so that two pieces never share a name by
accident; `$w` is the width of the model and `$c` its context.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of one file beside the model, made while the run lives."""

    path: str
    text: str | None = None
    """The whole file afterwards; None: it is removed."""
    same_time: bool = False
    """Whether the file keeps the time at which it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A habit of one layer, as code. In `forward` the layer's input is `x` and what it has computed
    so far is `y`, both of shape (batch, context, width)."""

    name: str
    honest: bool
    """Bits hang on the run's semantics alone, so it must train to its end."""
    top: str = ""
    """Lines of the module."""
    init: str = ""
    """Lines at the end of the layer's `__init__`."""
    forward: str = ""
    """Lines of its `forward`, after `y` was computed."""
    methods: str = ""
    """Further lines of the class."""
    build: str = ""
    """Lines of `build(job)` before it makes the list."""
    files: Mapping[str, str] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()
    everywhere: bool = False
    """All middle layers have it, not one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a file hands over its layers. `$classes` are the names of the middle layers' classes,
    with commas; `$first` and `$last` are the first and the last of them."""

    name: str
    honest: bool
    code: str
