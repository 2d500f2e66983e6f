"""The symbolic dry run: all nodes run their programs, with given durations and no machines.

Rule: it follows the rules of the runtime: one operation at a time on a node, the same picker, each
stage's fixed order, messages that take time, and a step that begins only when every shadow has
acknowledged the step before the last. Time is a whole number of nanoseconds, so that figures are
exact and two operations that end together do end together.
"""

from operator import itemgetter

from bamboo.ids import NodeId
from bamboo.planner.step.fixed_order import begins_fixed_order, work_out
from bamboo.planner.step.layout import Costs, Layout, at_stage, exchanged_bytes
from bamboo.planner.step.links import Happening
from bamboo.planner.step.standing import Budgets, Standing
from bamboo.planner.step.states import UNKNOWN_NS, NodeState, SlotState
from bamboo.planner.step.timeline import Ran, Timeline

NOBODY = NodeId("")
"""Stands for all nodes of pipelines that are not simulated."""


def dry_run(
    layout: Layout, costs: Costs, *, steps: int = 1, budgets: Budgets | None = None
) -> Timeline:
    """Run `steps` optimizer steps of `layout`.

    For stages in mode `gap`, `budgets` says which redundant forwards fit (`figures.gap_budgets`);
    without it none does. Raises Deadlock, with what each operation waits for, if some cannot run.
    """
    if steps < 1:
        raise ValueError(f"a dry run needs at least 1 step, not {steps}")
    return DryRun(layout, costs, steps, budgets or {}).run()


