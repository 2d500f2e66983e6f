"""The changing state of a dry run: the position of each node's slots and shadows.

Rule: only `dry_run` and `hit_step` change these; nothing else sees them. All work per operation
uses look-ups by number, because one question takes millions of operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bamboo.ids import NodeId
from bamboo.planner.step.links import Lanes
from bamboo.planner.step.timeline import Ran
from bamboo.schedule.instruction import Instruction
from bamboo.topology.slots import Slot

UNKNOWN_NS = 1 << 62
"""Later than any time."""


class SlotState:
    """The position of an owned slot, and what has arrived for it. After its program's last
    instruction come the exchange and, one further, the optimizer step.

    `at` is its place in the whole run: steps in a row, with `width` places each, which begin at
    `base`. `there_ns` says for each place when that operation's inputs are there, UNKNOWN_NS if
    that is not known; the place after the last one never has them.
    """

    __slots__ = (
        "after",
        "at",
        "backward_at",
        "base",
        "before",
        "durations_ns",
        "forward_at",
        "gradient_lanes",
        "gradient_ns",
        "instructions",
        "last",
        "microbatches",
        "node",
        "norms",
        "output_lanes",
        "output_ns",
        "outputs",
        "parts",
        "places",
        "recovering",
        "regradients",
        "sends_on",
        "sends_twice",
        "sent",
        "shadow",
        "shipped",
        "slot",
        "starts_ns",
        "step",
        "takes_time",
        "there_ns",
        "width",
    )

    def __init__(
        self,
        slot: Slot,
        program: Sequence[Instruction],
        durations_ns: Mapping[str, int],
        *,
        node: NodeState,
        steps: int,
    ) -> None:
        """`durations_ns`: of each kind of operation."""
        stage = slot.stage
        self.slot = slot
        self.node = node
        self.shadow: NodeState | None = None
        self.before: SlotState | None = None
        """The slot of the stage before, or None. `after` likewise."""
        self.after: SlotState | None = None
        self.instructions = (
            *program,
            Instruction(stage=stage, kind="X"),
            Instruction(stage=stage, kind="S"),
        )
        self.durations_ns = tuple(durations_ns[one.kind] for one in self.instructions)
        self.width = len(self.instructions)
        self.microbatches = len(program) // 2
        self.forward_at, self.backward_at = (
            {one.microbatch: at for at, one in enumerate(program) if one.kind == kind}
            for kind in ("F", "B")
        )
        self.begin(0)
        self.there_ns = [UNKNOWN_NS] * (steps * self.width + 1)
        for step in range(steps):
            self.there_ns[(step + 1) * self.width - 2] = 0  # the exchange waits for no message
        self.starts_ns = [UNKNOWN_NS] * (steps * self.width)
        """Start times of those operations that were computed without events (`fixed_order`)."""
        self.takes_time = all(self.durations_ns[: len(program)])
        self.sends_on = [one.kind == "F" for one in program]
        """For each operation of the program, whether its output goes to the stage after."""
        self.sends_twice = False
        """Whether the shadow of the slot before also receives gradients."""
        self.places: list[int] = []
        """For each operation, the place of the one that needs its output, in its step."""
        self.outputs = bytearray(steps * self.microbatches)
        """For each microbatch of each step, whether its forward is done."""
        self.regradients = bytearray(steps * self.microbatches)
        """Likewise, whether its shadow has the gradient of its output."""
        self.sent = bytearray(steps)
        """For each step, whether its partial sums are sent."""
        self.shipped = bytearray(steps + 1)
        """For each step, whether its shadow has the gradient."""
        self.parts = [0] * steps
        self.norms = [0] * steps
        self.recovering = -1
        """The step that is recomputed after its owner was lost, or was last; -1: none."""
        self.output_lanes: Lanes | None = None
        """The link to the owner of the stage after, or None if that is the same node; `output_ns`
        is the time of an output on it. Likewise for gradients to the stage before."""
        self.output_ns = 0
        self.gradient_lanes: Lanes | None = None
        self.gradient_ns = 0

    @property
    def cursor(self) -> int:
        """Its place in the step."""
        return self.at - self.base

    def begin(self, step: int) -> None:
        """Stand at the beginning of `step`; `last` is the place of its program's last operation."""
        self.step = step
        self.base = self.at = step * self.width
        self.last = self.base + self.width - 3

    def ran(self, at: int, start_ns: int) -> Ran:
        """The operation at a place, run by a node that owns no other slot."""
        cursor = at % self.width
        return Ran(
            node=self.node.id,
            slot=self.slot,
            step=at // self.width,
            instruction=self.instructions[cursor],
            start_ns=start_ns,
            end_ns=start_ns + self.durations_ns[cursor],
            host_cursor=cursor,
        )

    def free_inputs(self, places: Mapping[int | None, int]) -> None:
        """Operations at these places of each step wait for no message."""
        for step in range(len(self.sent)):
            for place in places.values():
                self.there_ns[step * self.width + place] = 0


class ShadowState:
    """The position of a shadow: the step of its replica, and what it has run ahead in it.

    `host` is the first own slot of its node; `used` counts redundant operations at its cursors.
    `forwards_done` and `backwards_done` count the operations run ahead that have begun.
    """

    __slots__ = (
        "backwards",
        "backwards_done",
        "durations_ns",
        "forwards",
        "forwards_done",
        "host",
        "recovering",
        "replica_step",
        "slot",
        "state",
        "step",
        "used",
    )

    def __init__(
        self,
        state: SlotState,
        host: SlotState,
        ahead: Sequence[Instruction],
        durations_ns: Mapping[str, int],
    ) -> None:
        """`ahead`: all operations that its mode runs ahead in a step."""
        self.state = state
        self.slot = state.slot
        self.host = host
        self.durations_ns = durations_ns
        self.forwards = tuple(i for i in ahead if i.kind == "FR")
        self.backwards = tuple(i for i in ahead if i.kind == "BR")
        self.replica_step = Instruction(stage=self.slot.stage, kind="R")
        self.recovering = -1
        self.used: dict[int, int] = {}
        self.begin(0)

    def begin(self, step: int) -> None:
        """Stand at `step`, with no operation run ahead yet."""
        self.step = step
        self.forwards_done = self.backwards_done = 0


class NodeState:
    """One machine: the slots it owns, those it shadows, and whether it is running an operation.
    `actor` is the slot of the operation that it runs, or last found ready to run. While its order
    is fixed (`fixed_order`) it is busy, with operations that are known until `free_ns`."""

    __slots__ = ("actor", "busy", "fixed_order", "free_ns", "id", "owned", "shadowed")

    def __init__(self, node: NodeId) -> None:
        self.id = node
        self.busy = self.fixed_order = False
        self.free_ns = 0
        self.owned: list[SlotState] = []
        self.shadowed: list[ShadowState] = []
        self.actor: SlotState | ShadowState | None = None
