"""A decision as a trainer gets it, and how a trainer ends."""

import math
from dataclasses import dataclass
from enum import StrEnum

from bamboo.core.effects import Effect
from bamboo.core.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One decision of the log, as this node has read it."""

    state: State
    """The state after the decision."""
    effects: tuple[Effect, ...]
    read_s: float
    """The monotonic time at which this node read it."""
    now_s: float = -math.inf
    """The store's time at which it was decided."""


class Goodbye(StrEnum):
    """Why a trainer has ended."""

    ENDED = "ended"
    LEFT = "left"
    FENCED = "fenced"
