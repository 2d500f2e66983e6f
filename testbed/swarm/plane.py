"""The steps themselves: which node has begun, exchanged and taken which step.

    begin     an owner computes its step; no owner is two steps beyond the oldest copy that counts
    exchange  all slots are in the step: its whole gradient is there, its squares go to all owners
    take      an owner that has the squares of all slots takes the step
    ship      shadows follow their owners

Rule: messages are not modelled one by one. Whether a lost node's last messages arrived is random:
squares that did not arrive, a gradient that its shadow received, or data that only two neighbours
had.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bamboo.core.state import State
from bamboo.topology.slots import Slot
from testbed.swarm.copies import Copy
from testbed.swarm.evaluations import evaluate

if TYPE_CHECKING:
    from testbed.swarm.cluster import Cluster
    from testbed.swarm.member import Member

MOST = 0.85
"""Share of the nodes that continue at one time, of those that could."""


class Row:
    """A slot with its acting owner and its followers."""

    __slots__ = ("copy", "counts", "follows", "owner", "slot")

    def __init__(self, slot: Slot, owner: "Member", copy: Copy) -> None:
        self.slot, self.owner, self.copy = slot, owner, copy
        self.follows: list[tuple[Member, Copy]] = []
        self.counts: list[Copy] = []
        """The copies that a loss may find as the shadow; if there are none, the owner's own."""

    @property
    def safe_step(self) -> int:
        """The step of the oldest copy that counts."""
        step = self.copy.step
        if self.counts:
            step = self.counts[0].step
            for copy in self.counts:
                step = min(step, copy.step)
        return step


