"""A node as its runtime behaves: it performs the effects addressed to it and reports truthfully.

Rule: it decides nothing about membership. Its account of what it holds is its own. What it owns and
shadows follows only from the decisions that it has read. It models `trainer` and `boundary` of
`bamboo/runtime`, except that no slot waits a moment for the node that takes it (operations take no
time here; any order may occur anyway). A reconfiguration is modelled in `reconfiguration`.
"""

from typing import TYPE_CHECKING

from bamboo.core.effects import (
    AgreeBoundary,
    CompleteCheckpoint,
    Drain,
    Effect,
    End,
    Fence,
    GoOn,
    HoldForStop,
    Promote,
    Quiesce,
    QuiesceAfter,
    Start,
    Stay,
    StopAt,
)
from bamboo.core.events import (
    Attested,
    CaughtUp,
    HandedOver,
    NodeFinished,
    NodeLeft,
    ReplicaJoined,
    StopReady,
    Yielded,
)
from bamboo.core.state import Fact, Move, NodeStatus, Phase, State, Transfer
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.topology.slots import Slot
from testbed.swarm.copies import Copy
from testbed.swarm.evaluations import evaluates
from testbed.swarm.keeping import Keeping
from testbed.swarm.prefetch import NodePrefetch
from testbed.swarm.reconfiguration import NodeReconfigurations
from testbed.swarm.saving import Saver
from testbed.swarm.store import Entry
from testbed.swarm.voice import Said, Voice

if TYPE_CHECKING:
    from testbed.swarm.cluster import Cluster


class Sending:
    """A transfer as its source sees it."""

    def __init__(self, transfer: Transfer) -> None:
        self.transfer = transfer
        self.sent = False
        self.close_at: int | None = None
        self.said = False


