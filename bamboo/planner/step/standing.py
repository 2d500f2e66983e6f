"""The nodes, slots and links of one dry run, made from its layout and costs.

Rule: `dry_run` says what happens when, and changes what is here. This file holds the nodes, the
links between them, what operations wait for, and which of a node's ready operations comes first.
"""

from collections.abc import Mapping
from typing import TypeAlias

from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.planner.step.layout import Costs, Layout, at_stage
from bamboo.planner.step.links import Links
from bamboo.planner.step.states import NodeState, ShadowState, SlotState
from bamboo.planner.step.timeline import Ran
from bamboo.schedule.instruction import Instruction
from bamboo.schedule.picker import ReadyOp, next_op
from bamboo.schedule.redundancy import ahead_of_need
from bamboo.topology.slots import Slot

Budgets: TypeAlias = Mapping[Slot, Mapping[int, int]]
"""For each shadowed slot: cursor of the host's program -> redundant forwards that fit there."""

Ready: TypeAlias = tuple[SlotState | ShadowState, Instruction]
"""An operation whose inputs are there, with its owner or shadow."""


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

    def __init__(self, layout: Layout, costs: Costs, steps: int, budgets: Budgets) -> None:
        self._layout = layout
        self._grid = layout.assignment.grid
        self._steps = steps
        self._modes = layout.modes
        self._costs = costs
        self._budgets = budgets
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
            there = at_stage(self._costs.boundary_bytes, before.slot.stage)
            back = at_stage(self._costs.back_bytes, before.slot.stage)
            before.output_lanes = links.lanes(before.node.id, owner)
            state.gradient_lanes = links.lanes(owner, before.node.id)
            if before.output_lanes is not None:
                before.output_ns = before.output_lanes.carry_ns(there)
            if state.gradient_lanes is not None:
                state.gradient_ns = state.gradient_lanes.carry_ns(back)

    def _durations_of(self, stage: int) -> dict[str, int]:
        """The duration of each kind of operation."""
        costs = self._costs
        forward = costs.forward_s
        backward = costs.backward_s
        step = costs.step_s
        kinds = {"F": forward, "FR": forward, "B": backward, "BR": backward}
        kinds |= {"X": costs.exchange_s, "S": step}
        found = {kind: at_stage(figures, stage) for kind, figures in kinds.items()}
        found["R"] = at_stage(step, stage) + at_stage(costs.rebuild_s, stage)
        return {kind: round(figure_s * 1e9) for kind, figure_s in found.items()}

    def _pick(self, node: NodeState) -> Ran | None:
        """The operation that the node runs now; `node.actor` is set to its slot's state."""
        ready = self._ready(node)
        if not ready:
            return None
        actor, instruction = ready[0] if len(ready) == 1 else _first_of(ready)
        node.actor = actor
        now_ns, host = self._links.now_ns, node.owned[0]
        if isinstance(actor, SlotState):
            slot, duration_ns = actor.slot, actor.durations_ns[actor.at - actor.base]
            if instruction.kind == "X" and actor.sent[actor.step]:
                duration_ns = 0  # the rest of an exchange uses what came; its work is done
        else:
            slot, duration_ns = actor.slot, actor.durations_ns[instruction.kind]
        end_ns, cursor = now_ns + duration_ns, host.at - host.base
        return Ran(node.id, slot, actor.step, instruction, now_ns, end_ns, cursor)

    # -------------------------------------------------------------- ready operations

    def _ready(self, node: NodeState) -> list[Ready]:
        ready: list[Ready] = []
        now_ns = self._links.now_ns
        for state in node.owned:
            at = state.at
            if state.there_ns[at] <= now_ns and (at != state.base or self._may_begin(state.step)):
                ready.append((state, state.instructions[at - state.base]))
        for shadow in node.shadowed:
            instruction = self._next_of_shadow(shadow)
            if instruction is not None:
                ready.append((shadow, instruction))
        return ready

    def _next_of_shadow(self, shadow: ShadowState) -> Instruction | None:
        """The replica's step, once the gradient came, after which running ahead in that step is
        useless. Before that, the next redundant backward or forward whose input is there."""
        if shadow.state.shipped[shadow.step]:
            return shadow.replica_step
        if not shadow.forwards or shadow.step == self._steps:
            return None
        forward, backward = shadow.forwards_done, shadow.backwards_done
        if backward < len(shadow.backwards) and self._has_output_gradient(shadow):
            return shadow.backwards[backward]
        if forward < len(shadow.forwards) and self._has_input(shadow) and self._fits(shadow):
            return shadow.forwards[forward]
        return None

    def _has_input(self, shadow: ShadowState) -> bool:
        """Stage 0 reads the data by index; other inputs are outputs of the node's own stage."""
        before = shadow.state.before
        if before is None:
            return True
        place = shadow.step * before.microbatches + shadow.forwards_done
        return before.node is shadow.host.node and before.outputs[place] > 0

    def _has_output_gradient(self, shadow: ShadowState) -> bool:
        """Its redundant forward is done, and the successor has sent the gradient here as well."""
        state, microbatch = shadow.state, shadow.backwards_done
        if shadow.forwards_done <= microbatch:
            return False
        place = shadow.step * state.microbatches + microbatch
        return state.after is None or state.regradients[place] > 0

    def _fits(self, shadow: ShadowState) -> bool:
        slot, cursor = shadow.state.slot, shadow.host.cursor
        fitting = self._budgets.get(slot, {})
        mode = self._modes[slot.stage]
        return mode != "gap" or shadow.used.get(cursor, 0) < fitting.get(cursor, 0)

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
        stage = state.slot.stage
        step = state.step
        instruction = state.instructions[state.cursor]
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


def _first_of(ready: list[Ready]) -> Ready:
    """The operation that the picker chooses."""
    operations = [
        ReadyOp(actor.slot, actor.step, instruction, actor.recovering == actor.step)
        for actor, instruction in ready
    ]
    first = next_op(operations)
    return next(one for one, op in zip(ready, operations, strict=True) if op is first)