class DryRun(Standing):
    """The event loop of one dry run: a heap of timed events, in order."""

    MAY_WORK_OUT = True
    """Whether nodes of fixed order are computed without events, as nothing unforeseen happens."""

    def __init__(self, layout: Layout, costs: Costs, steps: int, budgets: Budgets) -> None:
        super().__init__(layout, costs, steps, budgets)
        self._changed = dict.fromkeys(self._nodes.values())  # may be able to start an operation
        self._sends_until_ns: dict[NodeId, int] = {}
        self._ran: list[Ran] = []
        self._commit_ns = [0] * steps
        self._settled_ns = [0] * steps

    # -------------------------------------------------------------- the loop

    def run(self) -> Timeline:
        links = self._links
        self._start_what_can()
        while happened := links.next_moment():
            for tell, whom, what in happened:
                tell(whom, what)
            self._start_what_can()
        self._check_all_is_done()
        return Timeline(
            layout=self._layout,
            steps=self._steps,
            commit_ns=tuple(self._commit_ns),
            settled_ns=tuple(self._settled_ns),
            operations=self._operations,
        )

    def _operations(self) -> tuple[Ran, ...]:
        """All operations that ran, in order."""
        ran = list(self._ran)
        for state in self._slots.values():
            ran += (
                state.ran(at, start_ns)
                for at, start_ns in enumerate(state.starts_ns)
                if start_ns < UNKNOWN_NS
            )
        start_end_node = itemgetter(4, 5, 0)
        ran.sort(key=start_end_node)
        return tuple(ran)

    def _start_what_can(self) -> None:
        """Start an operation on every idle node. First run all that take no time to their end,
        because what they enable at this time may have a higher rank than anything else."""
        chosen: dict[NodeState, Ran] = {}
        while self._changed:
            changed, self._changed = self._changed, {}
            for node in changed:
                if chosen:
                    chosen.pop(node, None)
                ran = None if node.busy else self._pick(node)
                if ran is None:
                    continue
                if ran.end_ns > ran.start_ns:
                    chosen[node] = ran
                else:
                    self._begin(node, ran)
                    self._finish(node, ran)
        for node, ran in chosen.items():
            node.busy = True
            if self.MAY_WORK_OUT and begins_fixed_order(node, self._links.now_ns):
                self._work_out(node.owned[0])
            else:
                self._begin(node, ran)
                self._links.at(ran.end_ns, (self._end, node, ran))

    def _work_out(self, state: SlotState) -> None:
        """Run a slot of fixed order, and other slots that this lets continue. The last operations
        of programs end like all others."""
        for at_last in work_out(state, self._links, self._arrive):
            node = at_last.node
            node.fixed_order = False
            ran = at_last.ran(at_last.at, max(node.free_ns, at_last.there_ns[at_last.at]))
            node.actor = at_last
            self._begin(node, ran)
            self._links.at(ran.end_ns, (self._end, node, ran))

    def _end(self, node: NodeState, ran: Ran) -> None:
        node.busy = False
        self._finish(node, ran)

    # -------------------------------------------------------------- what an operation changes

    def _begin(self, node: NodeState, ran: Ran) -> None:
        self._ran.append(ran)
        actor, kind = node.actor, ran.instruction.kind
        if isinstance(actor, SlotState):
            if kind == "S":
                self._ship(actor)
        elif actor is not None and kind != "R":
            if kind == "FR":
                actor.forwards_done += 1
            else:
                actor.backwards_done += 1
            cursor = actor.host.cursor
            actor.used[cursor] = actor.used.get(cursor, 0) + 1

    def _finish(self, node: NodeState, ran: Ran) -> None:
        """Advance the slot and send what the operation made."""
        actor, instruction = node.actor, ran.instruction
        self._changed[node] = None
        if not isinstance(actor, SlotState):
            if actor is not None and instruction.kind == "R":
                actor.begin(ran.step + 1)
                when_ns = self._links.now_ns + self._links.latency_ns
                self._links.at(when_ns, (self._acknowledged, actor.state, ran.step))
        elif instruction.kind == "F":
            self._send_output(actor, instruction.microbatch or 0)
        elif instruction.kind == "B":
            self._send_gradient(actor, instruction.microbatch or 0)
        elif instruction.kind == "X":
            self._exchange(actor)
        else:
            self._step(actor)

    def _send_output(self, state: SlotState, microbatch: int) -> None:
        state.at += 1
        state.outputs[state.step * state.microbatches + microbatch] = True
        after = state.after
        if after is not None:
            place = state.step * after.width + after.forward_at[microbatch]
            self._links.carry(state.output_lanes, state.output_ns, (self._arrive, after, place))

    def _send_gradient(self, state: SlotState, microbatch: int) -> None:
        """To the stage before, and if that has mode `full`, to its shadow too."""
        state.at += 1
        before = state.before
        if before is None:
            return
        links = self._links
        lanes = state.gradient_lanes
        takes_ns = state.gradient_ns
        place = state.step * before.width + before.backward_at[microbatch]
        links.carry(lanes, takes_ns, (self._arrive, before, place))
        if state.sends_twice and before.shadow is not None:
            size = at_stage(self._costs.back_bytes, before.slot.stage)
            place = state.step * before.microbatches + microbatch
            self._send(state, before.shadow.id, (self._arrive_again, before, place), size)

    def _exchange(self, state: SlotState) -> None:
        """First the partial sums go to the owners of shards, and results come back: the latency of
        two messages. Once all are here, or at once in a grid of one pipeline, the gradient is
        whole."""
        slot = state.slot
        node = state.node.id
        step = state.step
        if not state.sent[step]:
            state.sent[step] = True
            for peer in self._grid.column(slot.stage):
                to = self._slots[peer]
                size = exchanged_bytes(self._costs, slot.stage, slot.pipeline, peer.pipeline)
                self._send(state, to.node.id, (self._add_part, to, step), size, hops=2)
            if (peers_s := at_stage(self._costs.peers_s, slot.stage)) > 0:
                begin_ns = max(self._links.now_ns, self._sends_until_ns.get(node, 0))
                self._sends_until_ns[node] = begin_ns + round(peers_s * 1e9)
                self._links.at(self._sends_until_ns[node], (self._add_part, state, step))
            if (wanted := self._partial_sums(slot)) > 1:
                state.there_ns[state.at] = 0 if state.parts[step] >= wanted else UNKNOWN_NS
                return
        state.at += 1
        self._reduced(state)

    def _reduced(self, state: SlotState) -> None:
        """The whole gradient of a slot is there: its squares go to all owners."""
        peers = self._partial_sums(state.slot) > self._grid.pipelines
        for other in self._slots.values():
            to = NOBODY if peers else other.node.id  # those of peers do not arrive sooner
            self._send(state, to, (self._add_norm, other, state.step), 0.0)

    def _ship(self, state: SlotState) -> None:
        """The gradient goes to the shadow when the owner begins its step with it."""
        if state.shadow is not None:
            lanes = self._links.lanes(state.node.id, state.shadow.id)
            size = at_stage(self._costs.gradient_bytes, state.slot.stage)
            takes_ns = 0 if lanes is None else lanes.carry_ns(size)
            happens = (self._arrive_shipped, state, state.step)
            self._links.carry_yielding(lanes, takes_ns, happens)

    def _step(self, state: SlotState) -> None:
        step = state.step
        state.begin(step + 1)
        for shadow in state.node.shadowed:
            if shadow.host is state:
                shadow.used.clear()
        self._stepped[step] += 1
        self._commit_ns[step] = self._links.now_ns
        self._settle(step)

    def _send(
        self, state: SlotState, to: NodeId, happens: Happening, size_bytes: float, hops: int = 1
    ) -> None:
        lanes = self._links.lanes(state.node.id, to)
        takes_ns = 0 if lanes is None else lanes.carry_ns(size_bytes)
        self._links.carry(lanes, takes_ns, happens, hops=hops)

    # -------------------------------------------------------------- what a message changes

    def _arrive(self, state: SlotState, at: int) -> None:
        """An output of the stage before, or a gradient of the stage after, has arrived."""
        state.there_ns[at] = self._links.now_ns
        if state.node.fixed_order:
            if state.at == at:
                self._work_out(state)
            return
        self._changed[state.node] = None
        if state.shadow is not None:
            self._changed[state.shadow] = None

    def _arrive_again(self, state: SlotState, place: int) -> None:
        """The gradient of an output has arrived at the shadow."""
        state.regradients[place] = True
        self._changed[state.node] = None
        if state.shadow is not None:
            self._changed[state.shadow] = None

    def _arrive_shipped(self, state: SlotState, step: int) -> None:
        """The reduced gradient has arrived at the shadow."""
        state.shipped[step] = True
        self._changed[state.node] = None
        if state.shadow is not None:
            self._changed[state.shadow] = None

    def _add_part(self, state: SlotState, step: int) -> None:
        self._changed[state.node] = None
        state.parts[step] += 1
        if state.sent[step] and state.parts[step] >= self._partial_sums(state.slot):
            state.there_ns[(step + 1) * state.width - 2] = 0

    def _add_norm(self, state: SlotState, step: int) -> None:
        self._changed[state.node] = None
        state.norms[step] += 1
        if state.norms[step] >= self._grid.size:
            state.there_ns[(step + 1) * state.width - 1] = 0

    def _acknowledged(self, state: SlotState, step: int) -> None:
        self._changed[state.node] = None
        self._acks[step] += 1
        self._settle(step)

    def _settle(self, step: int) -> None:
        """Note when a step is done everywhere: its stash is free, the step after next may begin."""
        if self._is_settled(step):
            self._changed.update(dict.fromkeys(self._nodes.values()))
            if self._stepped[step] == self._grid.size:
                self._settled_ns[step] = self._links.now_ns
