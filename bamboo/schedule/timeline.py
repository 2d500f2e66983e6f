"""What a dry run leaves behind: every operation that ran, with its times.

Rule: everything that is said about a schedule (figures, gaps, the grid) is read from this value.
"""

from dataclasses import dataclass

from bamboo.ids import NodeId
from bamboo.schedule.instruction import Instruction
from bamboo.schedule.layout import Layout
from bamboo.topology.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One operation that ran, on `node`, from `start_ns` to `end_ns`.

    `host_cursor` is where the node's first own slot stood in its program when it started.
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
    """Everything a dry run did, in order of start, and when each step was settled everywhere."""

    layout: Layout
    steps: int
    ran: tuple[Ran, ...]
    commit_ns: tuple[int, ...]
    """When the last owner had stepped, by step."""
    settled_ns: tuple[int, ...]
    """When the last shadow's acknowledgement was everywhere: its stash is free again."""
