"""What a trainer is told, and how it ends."""

import math
from dataclasses import dataclass
from enum import StrEnum

from bamboo.core.effects import Effect
from bamboo.core.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One decision of the log, as this node read it."""

    state: State
    """After the decision."""
    effects: tuple[Effect, ...]
    read_s: float
    """Monotonic time at which it was read here."""
    now_s: float = -math.inf
    """The store's time at which it was decided."""


class Goodbye(StrEnum):
    """Why a trainer came to its end."""

    ENDED = "ended"
    LEFT = "left"
    FENCED = "fenced"
