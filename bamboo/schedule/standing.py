"""The nodes, slots and links of one dry run, made from its layout and costs.

Rule: `dry_run` decides what happens when. This file holds the nodes, the links between them, and
what operations wait for.
"""

from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.schedule.layout import Costs, Layout, at_stage
from bamboo.schedule.links import Links
from bamboo.schedule.redundancy import ahead_of_need
from bamboo.schedule.states import NodeState, ShadowState, SlotState
from bamboo.topology.slots import Slot


class Deadlock(CoreMisuse):
    """No operation can run and not all are done. `waiting` names each one and what it lacks."""

    def __init__(self, waiting: tuple[str, ...]) -> None:
        super().__init__(
            f"the schedule deadlocks: {'; '.join(waiting)}; "
            "order the programs so that no stage waits for one that waits for it"
        )
        self.waiting = waiting


class Standing:
    """The state of all slots of `layout` in a dry run of `steps` steps."""

    def __init__(self, layout: Layout, costs: Costs, steps: int) -> None:
        self._layout = layout
        self._grid = layout.assignment.grid
        self._steps = steps
        self._modes = layout.modes
        self._costs = costs
        self._acks = [0] * steps
        self._stepped = [0] * steps
        self._shadow_count = 0
        self._links = Links(latency_s=costs.latency_s, bytes_per_s=costs.bytes_per_s, far=costs.far)
        self._durations_ns = [self._durations_of(stage) for stage in range(self._grid.stages)]
        self._build()
        self._wire()

    def _build(self) -> None:
        owners = self._layout.assignment.owners
        self._nodes = {node: NodeState(node) for node in dict.fromkeys(owners)}
        self._slots: dict[Slot, SlotState] = {}
        for slot, owner in zip(self._grid.slots(), owners, strict=True):
            node = self._nodes[owner]
            program = self._layout.program(slot).instructions
            durations_ns = self._durations_ns[slot.stage]
            state = SlotState(slot, program, durations_ns, node=node, steps=self._steps)
            if slot.stage > 0:
                state.before = self._slots[self._grid.protector(slot)]
                state.before.after = state
            else:
                state.free_inputs(state.forward_at)
            if slot.stage == self._grid.stages - 1:
                state.free_inputs(state.backward_at)
            self._slots[slot] = state
            node.owned.append(state)
        for slot, shadow in zip(self._grid.slots(), self._layout.assignment.shadows, strict=True):
            if shadow is not None:
                self._follow(self._slots[slot], shadow)

    def _follow(self, state: SlotState, shadow: NodeId) -> None:
        """Let `shadow` keep a replica of a slot."""
        slot = state.slot
        if shadow not in self._nodes:
            raise ValueError(f"node {shadow} shadows {slot} and owns nothing: not modelled")
        node = self._nodes[shadow]
        ahead = ahead_of_need(
            self._modes[slot.stage], stage=slot.stage, microbatches=state.microbatches
        )
        node.shadowed.append(
            ShadowState(state, node.owned[0], ahead, self._durations_ns[slot.stage])
        )
        self._shadow_count += 1

    def _wire(self) -> None:
        """Note the shadow of each slot, and the link on which each slot sends."""
        links = self._links
        for state, shadow in zip(
            self._slots.values(), self._layout.assignment.shadows, strict=True
        ):
            state.shadow = None if shadow is None else self._nodes[shadow]
            state.places = _places(state)
            before, owner = state.before, state.node.id
            if before is None:
                continue
            state.sends_twice = before.shadow is not None and (
                self._modes[before.slot.stage] == "full"
            )
            size = at_stage(self._costs.boundary_bytes, before.slot.stage)
            before.output_lanes = links.lanes(before.node.id, owner)
            state.gradient_lanes = links.lanes(owner, before.node.id)
            if before.output_lanes is not None:
                before.output_ns = before.output_lanes.carry_ns(size)
            if state.gradient_lanes is not None:
                state.gradient_ns = state.gradient_lanes.carry_ns(size)

    def _durations_of(self, stage: int) -> dict[str, int]:
        """The duration of each kind of operation."""
        costs = self._costs
        forward, backward, step = costs.forward_s, costs.backward_s, costs.step_s
        kinds = {"F": forward, "FR": forward, "B": backward, "BR": backward}
        kinds |= {"X": costs.exchange_s, "S": step, "R": step}
        return {kind: round(at_stage(figures, stage) * 1e9) for kind, figures in kinds.items()}

    # -------------------------------------------------------------- what operations wait for

    def _may_begin(self, step: int) -> bool:
        """Whether everything is there that all slots need at the beginning of a step."""
        return step < 2 or self._is_settled(step - 2)

    def _is_settled(self, step: int) -> bool:
        return self._acks[step] == self._shadow_count

    def _partial_sums(self, slot: Slot) -> int:
        return self._grid.pipelines + (at_stage(self._costs.peers_s, slot.stage) > 0)

    def _check_all_is_done(self) -> None:
        """Raises Deadlock if some operation has not run."""
        if self._stepped[-1] < self._grid.size:
            raise Deadlock(tuple(self._waiting()))

    def _waiting(self) -> list[str]:
        return [
            f"{state.instructions[state.cursor]} of pipeline {state.slot.pipeline} waits for "
            f"{self._lacks(state)}"
            for node in self._nodes.values()
            for state in node.owned
            if state.step < self._steps
        ]

    def _lacks(self, state: SlotState) -> str | None:
        """What the slot's next operation waits for; None when it is ready."""
        stage, step, instruction = state.slot.stage, state.step, state.instructions[state.cursor]
        if state.cursor == 0 and not self._may_begin(step):
            return f"the acknowledgements of step {step - 2}"
        if state.there_ns[state.at] <= self._links.now_ns:
            return None
        if instruction.kind == "F":
            return f"{stage - 1}F{instruction.microbatch}"
        if instruction.kind == "B":
            return f"{stage + 1}B{instruction.microbatch}"
        if instruction.kind == "X":
            lacking = self._partial_sums(state.slot) - state.parts[step]
            return f"the partial sums of {lacking} pipelines"
        return f"the squares of {self._grid.size - state.norms[step]} slots"


def _places(state: SlotState) -> list[int]:
    """For each operation of its program, the place in the step of the one that needs its output."""
    forward = {} if state.after is None else state.after.forward_at
    backward = {} if state.before is None else state.before.backward_at
    return [
        (forward if one.kind == "F" else backward).get(one.microbatch, -1)
        for one in state.instructions[:-2]
    ]
