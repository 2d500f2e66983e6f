"""Checkpoints of a played world: nodes store parts behind the training, and one completes them.

Rule: a checkpoint is complete when its manifest is there, which is written only when all parts of
one era are. A torn part is found on reading. See `bamboo/runtime/state/checkpoints.py`.
"""

from typing import TYPE_CHECKING

from bamboo.core.effects import CompleteCheckpoint
from bamboo.core.events import CheckpointDone, CheckpointFailed, ShardSaved
from bamboo.core.keep import shards_of
from bamboo.core.state import State
from testbed.swarm.copies import Copy

if TYPE_CHECKING:
    from testbed.swarm.member import Member

KEPT = 3
"""Number of complete checkpoints that are kept."""


class Vault:
    """The object store."""

    def __init__(self) -> None:
        self.parts: set[tuple[int, int, int]] = set()
        """(step, era, stage)."""
        self.complete: set[int] = set()
        """Steps that ever had a manifest."""
        self.there: set[int] = set()
        self.torn: set[int] = set()
        self.failing = 0
        """Number of the next parts that cannot be stored."""

    def whole(self, step: int) -> bool:
        """Whether the checkpoint of this step can be restored."""
        return step in self.there and step not in self.torn

    def put(self, step: int, era: int, stage: int) -> bool:
        """Store a part; False if that fails."""
        if self.failing > 0:
            self.failing -= 1
            return False
        self.parts.add((step, era, stage))
        return True

    def commit(self, step: int, era: int, stages: int) -> bool:
        """Write the manifest; False if a part is missing."""
        if any((step, era, stage) not in self.parts for stage in range(stages)):
            return False
        self.complete.add(step)
        self.there.add(step)
        self.torn.discard(step)
        return True

    def tidy(self, newest: int) -> None:
        """Delete old checkpoints, after all nodes may know of `newest`."""
        older = sorted(step for step in self.there if step < newest)
        for step in older[: max(0, len(older) - KEPT + 1)]:
            self.there.discard(step)


class Saver:
    """One node's part in checkpoints."""

    def __init__(self, member: "Member") -> None:
        self._me = member
        self._busy = False
        self._newest = 0

    def boundary(self, copy: Copy) -> None:
        """An owned slot stands at a boundary, for the first time or with a new owner."""
        me, world = self._me, self._me.world
        every, slot = world.scenario.checkpoint_every, copy.slot
        pipelines = me.view.grid.pipelines
        if not every or copy.step % every or not self._newest < copy.step < world.scenario.steps:
            return
        if slot.stage % pipelines != slot.pipeline:
            return
        if self._busy:
            self._failed(copy.step, me.era, "the one before is still being written")
            return
        self._busy = True
        world.agenda.after(world.save_s(), self._stored, copy.step, me.era, slot.stage)

    def keep(self, step: int, era: int, part: int, takes_s: float) -> None:
        """Store a part while all nodes stand still."""
        self._me.world.agenda.after(takes_s, self._stored, step, era, part)

    def _stored(self, step: int, era: int, stage: int) -> None:
        me = self._me
        self._busy = False
        if not me.running:
            return
        if me.stopped:
            me.world.agenda.after(1.0, self._stored, step, era, stage)
            return
        if me.world.vault.put(step, era, stage):
            me.say(ShardSaved(node=me.node, step=step, era=era, stage=stage))
        else:
            self._failed(step, era, "the disk is full")

    def complete(self, told: CompleteCheckpoint, state: State) -> None:
        """All parts are reported as stored."""
        delay_s = self._me.world.save_s() / 4
        shards = shards_of(state, told.era)
        self._me.world.agenda.after(delay_s, self._commit, told.step, told.era, shards)

    def _commit(self, step: int, era: int, stages: int) -> None:
        me = self._me
        if not me.running:
            return
        if me.stopped:
            me.world.agenda.after(1.0, self._commit, step, era, stages)
            return
        if not me.world.vault.commit(step, era, stages):
            self._failed(step, era, "a part was stored and is gone")
            return
        me.say(CheckpointDone(node=me.node, step=step, era=era))

    def known(self, state: State) -> None:
        """The state names a complete checkpoint, and all train: older ones may be deleted."""
        if state.reconfiguration is not None:
            return
        self._newest = max((made.step for made in state.checkpoints), default=0)
        if state.checkpoints:
            self._me.world.vault.tidy(state.checkpoints[-1].step)

    def _failed(self, step: int, era: int, reason: str) -> None:
        self._me.say(CheckpointFailed(node=self._me.node, step=step, era=era, reason=reason))
