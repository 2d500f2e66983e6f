"""The symbolic dry run: all nodes run their programs, with given durations and no machines.

Rule: it obeys what the runtime obeys: one operation at a time on a node, the same picker, each
stage's fixed order, messages that take time, a step that begins only when every shadow has
acknowledged the step before the last. Time is a whole number of nanoseconds, so that figures are
exact and two operations that end together do end together.
"""

from collections.abc import Mapping
from typing import TypeAlias

from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.schedule.instruction import Instruction
from bamboo.schedule.layout import Costs, Layout, at_stage
from bamboo.schedule.links import Links
from bamboo.schedule.picker import ReadyOp, next_op
from bamboo.schedule.redundancy import ahead_of_need
from bamboo.schedule.states import NodeState, ShadowState, SlotState
from bamboo.schedule.timeline import Ran, Timeline
from bamboo.topology.slots import Slot

Budgets: TypeAlias = Mapping[Slot, Mapping[int, int]]
"""Of each shadowed slot: cursor of the host's program -> redundant forwards that fit there."""

Key: TypeAlias = tuple[str, Slot, int, int]
"""Kind of message, the slot it is for, step, microbatch or -1."""


class Deadlock(CoreMisuse):
    """Nothing can run and not all is done. `waiting` names each operation and what it lacks."""

    def __init__(self, waiting: tuple[str, ...]) -> None:
        super().__init__(
            f"the schedule deadlocks: {'; '.join(waiting)}; "
            "order the programs so that no stage waits for one that waits for it"
        )
        self.waiting = waiting


def dry_run(
    layout: Layout, costs: Costs, *, steps: int = 1, budgets: Budgets | None = None
) -> Timeline:
    """Run `steps` optimizer steps of `layout`.

    For stages in mode `gap`, `budgets` says which redundant forwards fit (`figures.gap_budgets`);
    without it none does. Raises Deadlock, naming what waits, when not everything can run.
    """
    if steps < 1:
        raise ValueError(f"a dry run needs at least 1 step, not {steps}")
    return DryRun(layout, costs, steps, budgets or {}).run()


