"""The dry run of a step in which a node is lost: what the hit step takes at best.

Rule: it is the dry run of every other step, with the same picker, programs and links, and one more
thing that happens at a time: the node is gone, its shadows own its slots in the same instant and do
again what it had done in the step, as the runtime does. What it had sent stands; to detect, decide
and tell takes no time.
"""

from dataclasses import replace

from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.schedule.dry_run import Budgets, DryRun, Key
from bamboo.schedule.layout import Costs, Layout, merged
from bamboo.schedule.picker import ReadyOp
from bamboo.schedule.redundancy import ahead_of_need
from bamboo.schedule.states import NodeState, ShadowState, SlotState
from bamboo.schedule.timeline import Ran, Timeline
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
    from then on. Raises ValueError when a slot of it has no live copy, CoreMisuse for a grid of
    several pipelines."""
    if layout.assignment.grid.pipelines > 1:
        raise CoreMisuse(
            "a hit step is played for one pipeline; give the layout of the one that is hit"
        )
    return _HitRun(layout, costs, steps, budgets or {}, victim=victim, at_ns=at_ns).run()


class _HitRun(DryRun):
    """One dry run with a loss in it."""

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
        self._victim, self._after = victim, merged(layout, victim)
        self._bare = {*layout.assignment.owned_by(victim), *layout.assignment.shadowed_by(victim)}
        """Slots that nobody shadows once it is lost."""
        self._gone = False
        self._hit: dict[Slot, int] = {}
        """Slots of the victim, and the step in which each goes on."""
        self._ahead: dict[tuple[Slot, str], int] = {}
        """Of those, the forwards and backwards that the shadow had run ahead in that step."""
        self._links.at(at_ns, ("lost", layout.assignment.owned_by(victim)[0], 0, -1))

    def _arrive(self, key: Key) -> None:
        kind, slot, step, _ = key
        if kind == "lost":
            self._lose()
        elif not (kind == "ack" and self._gone and slot in self._bare):
            if kind == "ack":
                self._have.add(("acked", slot, step, -1))
            super()._arrive(key)

    def _lose(self) -> None:
        """The victim is gone, and its shadows own its slots."""
        self._gone = True
        for slot in self._after.assignment.grid.slots():
            if self._owners[slot] == self._victim:
                heir = self._after.assignment.owner(slot)
                self._promote(self._nodes[heir], slot)
                self._owners[slot] = heir
        lost = self._nodes[self._victim]
        lost.owned, lost.shadowed = [], []
        for slot in self._bare:
            # Nobody follows it any more, so no step waits for it.
            self._shadow_count -= 1
            for step in range(self._steps):
                self._acks[step] = self._acks.get(step, 0) - (
                    ("acked", slot, step, -1) in self._have
                )
        now_ns = self._links.now_ns
        self._ran = [r for r in self._ran if r.node != self._victim or r.end_ns <= now_ns]
        self._layout = self._after
        self._changed.update(dict.fromkeys(self._nodes))

    def _promote(self, heir: NodeState, slot: Slot) -> None:
        shadow = next(s for s in heir.shadowed if s.slot == slot)
        heir.shadowed.remove(shadow)
        state = SlotState(slot, self._layout.program(slot).instructions)
        # A reduced gradient that is there already is taken, never computed again.
        taken = ("ship", slot, shadow.step, -1) in self._have
        state.step = shadow.step + taken
        heir.owned.append(state)
        self._hit[slot] = state.step
        if not taken:
            self._note_what_is_done(shadow)

    def _note_what_is_done(self, shadow: ShadowState) -> None:
        slot = shadow.slot
        count = self._layout.program(slot).microbatches
        ahead = ahead_of_need(self._modes[slot.stage], stage=slot.stage, microbatches=count)
        for kind, left in (("F", shadow.forwards), ("B", shadow.backwards)):
            self._ahead[slot, kind] = sum(i.kind == f"{kind}R" for i in ahead) - len(left)

    def _pick(self, node: NodeState) -> Ran | None:
        """What was computed ahead is only sent."""
        ran = super()._pick(node)
        if ran is None or self._hit.get(ran.slot) != ran.step:
            return ran
        index, kind = ran.instruction.microbatch, ran.instruction.kind
        if index is not None and index < self._ahead.get((ran.slot, kind), 0):
            return replace(ran, end_ns=ran.start_ns)
        return ran

    def _ready(self, node: NodeState) -> list[ReadyOp]:
        """A slot that has not caught up is in recovery."""
        return [
            op._replace(recovery=True) if self._hit.get(op.slot) == op.step else op
            for op in super()._ready(node)
        ]

    def _reduced(self, slot: Slot, step: int) -> None:
        """Squares that are said a second time are the same squares."""
        if ("reduced", slot, step, -1) not in self._have:
            self._have.add(("reduced", slot, step, -1))
            super()._reduced(slot, step)

    def _finish(self, ran: Ran) -> None:
        """What the victim was at is nobody's; what its heir was running ahead is of no use now."""
        lost = self._gone and ran.node == self._victim
        shadow_run = ran.instruction.kind in ("FR", "BR", "R")
        if lost or (shadow_run and ran.slot in self._hit):
            self._changed[ran.node] = None
            return
        super()._finish(ran)
