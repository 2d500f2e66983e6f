"""The result of a dry run: every operation that ran, with its times.

Rule: every statement about a schedule (figures, gaps, the grid) is read from this value.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from bamboo.ids import NodeId
from bamboo.planner.step.layout import Layout
from bamboo.schedule.instruction import Instruction
from bamboo.topology.slots import Slot


class Ran(NamedTuple):
    """One operation that ran, on `node`, from `start_ns` to `end_ns`. It is a tuple, as many exist.

    `host_cursor` is the cursor of the node's first own slot in its program when it started.
    """

    node: NodeId
    slot: Slot
    step: int
    instruction: Instruction
    start_ns: int
    end_ns: int
    host_cursor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All operations of a dry run, and when each step was settled everywhere."""

    layout: Layout
    steps: int
    commit_ns: tuple[int, ...]
    """When the last owner had stepped, by step."""
    settled_ns: tuple[int, ...]
    """When the last shadow's acknowledgement had reached all nodes, so that the stash is free."""
    operations: Callable[[], tuple[Ran, ...]] = field(compare=False, repr=False)
    """Makes `ran`, which many callers never need."""
    _ran: tuple[Ran, ...] | None = field(init=False, default=None, compare=False, repr=False)

    @property
    def ran(self) -> tuple[Ran, ...]:
        """All operations that ran, in order of start."""
        if self._ran is None:
            found = self.operations()
            object.__setattr__(self, "_ran", found)
            return found
        return self._ran
