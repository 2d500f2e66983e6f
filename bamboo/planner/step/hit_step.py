"""The dry run of a step in which a node is lost: the least duration of the hit step.

Rule: it is the dry run of every other step, with the same picker, programs and links, and one more
event: the node is gone, its shadows own its slots at the same time and repeat its work of the step,
as the runtime does. Messages that it had sent still arrive; detection, decision and report take no
time.
"""

from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.planner.step.dry_run import DryRun
from bamboo.planner.step.layout import Costs, Layout, merged
from bamboo.planner.step.standing import Budgets
from bamboo.planner.step.states import NodeState, ShadowState, SlotState
from bamboo.planner.step.timeline import Ran, Timeline
from bamboo.topology.slots import Slot


def hit_run(
    layout: Layout,
    costs: Costs,
    *,
    victim: NodeId,
    at_ns: int,
    steps: int,
    budgets: Budgets | None = None,
) -> Timeline:
    """Run `steps` optimizer steps, in which `victim` is lost at `at_ns`; merged nodes own its slots
    from then on. Raises ValueError if one of its slots has no live copy, CoreMisuse for a grid of
    several pipelines."""
    if layout.assignment.grid.pipelines > 1:
        raise CoreMisuse(
            "a hit step is played for one pipeline; give the layout of the one that is hit"
        )
    return _HitRun(layout, costs, steps, budgets or {}, victim=victim, at_ns=at_ns).run()


class _HitRun(DryRun):
    """One dry run with a loss in it."""

    MAY_WORK_OUT = False

    def __init__(
        self,
        layout: Layout,
        costs: Costs,
        steps: int,
        budgets: Budgets,
        *,
        victim: NodeId,
        at_ns: int,
    ) -> None:
        super().__init__(layout, costs, steps, budgets)
        self._victim = victim
        self._after = merged(layout, victim)
        self._bare = {*layout.assignment.owned_by(victim), *layout.assignment.shadowed_by(victim)}
        """Slots without a shadow after the loss."""
        self._gone = False
        self._ahead: dict[tuple[Slot, str], int] = {}
        """For slots of the victim, the forwards and backwards that the shadow had run ahead."""
        self._acked: set[tuple[Slot, int]] = set()
        self._said: set[tuple[Slot, int]] = set()
        """Steps whose squares a slot has sent."""
        self._links.at(at_ns, (self._lose, None, None))

    def _acknowledged(self, state: SlotState, step: int) -> None:
        if not (self._gone and state.slot in self._bare):
            self._acked.add((state.slot, step))
            super()._acknowledged(state, step)

    def _lose(self, *_: None) -> None:
        """The victim is gone, and its shadows own its slots."""
        self._gone = True
        lost = self._nodes[self._victim]
        for state in lost.owned:
            self._promote(self._nodes[self._after.assignment.owner(state.slot)], state)
        lost.owned = []
        lost.shadowed = []
        for slot in self._bare:
            # The slot has no shadow any more, so no step waits for one.
            self._shadow_count -= 1
            for step in range(self._steps):
                self._acks[step] -= (slot, step) in self._acked
        now_ns = self._links.now_ns
        self._ran = [r for r in self._ran if r.node != self._victim or r.end_ns <= now_ns]
        self._layout = self._after
        self._wire()
        self._changed.update(dict.fromkeys(self._nodes.values()))

    def _promote(self, heir: NodeState, state: SlotState) -> None:
        shadow = next(s for s in heir.shadowed if s.state is state)
        heir.shadowed.remove(shadow)
        # A reduced gradient that is already there is used, never computed again.
        taken = state.shipped[shadow.step] > 0
        state.begin(shadow.step + taken)
        state.node = heir
        state.recovering = state.step
        heir.owned.append(state)
        if not taken:
            self._ahead[state.slot, "F"] = shadow.forwards_done
            self._ahead[state.slot, "B"] = shadow.backwards_done

    def _pick(self, node: NodeState) -> Ran | None:
        """An operation that was computed ahead is only sent."""
        ran, actor = super()._pick(node), node.actor
        if ran is None or actor is None or actor.recovering != ran.step:
            return ran
        index, kind = ran.instruction.microbatch, ran.instruction.kind
        if index is not None and index < self._ahead.get((ran.slot, kind), 0):
            return ran._replace(end_ns=ran.start_ns)
        return ran

    def _reduced(self, state: SlotState) -> None:
        """Squares that are sent a second time are the same squares, and are ignored."""
        if (state.slot, state.step) not in self._said:
            self._said.add((state.slot, state.step))
            super()._reduced(state)

    def _finish(self, node: NodeState, ran: Ran) -> None:
        """The victim's operation is lost, and so is what its heir was running ahead for it."""
        lost = self._gone and node.id == self._victim
        actor = node.actor
        followed = isinstance(actor, ShadowState) and actor not in node.shadowed
        if lost or followed:
            self._changed[node] = None
            return
        super()._finish(node, ran)