class Member(Voice):
    """One node, from its boot on."""

    def __init__(self, world: "Cluster", node: NodeId, instance: str, zone: ZoneId) -> None:
        super().__init__(world, node)
        self.node, self.instance, self.zone = node, instance, zone
        self.numerics: tuple[Fact, ...] = ()
        """What it computes with."""
        self.view: State = world.log.first
        self.era = 0
        """The era of the layout of its copies."""
        self.owned: dict[Slot, Copy] = {}
        self.shadowed: dict[Slot, Copy] = {}
        self.sending: dict[Slot, Sending] = {}
        self.draining = self.stopping = False
        self.last_step = world.scenario.steps - 1
        self.yielding: dict[Slot, Move] = {}
        self.reconfigurations, self.prefetch = NodeReconfigurations(self), NodePrefetch(self)
        self.saver, self.keeping = Saver(self), Keeping(self)
        self.speed = 1.0
        self.able_since_s = world.now_s
        """The time from which it was able to beat, as far as that depends on itself."""
        self.ended_at_s: float | None = None
        self.read_salt = len(world.members)
        """Selects which of several sources it takes."""
        self._handed_over = False
        self._yielded: set[tuple[Slot, int]] = set()
        self._finished: tuple[Slot, ...] = ()
        self._behind = False

    # ---------------------------------------------------------------- life and death

    def attest(self, numerics: tuple[Fact, ...]) -> None:
        """Say what it computes with, before all else; it goes on to join without reading the
        answer, so a refused node tries to join too."""
        self.numerics = numerics
        event = Attested(
            node=self.node, instance=InstanceId(self.instance), zone=self.zone, numerics=numerics
        )
        log = self.world.log
        if self.can_write and log.commit(self.name, log.decide(event, self.world.now_s)):
            self.said.append(Said(event, log.state.version, log.fills))
        else:
            self.outbox.append(event)

    def die(self) -> None:
        self.world.lose(self)

    def ended_for_s(self) -> float:
        """Time since its process ended; 0 if it runs."""
        return 0.0 if self.ended_at_s is None else self.world.now_s - self.ended_at_s

    def overtaken(self) -> None:
        self.world.leaves(self)

    # ---------------------------------------------------------------- decisions

    def read(self, entry: Entry) -> None:
        before, self.view = self.view, entry.state
        state = entry.state
        me = entry.nodes.get(self.name)
        if me is not None and not me.status.live:
            self.world.leaves(self)
            return
        if state.phase is Phase.FINISHED:
            self._leave_in_order(me is not None)
            return
        if state.checkpoints is not before.checkpoints:
            self.saver.known(state)
        self.keeping.read(state)
        if state.reconfiguration is not None:
            self._stop_for(state)
            self.prefetch.sync(state)
        elif state.assignment is not None:
            self.reconfigurations.sync(state)
            if self._concerned(before, state):
                self._reassign(state)
            if before.preparing is not state.preparing or before.reconfiguration is not None:
                self.prefetch.sync(state)
        self._note_caught_up(state)
        for effect in entry.to.get(self.name, ()):
            self._perform(effect, state)

    def _note_caught_up(self, state: State) -> None:
        """A node that has caught up reports its finish again: see `bamboo.runtime.node.finish`."""
        behind = any(failover.successor == self.node for failover in state.failovers)
        done = bool(self.owned) and self._finished == tuple(self.owned)
        if self._behind and not behind and done and self.node not in state.finished:
            self.say(NodeFinished(node=self.node, step=self.last_step))
        self._behind = behind

    def _leave_in_order(self, known: bool) -> None:
        if known:
            event = NodeLeft(node=self.node, reason="the run is over")
            log = self.world.log
            if log.there:
                log.commit(self.name, log.decide(event, self.world.now_s))
        self.world.leaves(self)

    def _concerned(self, before: State, state: State) -> bool:
        return (
            before.assignment is not state.assignment
            or before.transfers != state.transfers
            or before.moves != state.moves
            or before.reconfiguration is not None
        )

    def _stop_for(self, state: State) -> None:
        self.sending.clear()
        self.draining = self._handed_over = self.stopping = False
        self.yielding = {}
        self._finished = ()
        reconfiguration, assignment = state.reconfiguration, state.assignment
        assert reconfiguration is not None
        if reconfiguration.base is None and assignment is not None:
            self.world.plane.changed()
            for slot, copy in list(self.shadowed.items()):
                if assignment.shadow(slot) == self.node:
                    copy.joining = False  # it joined in the same decision that stops all nodes
                elif reconfiguration.planned:
                    del self.shadowed[slot]
        self.reconfigurations.sync(state)

    def _reassign(self, state: State) -> None:
        assignment = state.assignment
        assert assignment is not None
        self.world.plane.changed()
        for slot in [s for s in self.owned if assignment.owner(s) != self.node]:
            copy = self.owned.pop(slot)  # moved at a boundary: owner and shadow are exchanged
            copy.begun = copy.exchanged = False
            copy.hit = None
            self.shadowed[slot] = copy
            self._finished = ()
        self._sync_transfers(state)
        self.yielding = {move.slot: move for move in state.moves if move.source == self.node}

    def _sync_transfers(self, state: State) -> None:
        assignment = state.assignment
        assert assignment is not None
        mine = {t.slot: t for t in state.transfers if t.source == self.node}
        for slot in [s for s, found in self.sending.items() if mine.get(s) != found.transfer]:
            del self.sending[slot]
        for slot, transfer in mine.items():
            if slot not in self.sending:
                self.sending[slot] = Sending(transfer)
                delay_s = self.world.transfer_s()
                self.world.agenda.after(delay_s, self._sent, transfer)
        coming = {t.slot for t in state.transfers if t.receiver == self.node}
        for slot, copy in list(self.shadowed.items()):
            if assignment.shadow(slot) == self.node:
                copy.joining = False
            elif slot not in coming and assignment.owner(slot) != self.node:
                del self.shadowed[slot]

    def _sent(self, transfer: Transfer) -> None:
        """The copy of a boundary arrives at its receiver, if both still want it."""
        found, world = self.sending.get(transfer.slot), self.world
        if not self.running or found is None or found.transfer != transfer:
            return
        receiver = world.member(transfer.receiver)
        copy = self.owned.get(transfer.slot)
        ready = receiver is not None and receiver.awake and not world.apart(self, receiver)
        if not ready or self.stopped or copy is None:
            world.agenda.after(0.2, self._sent, transfer)
            return
        assert receiver is not None
        if transfer not in receiver.view.transfers:
            world.agenda.after(0.2, self._sent, transfer)
            return
        receiver.era = self.era
        receiver.shadowed[transfer.slot] = Copy(
            transfer.slot, copy.first, copy.stop, copy.step, joining=True, born=copy.step
        )
        found.sent = True
        world.plane.changed()

    # ---------------------------------------------------------------- effects

    def _perform(self, effect: Effect, state: State) -> None:
        match effect:
            case Start():
                self._start(state)
            case Promote(slot=slot):
                self._promote(slot)
            case Drain():
                self.draining = True
            case Stay():
                self.draining = self._handed_over = False
            case HoldForStop():
                self.stopping = True
                self.say(StopReady(node=self.node, step=self.begun_step()))
            case StopAt(step=step):
                self.last_step, self.stopping = step, False
            case AgreeBoundary(since=since):
                self.reconfigurations.agree(since)
            case QuiesceAfter(since=since, step=step):
                self.reconfigurations.stop_after(since, step)
            case Quiesce(since=since):
                self.reconfigurations.stop(since)
            case GoOn(step=step):
                self.reconfigurations.go_on(state, step)
                for copy in self.owned.values():
                    self.saver.boundary(copy)
            case CompleteCheckpoint():
                self.saver.complete(effect, state)
            case Fence() | End():
                self.world.leaves(self)
            case _:
                pass

    def _start(self, state: State) -> None:
        self.install(state, 0)

    def install(self, state: State, step: int) -> None:
        """Own and shadow what the state says, in its state before `step`."""
        assignment = state.assignment
        assert assignment is not None
        cut = self.world.cut(state)
        self.era = state.era
        self.world.plane.begins(state, step)
        for mine, slots in (
            (self.owned, assignment.owned_by(self.node)),
            (self.shadowed, assignment.shadowed_by(self.node)),
        ):
            mine.clear()
            for slot in slots:
                first, stop = cut[slot.stage], cut[slot.stage + 1]
                mine[slot] = Copy(slot, first, stop, step, born=step)
        self._finished = ()

    def _promote(self, slot: Slot) -> None:
        copy = self.shadowed.pop(slot, None)
        self.world.checkers.promoted(self, slot, copy)
        assert copy is not None
        copy.joining = False
        copy.version = copy.step
        copy.evaluated = copy.told = 0
        copy.hit = max([copy.step, *(own.step for own in self.owned.values())])
        self.owned[slot] = copy
        self._finished = ()
        self.world.plane.promoted(slot, copy.step)
        self.stepped(copy)

    # ---------------------------------------------------------------- between two operations

    def begun_step(self) -> int:
        """The last step that any owned slot has begun; -1 before the first."""
        return max((c.step if c.begun else c.step - 1 for c in self.owned.values()), default=-1)

    def may_begin(self, copy: Copy, safe_step: int) -> bool:
        """Whether an owned slot may begin its step."""
        reconfigurations = self.reconfigurations
        if reconfigurations.frozen or copy.step - 1 > safe_step:
            return False
        last = self.last_step
        if reconfigurations.boundary is not None:
            last = min(last, reconfigurations.boundary)
        if copy.step > last or copy.slot in self.yielding:
            return False
        hold = self.holding
        return not evaluates(self, copy) and (not hold or copy.step <= self.begun_step())

    @property
    def holding(self) -> bool:
        """Whether it begins no step that none of its slots has begun."""
        reconfigurations = self.reconfigurations
        holds = reconfigurations.holding or self.keeping.holding
        return self.draining or self.stopping or holds

    def may_evaluate(self, copy: Copy) -> bool:
        """Whether an owned slot may go on with the evaluation before its step."""
        boundary = self.reconfigurations.boundary
        beyond = boundary is not None and copy.step > boundary
        return not (self.reconfigurations.frozen or beyond or self.holding)

    def serve(self, safe_step: int) -> None:
        """Send the reports that are due."""
        self.keeping.serve()
        self.reconfigurations.serve(safe_step)
        self.prefetch.serve()
        owned = self.owned
        if not owned and not self.draining:
            return
        for copy in owned.values():
            if copy.hit is not None and copy.step > copy.hit and safe_step >= copy.version:
                self._caught_up(copy)
        for slot, move in self.yielding.items():
            self._yield(slot, move, safe_step)
        if self.draining and not self._handed_over and self._all_safe(safe_step):
            self._handed_over = True
            step = max((c.step for c in owned.values()), default=safe_step) - 1
            self.say(HandedOver(node=self.node, step=step))
        for found in self.sending.values():
            self._follow_up(found)
        through = all(c.step > self.last_step and not evaluates(self, c) for c in owned.values())
        if owned and through and self._finished != tuple(owned):
            self._finish()

    def _all_safe(self, safe_step: int) -> bool:
        return all(not c.begun and safe_step >= c.step for c in self.owned.values())

    def _caught_up(self, copy: Copy) -> None:
        copy.hit = None
        event = CaughtUp(
            node=self.node,
            slot=copy.slot,
            step=copy.step - 1,
            recomputed=1,
            already_computed=0,
            pause_s=0.1,
        )
        self.say(event)

    def _yield(self, slot: Slot, move: Move, safe_step: int) -> None:
        copy = self.owned.get(slot)
        if copy is None or (slot, move.since) in self._yielded or copy.step > self.last_step:
            return
        if not copy.begun and safe_step >= copy.step:
            self._yielded.add((slot, move.since))
            event = Yielded(node=self.node, slot=slot, since=move.since, step=copy.step)
            self.say(event)

    def guarded(self, slot: Slot) -> NodeId | None:
        """The receiver whose acknowledgement decides what is safe of a slot, if there is one."""
        found = self.sending.get(slot)
        return None if found is None or found.close_at is None else found.transfer.receiver

    def _follow_up(self, found: Sending) -> None:
        if not found.sent or found.said:
            return
        transfer = found.transfer
        receiver, own = self.world.member(transfer.receiver), self.owned.get(transfer.slot)
        copy = None if receiver is None else receiver.shadowed.get(transfer.slot)
        if copy is None or own is None or copy.step == copy.born:
            return  # it must have taken a step itself
        if found.close_at is None and copy.step >= own.step - 1:
            found.close_at = own.step
            self.world.plane.changed()
        if found.close_at is None or copy.step < found.close_at:
            return
        found.said = True
        event = ReplicaJoined(
            node=self.node,
            slot=transfer.slot,
            receiver=transfer.receiver,
            since=transfer.since,
            step=copy.step,
            bytes=1,
        )
        self.say(event)

    def _finish(self) -> None:
        for copy in self.owned.values():
            if copy.hit is not None:
                self._caught_up(copy)
        self._finished = tuple(self.owned)
        self.say(NodeFinished(node=self.node, step=self.last_step))

    def stepped(self, copy: Copy) -> None:
        """An owned slot has taken a step, or has a new owner: it stands at a boundary."""
        self.keeping.stepped()
        if not self.reconfigurations.frozen:
            self.saver.boundary(copy)

    def is_live_in(self, state: State) -> bool:
        """Whether the run counts it as live."""
        found = state.node(self.node)
        return found is not None and found.status not in (NodeStatus.GONE, NodeStatus.LEFT)