class DryRun:
    """The event loop of one dry run: a heap of things that happen at a time, in order."""

    def __init__(self, layout: Layout, costs: Costs, steps: int, budgets: Budgets) -> None:
        self._layout = layout
        self._grid = layout.assignment.grid
        self._steps = steps
        self._budgets = budgets
        self._modes = layout.modes
        self._costs = costs
        self._have: set[Key] = set()
        self._sent: set[tuple[Slot, int]] = set()  # partial sums, of a step
        self._sends_until_ns: dict[NodeId, int] = {}
        self._parts: dict[tuple[str, Slot, int], int] = {}
        self._acks: dict[int, int] = {}
        self._links: Links[Key | Ran] = Links(
            latency_s=costs.latency_s, bytes_per_s=costs.bytes_per_s, far=costs.far
        )
        self._ran: list[Ran] = []
        self._commit_ns = [0] * steps
        self._settled_ns = [0] * steps
        self._stepped = [0] * steps
        self._shadow_count = 0
        self._build()
        self._duration_ns = self._durations()

    def _build(self) -> None:
        assignment = self._layout.assignment
        owners: dict[Slot, NodeId] = {s: assignment.owner(s) for s in self._grid.slots()}
        self._nodes: dict[NodeId, NodeState] = {
            n: NodeState(n) for n in dict.fromkeys(owners.values())
        }
        self._changed = dict.fromkeys(self._nodes)  # nodes that may be able to start something
        for slot, owner in owners.items():
            state = SlotState(slot, self._layout.program(slot).instructions)
            self._nodes[owner].owned.append(state)
        for slot in self._grid.slots():
            if (shadow := assignment.shadow(slot)) is None:
                continue
            if shadow not in self._nodes:
                raise ValueError(f"node {shadow} shadows {slot} and owns nothing: not modelled")
            node = self._nodes[shadow]
            node.shadowed.append(ShadowState(slot, node.owned[0]))
            self._begin_ahead(node.shadowed[-1], 0)
            self._shadow_count += 1
        self._owners = owners

    def _begin_ahead(self, shadow: ShadowState, step: int) -> None:
        """The shadow stands at `step`: all that its mode runs ahead is still to do."""
        count = self._layout.program(shadow.slot).microbatches
        ahead = ahead_of_need(
            self._modes[shadow.slot.stage], stage=shadow.slot.stage, microbatches=count
        )
        shadow.step = step
        shadow.forwards = [i for i in ahead if i.kind == "FR"]
        shadow.backwards = [i for i in ahead if i.kind == "BR"]

    def _durations(self) -> dict[tuple[str, int], int]:
        costs = self._costs
        forward, backward, step = costs.forward_s, costs.backward_s, costs.step_s
        kinds = {"F": forward, "FR": forward, "B": backward, "BR": backward}
        kinds |= {"X": costs.exchange_s, "S": step, "R": step}
        return {
            (kind, stage): round(at_stage(figures, stage) * 1e9)
            for kind, figures in kinds.items()
            for stage in range(self._grid.stages)
        }

    # -------------------------------------------------------------- the loop

    def run(self) -> Timeline:
        self._start_what_can()
        while happened := self._links.next_moment():
            for what in happened:
                if isinstance(what, Ran):
                    self._nodes[what.node].busy = False
                    self._finish(what)
                else:
                    self._arrive(what)
            self._start_what_can()
        if self._stepped[-1] < self._grid.size:
            raise Deadlock(tuple(self._waiting()))
        self._ran.sort(key=lambda ran: (ran.start_ns, ran.end_ns, ran.node))
        return Timeline(
            layout=self._layout,
            steps=self._steps,
            ran=tuple(self._ran),
            commit_ns=tuple(self._commit_ns),
            settled_ns=tuple(self._settled_ns),
        )

    def _start_what_can(self) -> None:
        """Start an operation on every idle node; first run to the end all that take no time,
        since what they unblock at this very moment may come before anything else."""
        chosen: dict[NodeId, Ran] = {}
        while self._changed:
            changed, self._changed = self._changed, {}
            for node_id in changed:
                chosen.pop(node_id, None)
                node = self._nodes[node_id]
                ran = None if node.busy else self._pick(node)
                if ran is None:
                    continue
                if ran.end_ns > ran.start_ns:
                    chosen[node_id] = ran
                else:
                    self._begin(node, ran)
                    self._finish(ran)
        for node_id, ran in chosen.items():
            self._begin(self._nodes[node_id], ran)
            self._nodes[node_id].busy = True
            self._links.at(ran.end_ns, ran)

    def _pick(self, node: NodeState) -> Ran | None:
        if (choice := next_op(self._ready(node))) is None:
            return None
        instruction = choice.instruction
        duration_ns = self._duration_ns[instruction.kind, instruction.stage]
        if instruction.kind == "X" and (choice.slot, choice.step) in self._sent:
            duration_ns = 0  # the rest of an exchange takes what came, its work is done
        return Ran(
            node=node.id,
            slot=choice.slot,
            step=choice.step,
            instruction=instruction,
            start_ns=self._links.now_ns,
            end_ns=self._links.now_ns + duration_ns,
            host_cursor=node.owned[0].cursor,
        )

    # -------------------------------------------------------------- what is ready

    def _ready(self, node: NodeState) -> list[ReadyOp]:
        ready = []
        for state in node.owned:
            instruction = self._next_own(state)
            if instruction is not None and self._lacks(state, instruction) is None:
                ready.append(ReadyOp(state.slot, state.step, instruction))
        for shadow in node.shadowed:
            instruction = self._next_of_shadow(shadow)
            if instruction is not None:
                ready.append(ReadyOp(shadow.slot, shadow.step, instruction))
        return ready

    def _next_own(self, state: SlotState) -> Instruction | None:
        if state.step == self._steps:
            return None
        if state.cursor < len(state.program):
            return state.program[state.cursor]
        done = state.cursor > len(state.program)
        return Instruction(stage=state.slot.stage, kind="S" if done else "X")

    def _lacks(self, state: SlotState, instruction: Instruction) -> str | None:
        """What the slot's next operation waits for; None when it is ready."""
        slot, step, microbatch = state.slot, state.step, instruction.microbatch
        if state.cursor == 0 and step >= 2 and not self._is_settled(step - 2):
            return f"the acknowledgements of step {step - 2}"
        if instruction.kind == "F" and slot.stage > 0:
            if ("act", slot, step, microbatch) not in self._have:
                return f"{slot.stage - 1}F{microbatch}"
        elif instruction.kind == "B" and slot.stage < self._grid.stages - 1:
            if ("grad", slot, step, microbatch) not in self._have:
                return f"{slot.stage + 1}B{microbatch}"
        elif instruction.kind == "X" and (slot, step) in self._sent:
            lacking = self._partial_sums(slot) - self._parts.get(("part", slot, step), 0)
            if lacking > 0:
                return f"the partial sums of {lacking} pipelines"
        elif instruction.kind == "S":
            count = self._parts.get(("norm", slot, step), 0)
            if count < self._grid.size:
                return f"the squares of {self._grid.size - count} slots"
        return None

    def _partial_sums(self, slot: Slot) -> int:
        return self._grid.pipelines + (at_stage(self._costs.peers_s, slot.stage) > 0)

    def _is_settled(self, step: int) -> bool:
        return self._acks.get(step, 0) == self._shadow_count

    def _next_of_shadow(self, shadow: ShadowState) -> Instruction | None:
        """The replica's step once the gradient came, which ends all use of running ahead in that
        step; before that the next redundant backward or forward whose input is there."""
        slot, step = shadow.slot, shadow.step
        if ("ship", slot, step, -1) in self._have:
            return Instruction(stage=slot.stage, kind="R")
        if step == self._steps:
            return None
        forwards, backwards = shadow.forwards, shadow.backwards
        if backwards and self._has_output_gradient(shadow, backwards[0]):
            return backwards[0]
        if forwards and self._has_input(shadow, forwards[0]) and self._fits(shadow):
            return forwards[0]
        return None

    def _has_input(self, shadow: ShadowState, instruction: Instruction) -> bool:
        """Stage 0 reads the data by index; else the input is an output of the node's own."""
        if shadow.slot.stage == 0:
            return True
        before = self._grid.protector(shadow.slot)
        key = ("out", before, shadow.step, instruction.microbatch or 0)
        return self._owners[before] == self._owners[shadow.host.slot] and key in self._have

    def _has_output_gradient(self, shadow: ShadowState, instruction: Instruction) -> bool:
        """Its redundant forward is done, and the successor sent the gradient here as well."""
        if len(shadow.forwards) >= len(shadow.backwards):
            return False
        key = ("regrad", shadow.slot, shadow.step, instruction.microbatch or 0)
        return shadow.slot.stage == self._grid.stages - 1 or key in self._have

    def _fits(self, shadow: ShadowState) -> bool:
        mode, cursor = self._modes[shadow.slot.stage], shadow.host.cursor
        fitting = self._budgets.get(shadow.slot, {})
        return mode != "gap" or shadow.used.get(cursor, 0) < fitting.get(cursor, 0)

    # -------------------------------------------------------------- what an operation changes

    def _begin(self, node: NodeState, ran: Ran) -> None:
        self._ran.append(ran)
        kind = ran.instruction.kind
        if kind in ("FR", "BR"):
            shadow = next(s for s in node.shadowed if s.slot == ran.slot)
            (shadow.forwards if kind == "FR" else shadow.backwards).pop(0)
            cursor = shadow.host.cursor
            shadow.used[cursor] = shadow.used.get(cursor, 0) + 1
        elif kind == "S":
            self._ship(ran)

    def _finish(self, ran: Ran) -> None:
        """Advance the slot and send what the operation made."""
        kind, slot, step = ran.instruction.kind, ran.slot, ran.step
        microbatch = -1 if ran.instruction.microbatch is None else ran.instruction.microbatch
        node = self._nodes[ran.node]
        self._changed[ran.node] = None
        if kind == "R":
            shadow = next(s for s in node.shadowed if s.slot == slot)
            self._begin_ahead(shadow, step + 1)
            self._links.at(self._links.now_ns + self._links.latency_ns, ("ack", slot, step, -1))
            return
        if kind in ("FR", "BR"):
            return
        state = next(s for s in node.owned if s.slot == slot)
        if kind == "F":
            state.cursor += 1
            self._have.add(("out", slot, step, microbatch))
            if slot.stage < self._grid.stages - 1:
                after = Slot(pipeline=slot.pipeline, stage=slot.stage + 1)
                size = at_stage(self._costs.boundary_bytes, slot.stage)
                self._send(ran.node, self._owners[after], ("act", after, step, microbatch), size)
        elif kind == "B":
            state.cursor += 1
            if slot.stage > 0:
                self._send_gradient(ran, slot, step, microbatch)
        elif kind == "X":
            self._exchange(state, ran.node, step)
        else:
            state.step, state.cursor = step + 1, 0
            for shadow in node.shadowed:
                if shadow.host is state:
                    shadow.used.clear()
            self._stepped[step] += 1
            self._commit_ns[step] = self._links.now_ns
            self._settle(step)

    def _send_gradient(self, ran: Ran, slot: Slot, step: int, microbatch: int) -> None:
        """To the stage before, and where that has mode `full` to its shadow too."""
        before = Slot(pipeline=slot.pipeline, stage=slot.stage - 1)
        size = at_stage(self._costs.boundary_bytes, before.stage)
        self._send(ran.node, self._owners[before], ("grad", before, step, microbatch), size)
        shadow = self._layout.assignment.shadow(before)
        if self._modes[before.stage] == "full" and shadow is not None:
            self._send(ran.node, shadow, ("regrad", before, step, microbatch), size)

    def _exchange(self, state: SlotState, node: NodeId, step: int) -> None:
        """First the partial sums go to the owners of shards, and results come back: two messages'
        latency. Once all are here, or at once in a grid of one pipeline, the gradient is whole."""
        slot = state.slot
        if (slot, step) not in self._sent:
            self._sent.add((slot, step))
            size = at_stage(self._costs.exchange_bytes, slot.stage)
            for peer in self._grid.column(slot.stage):
                self._send(node, self._owners[peer], ("part", peer, step, -1), size, hops=2)
            if (peers_s := at_stage(self._costs.peers_s, slot.stage)) > 0:
                begin_ns = max(self._links.now_ns, self._sends_until_ns.get(node, 0))
                self._sends_until_ns[node] = begin_ns + round(peers_s * 1e9)
                self._links.at(self._sends_until_ns[node], ("part", slot, step, -1))
            if self._partial_sums(slot) > 1:
                return
        state.cursor += 1
        self._reduced(slot, step)

    def _reduced(self, slot: Slot, step: int) -> None:
        """The whole gradient of a slot is there: its squares go to all."""
        owner, peers = self._owners[slot], self._partial_sums(slot) > self._grid.pipelines
        for other in self._grid.slots():
            to = NodeId("") if peers else self._owners[other]  # theirs are here no sooner
            self._send(owner, to, ("norm", other, step, -1), 0.0)

    def _ship(self, ran: Ran) -> None:
        """The gradient goes to the shadow when the owner begins to step with it."""
        shadow = self._layout.assignment.shadow(ran.slot)
        if shadow is not None:
            size = at_stage(self._costs.gradient_bytes, ran.slot.stage)
            self._send(ran.node, shadow, ("ship", ran.slot, ran.step, -1), size, yields=True)

    def _send(
        self,
        source: NodeId,
        to: NodeId,
        key: Key,
        size_bytes: float,
        *,
        hops: int = 1,
        yields: bool = False,
    ) -> None:
        if self._links.carry(source, to, key, size_bytes, hops=hops, yields=yields):
            self._arrive(key)

    def _arrive(self, key: Key) -> None:
        kind, slot, step, _ = key
        self._changed[self._owners[slot]] = None
        if kind == "ack":
            self._acks[step] = self._acks.get(step, 0) + 1
            self._settle(step)
        elif kind in ("part", "norm"):
            self._parts[kind, slot, step] = self._parts.get((kind, slot, step), 0) + 1
        else:
            self._have.add(key)
            shadow = self._layout.assignment.shadow(slot)
            if shadow is not None:
                self._changed[shadow] = None

    def _settle(self, step: int) -> None:
        """Note when a step is done everywhere: its stash is free, the step after next may begin."""
        if self._is_settled(step):
            self._changed.update(dict.fromkeys(self._nodes))
            if self._stepped[step] == self._grid.size:
                self._settled_ns[step] = self._links.now_ns

    def _waiting(self) -> list[str]:
        out = []
        for node in self._nodes.values():
            for state in node.owned:
                if (instruction := self._next_own(state)) is not None:
                    lacks = self._lacks(state, instruction)
                    out.append(f"{instruction} of pipeline {state.slot.pipeline} waits for {lacks}")
        return out
