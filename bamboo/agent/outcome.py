"""How an agent's life ends: values that its threads pass to its main thread."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """The members decided that this node is gone: it must change nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run is over: the worker leaves, then the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphaned:
    """The cloud around this node is gone, or its store has been away for very long."""

    why: str


Outcome: TypeAlias = Fenced | RunEnded | Orphaned

EXIT_DONE = 0
EXIT_WORKER = 1
EXIT_FENCED = 10
EXIT_ORPHANED = 11
