"""What changes while a dry run goes on: where each node's slots and shadows stand.

Rule: only `dry_run` changes these; nothing else sees them.
"""

from bamboo.ids import NodeId
from bamboo.schedule.instruction import Instruction
from bamboo.topology.slots import Slot


class SlotState:
    """Where an owned slot stands: step, and cursor in its program. After the program's last
    instruction come the exchange and, one further, the optimizer step."""

    __slots__ = ("cursor", "program", "slot", "step")

    def __init__(self, slot: Slot, program: tuple[Instruction, ...]) -> None:
        self.slot = slot
        self.program = program
        self.step = 0
        self.cursor = 0


class ShadowState:
    """Where a shadow stands: the step of its replica, and what it has not yet run ahead in it.

    `host` is the first own slot of its node; `used` counts redundant operations at its cursors.
    """

    __slots__ = ("backwards", "forwards", "host", "slot", "step", "used")

    def __init__(self, slot: Slot, host: SlotState) -> None:
        self.slot = slot
        self.host = host
        self.step = 0
        self.forwards: list[Instruction] = []
        self.backwards: list[Instruction] = []
        self.used: dict[int, int] = {}


class NodeState:
    """One machine: the slots it owns, those it shadows, and whether it is running something."""

    __slots__ = ("busy", "id", "owned", "shadowed")

    def __init__(self, node: NodeId) -> None:
        self.id = node
        self.busy = False
        self.owned: list[SlotState] = []
        self.shadowed: list[ShadowState] = []
