"""What every part of the check is given, and how its groups of lines run one after the other."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmarks.gpu_check.board import Board
from benchmarks.gpu_check.children import measure
from benchmarks.gpu_check.runs import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One run of a part: its table, where its files lie, and what was asked for."""

    board: Board
    place: Place
    device: str
    """`cuda`, or `cpu` in its place."""
    small: bool
    large: bool
    """Models of the size of GPT-2 in the check of bits."""
    precisions: tuple[str, ...]
    only: tuple[str, ...]
    """Names of groups; empty: all."""
    turns: tuple[int, ...]
    """Part kills: which of the runs of a mode, from 1."""
    seen: dict[str, float] = field(default_factory=dict)
    """What one line measures and later ones go by."""

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def measure(
        self, what: str, *, most_s: float, more: Mapping[str, str] | None = None, **asked: Any
    ) -> dict[str, Any]:
        """A measurement in a fresh process, within what is left of the part; `more` goes to its
        environment. Raises ChildFailed."""
        timeout_s = min(most_s, self.board.deadline.left_s())
        return measure(what, {"device": self.device, **asked}, timeout_s=timeout_s, more=more)

    def within(self, folder: str) -> Place:
        """A place of its own for the files of a line."""
        return Place(folder=self.place.folder / folder, deadline=self.place.deadline)


Group: TypeAlias = Callable[[Check], None]


def play(check: Check, groups: Mapping[str, Group]) -> None:
    """Run the groups that are asked for, in order."""
    for name, group in groups.items():
        if not check.only or name in check.only:
            group(check)


def median(values: Sequence[float]) -> float:
    """The median. Raises ValueError for no values."""
    return statistics.median(values)