class Plane:
    """All copies of the present layout."""

    def __init__(self, world: "Cluster") -> None:
        self._world = world
        self._dirty = True
        self._rows: list[Row] = []
        self._whole = False
        self._era = -1
        self._phase = 0
        self.base = 0
        """The step with which the present layout began."""
        self.safe_step = 0
        self.pruned = 0
        """Messages of steps before this one are no longer kept."""
        self.posted: dict[Slot, int] = {}
        """The last step for which the squares of a slot reached all nodes."""
        self.stuck = False
        """Whether messages are lost that no node can repeat."""
        self._hit: dict[int, set[Slot]] = {}
        """By step, slots whose owner was lost in it."""
        self.done = 0
        """Steps that all slots have taken."""

    def changed(self) -> None:
        """Roles or members have changed."""
        self._dirty = True

    def fell_back(self, state: State) -> None:
        """The store fell back: the run continues from `state`."""
        self._dirty = True
        if state.era < self._era:
            self._era, self.posted = -1, {}

    def begins(self, state: State, base: int) -> None:
        """A layout begins, as the first node that continues in it sees it."""
        if state.era == self._era:
            return
        self._era, self.base = state.era, base
        self.safe_step = self.pruned = base
        self.posted = dict.fromkeys(state.grid.slots(), base - 1)
        self.stuck, self._hit = False, {}
        self.done = base
        self._dirty = True

    def promoted(self, slot: Slot, step: int) -> None:
        """A successor sends all nodes the results of the steps that its replica had taken."""
        self._dirty = True
        if slot in self.posted:
            self.posted[slot] = max(self.posted[slot], step - 1)

    @property
    def rows(self) -> list[Row]:
        if self._dirty:
            self._find_rows()
        return self._rows

    def _find_rows(self) -> None:
        self._dirty = False
        world = self._world
        claims: dict[Slot, Member] = {}
        here = [m for m in world.members if m.era == self._era and m.awake and not m.void]
        newest = max(here, key=lambda m: m.version, default=None)
        for member in here:
            if newest is not None and not member.is_live_in(newest.view):
                continue  # nodes that have read of that ignore it
            for slot in member.owned:
                other = claims.get(slot)
                if other is not None and other.view.generation == member.view.generation:
                    world.checkers.two_owners(slot, member, other)
                if other is None or member.view.generation > other.view.generation:
                    claims[slot] = member
        self._rows = []
        for slot, owner in claims.items():
            row = Row(slot, owner, owner.owned[slot])
            row.follows = [
                (m, m.shadowed[slot])
                for m in world.members
                if slot in m.shadowed and m.era == self._era
            ]
            row.follows += [
                (m, copy)
                for m in world.members
                for feed, copy in m.prefetch.copies.items()
                if feed.slot == slot and feed.source == owner.node
            ]
            row.counts = self._counting(row)
            self._rows.append(row)
        self._whole = len(claims) == len(self.posted)

    # ---------------------------------------------------------------- safe steps

    def _counting(self, row: Row) -> list[Copy]:
        """The copies of a slot that a loss may find as its shadow."""
        names = {
            self._named(row.owner.view, row.slot),
            self._named(self._world.log.state, row.slot),
        }
        names.add(row.owner.guarded(row.slot))
        names -= {None, row.owner.node}
        counts = []
        for name in names:
            member = self._world.member(name)
            copy = None
            if member is not None and member.era == self._era:
                copy = member.shadowed.get(row.slot) or member.owned.get(row.slot)
            counts.append(copy or Copy(row.slot, 0, 0, self.base))
        return counts

    def _named(self, state: State, slot: Slot) -> str | None:
        if state.assignment is None or state.era != self._era or slot not in self.posted:
            return None
        return state.assignment.shadow(slot)

    # ---------------------------------------------------------------- the passage of time

    def tick(self) -> float:
        """Advance by one part of a step; returns its duration as a share of a step."""
        self._phase = (self._phase + 1) % 3
        rows = self.rows
        if rows:
            if self._whole:
                self.safe_step = max(self.safe_step, min(row.safe_step for row in rows))
                self.pruned = max(self.pruned, self.safe_step)
            (self._compute, self._take, self._ship)[self._phase](rows)
        return (0.7, 0.1, 0.2)[self._phase]

    def _compute(self, rows: list[Row]) -> None:
        for row in rows:
            if not row.copy.begun and row.owner.may_begin(row.copy, self.safe_step):
                row.copy.begun = True
        low = min(row.copy.step for row in rows)
        if not self._whole or self.stuck or self._world.any_apart(r.owner for r in rows):
            return
        if all(row.copy.step == low and not row.copy.begun for row in rows):
            evaluate(rows)
        if all(row.copy.begun or row.copy.step > low for row in rows):
            for row in self._some(rows, low):
                if row.copy.begun and not row.owner.reconfigurations.frozen:
                    row.copy.exchanged = True
                    self.posted[row.slot] = max(self.posted[row.slot], low)

    def _take(self, rows: list[Row]) -> None:
        low = min(row.copy.step for row in rows)
        if min(self.posted.values()) < low:
            return
        for row in self._some(rows, low):
            if row.copy.exchanged:
                self._world.checkers.stepped(row.owner, row.copy)
                row.copy.take()
                row.owner.stepped(row.copy)
        if self._whole:
            self.done = max(self.done, min(row.copy.step for row in rows))

    def _ship(self, rows: list[Row]) -> None:
        for row in rows:
            for member, copy in row.follows:
                behind = copy.step < row.copy.step and member.awake
                if behind and self._world.chance(MOST) and not self._world.apart(row.owner, member):
                    copy.step += 1

    def _some(self, rows: list[Row], low: int) -> Iterator[Row]:
        for row in rows:
            if row.copy.step == low and self._world.chance(MOST):
                yield row

    # ---------------------------------------------------------------- losses

    def loses(self, member: "Member") -> None:
        """The messages in transit from a lost node may arrive, or not."""
        self._dirty = True
        if member.era != self._era:
            return
        for slot, copy in member.owned.items():
            if copy.exchanged and self._world.chance(0.5):
                self.posted[slot] = min(self.posted[slot], copy.step - 1)
            knows = copy.exchanged and min(self.posted.values()) >= copy.step
            has_shipped = copy.step + (1 if knows and self._world.chance(0.3) else 0)
            for other in self._world.members:
                theirs = other.shadowed.get(slot)
                if theirs is None or other.era != self._era or not other.running:
                    continue
                if theirs.step < has_shipped and self._world.chance(0.5):
                    theirs.step += 1
            self._hit_in(slot, copy)

    def _hit_in(self, slot: Slot, copy: Copy) -> None:
        """Two neighbours that are lost within one step may take data with them that only they
        had."""
        hit = self._hit.setdefault(copy.step, set())
        near = {(slot.stage + 1), (slot.stage - 1)}
        for other in hit | self._hit.get(copy.step - 1, set()):
            if other.pipeline == slot.pipeline and other.stage in near and self._world.chance(0.5):
                self.stuck = True
        hit.add(slot)
