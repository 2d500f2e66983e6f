"""Makes a new replica of a slot in the background while its owner trains on.

    receiver  pull 0, pull 1          asks for the copy, two chunks at a time
    source    state 0, state 1, ...   the parameters and moments at a step boundary
    source    ship t, t+1, ...        every gradient reduced since, as to a shadow
    receiver  stand v                 after the copy, and after each step that it has followed
    source    (event) ReplicaJoined   when the receiver stands where the owner stands

Rules. (1) The source sends the state between two steps, as fast as the receiver asks for it, so
that messages of the step never wait behind more than two chunks. It copies the state only if the
step ends before all is sent, so that a failover does not wait for a copy. (2) What a replica does
not have is never called safe. From the moment that a receiver is reported, the owner lets the
receiver's acknowledgements say what is safe, and sends a shadow that is to be replaced nothing that
the receiver does not have yet. So whichever of the two the log names as the shadow when a loss
comes, it can take over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from bamboo.core.events import ReplicaJoined
from bamboo.core.protect import soon_taken
from bamboo.core.state import State, Transfer
from bamboo.ids import NodeId
from bamboo.ports import MessageKey, MessageKind
from bamboo.runtime.state.prefetch import NodePrefetch
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.step.takeover import declare_safe
from bamboo.runtime.wire.chunks import SMALL_CHUNK, Copying, Gathering
from bamboo.runtime.wire.messages import Mailbox, Message
from bamboo.runtime.wire.outbox import Outbox
from bamboo.topology.assignment import Assignment
from bamboo.topology.slots import Slot

WINDOW = 2
"""Chunks that have been asked for and have not come."""


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """A transfer as its source sees it."""

    transfer: Transfer
    copying: Copying = field(default_factory=lambda: Copying(SMALL_CHUNK))
    close_at: int | None = None
    """The last step that the owner itself called safe."""
    said: bool = False


@dataclass(slots=True, kw_only=True)
class Incoming:
    """A transfer as its receiver sees it."""

    transfer: Transfer
    room: Mapping[str, Tensor]
    gathering: Gathering
    run: SlotRun | None = None


class Sources:
    """The transfers of which one node is the source, by slot."""

    def __init__(self, *, me: NodeId, mailbox: Mailbox, executor: Executor, outbox: Outbox) -> None:
        self._me = me
        self._mailbox = mailbox
        self._executor = executor
        self._outbox = outbox
        self._out: dict[Slot, Outgoing] = {}

    def sync(self, wanted: Mapping[Slot, Transfer], assignment: Assignment) -> list[Slot]:
        """Have the wanted transfers and no others; returns the slots of those that begin."""
        for slot in [s for s, found in self._out.items() if wanted.get(s) != found.transfer]:
            del self._out[slot]
            self._mailbox.end_joining(slot, released=assignment.shadow(slot))
        begun = [slot for slot in wanted if slot not in self._out]
        for slot in begun:
            self._out[slot] = Outgoing(transfer=wanted[slot])
        return begun

    def end_all(self) -> None:
        """Send nothing more."""
        for slot in self._out:
            self._mailbox.end_joining(slot, released=None)
        self._out = {}

    def is_awaited(self, slot: Slot) -> bool:
        """Whether a slot that changes hands soon has a next owner that lacks at most a step."""
        run = self._executor.owned.get(slot)
        if run is None or (run.recovery is not None and run.step <= run.recovery.hit_step):
            return False  # no slot moves before it has caught up
        found = self._out.get(slot)
        if found is None:
            return True  # its successor is the shadow by now
        joining = self._mailbox.joining.get(slot)
        stands = found.copying.step if joining is None else max(found.copying.step, joining.stands)
        return found.copying.all_sent and stands >= run.step - 1

    def offer(self, run: SlotRun) -> None:
        """The owner stands between two steps: begin to send this state, where it is wanted."""
        found = self._out.get(run.slot)
        if found is None or found.copying.begun or run.cursor:
            return
        self._mailbox.begin_joining(run.slot, found.transfer.receiver)
        for chunk in found.copying.begin(list(run.tensors().values()), run.step):
            self._send_chunk(found, chunk)

    def freeze(self, slot: Slot) -> None:
        """Copy what is still to be sent of a slot: its tensors are about to change."""
        found = self._out.get(slot)
        if found is not None:
            found.copying.freeze()

    def pulled(self, slot: Slot, since: int, chunk: int) -> None:
        """The receiver asks for a chunk."""
        found = self._out.get(slot)
        if found is not None and found.transfer.since == since:
            self._send_chunk(found, chunk)

    def _send_chunk(self, found: Outgoing, chunk: int) -> None:
        part = found.copying.chunk(chunk)
        if part is None:
            return
        to, slot = found.transfer.receiver, found.transfer.slot
        key = MessageKey(kind="state", to=slot, source=slot, step=0, index=chunk)
        about = {"since": found.transfer.since, "at_step": found.copying.step}
        self._mailbox.post_to(to, key, (part,), about | {"bytes": found.copying.bytes})

    def stood(self, slot: Slot, since: int, step: int) -> None:
        """Note that the receiver has followed up to `step`. When it is close behind, the owner
        guards it: what is safe is then the receiver's word. Once the receiver has all that the
        owner ever called safe, the owner reports it. The receiver must have taken a step itself
        before that, to know what others may still ask about the step before."""
        found = self._out.get(slot)
        if found is None or found.transfer.since != since or step == found.copying.step:
            return
        self._mailbox.joining_stands(slot, step)
        run = self._executor.owned[slot]
        if found.close_at is None and step >= run.step - 1:
            found.close_at = run.step
            self._mailbox.guard(slot)
        if found.said or found.close_at is None or step < found.close_at:
            return
        found.said = True
        followed = (step - found.copying.step) * run.stage.parameter_bytes()
        self._outbox.event(
            ReplicaJoined(
                node=self._me,
                slot=slot,
                receiver=found.transfer.receiver,
                since=since,
                step=step,
                bytes=found.copying.bytes + followed,
            )
        )


class Transfers:
    """The transfers of one node, by slot. Belongs to the trainer's thread and never waits."""

    def __init__(
        self,
        *,
        me: NodeId,
        mailbox: Mailbox,
        executor: Executor,
        builder: SlotBuilder,
        outbox: Outbox,
    ) -> None:
        self._me = me
        self._mailbox = mailbox
        self._executor = executor
        self.builder = builder
        """The builder of the newest layout."""
        self._version = 0
        self.prefetch = NodePrefetch(
            me=me, mailbox=mailbox, executor=executor, builder=builder, outbox=outbox
        )
        self._out = Sources(me=me, mailbox=mailbox, executor=executor, outbox=outbox)
        self._in: dict[Slot, Incoming] = {}
        self._soon_taken: frozenset[Slot] = frozenset()
        """Slots of this node that another node will own once it has their state."""

    def replicas_from(self) -> dict[Slot, int]:
        """For each slot, the step from which on shipped gradients are still needed here."""
        waiting = {slot: 0 for slot, found in self._in.items() if found.run is None}
        return waiting | {slot: run.step for slot, run in self._executor.shadowed.items()}

    def awaited(self) -> frozenset[Slot]:
        """Slots of this node that change hands soon and whose next owner lacks at most a step."""
        return frozenset(slot for slot in self._soon_taken if self._out.is_awaited(slot))

    # ------------------------------------------------------------------ decisions

    def stop(self, state: State) -> None:
        """End all transfers, because a reconfiguration has begun. If all nodes finish a step first,
        they do so in the roles that the decision found them in: a replica that became whole just
        then is sent that step too, and nobody waits for any other replica."""
        reconfiguration, assignment = state.reconfiguration, state.assignment
        if (
            reconfiguration is not None
            and reconfiguration.planned
            and reconfiguration.base is None
            and assignment is not None
        ):
            self._mailbox.assign(assignment, state.participants())
            self.sync(state)
            declare_safe(self._mailbox, self._me, self._executor.owned, self._executor.shadowed)
        self._out.end_all()
        self._in = {}
        self._soon_taken = frozenset()
        self.prefetch.sync(state)

    def sync(self, state: State) -> None:
        """Begin and end transfers as the newest state has them."""
        assert state.assignment is not None
        self._version = state.version
        self._soon_taken = soon_taken(state, self._me)
        mine = {t.slot: t for t in state.transfers if t.source == self._me}
        for slot in self._out.sync(mine, state.assignment):
            if slot in self._executor.owned:  # else this very decision makes it the owner
                self.boundary(self._executor.owned[slot])
        self._sync_incoming(state)
        self.prefetch.sync(state)

    def _sync_incoming(self, state: State) -> None:
        assert state.assignment is not None
        coming = {t.slot: t for t in state.transfers if t.receiver == self._me}
        for slot in [s for s, found in self._in.items() if coming.get(s) != found.transfer]:
            del self._in[slot]
        for slot, run in list(self._executor.shadowed.items()):
            if state.assignment.shadow(slot) == self._me:
                run.joining = False
            elif slot not in self._in and state.assignment.owner(slot) != self._me:
                self._executor.release(slot)
        for slot, transfer in coming.items():
            if slot not in self._in:
                layers = self.builder.strategy.placement.layers_of(slot.stage)
                room = self.builder.room_for(layers)
                gathering = Gathering(WINDOW, tuple(room.values()), SMALL_CHUNK)
                self._in[slot] = Incoming(transfer=transfer, room=room, gathering=gathering)
                self._executor.release(slot)
                for chunk in range(WINDOW):
                    self._tell_source("pull", transfer, chunk)

    # ------------------------------------------------------------------ by the source

    def boundary(self, run: SlotRun) -> None:
        """The owner stands between two steps: transfers and prefetches send this state."""
        self.prefetch.offer(run)
        self._out.offer(run)

    def freeze(self, run: SlotRun) -> None:
        """Copy what is still to be sent: the owner's tensors are about to change."""
        self.prefetch.ship(run)
        self._out.freeze(run.slot)

    # ------------------------------------------------------------------ by the receiver

    def _chunk_came(self, found: Incoming, chunk: int, message: Message) -> None:
        gathering = found.gathering
        if not gathering.take(chunk, message.tensors[0], whole=int(message.meta["bytes"])):
            return
        wanted = gathering.next_chunk()
        if wanted is not None:
            self._tell_source("pull", found.transfer, wanted)
        if gathering.whole:
            self._load(found, int(message.meta["at_step"]))

    def _load(self, found: Incoming, step: int) -> None:
        slot = found.transfer.slot
        found.run = self.builder.build(slot, owner=False, held=found.room, step=step)
        found.run.joining = True
        self._executor.adopt(found.run)

    def followed(self, run: SlotRun) -> None:
        """Acknowledge a step that a replica of this node has taken."""
        found = self._in.get(run.slot)
        if found is not None and found.run is run:
            self._tell_source("stand", found.transfer, run.step)

    # ------------------------------------------------------------------ messages

    def pump(self) -> None:
        """Take in the messages that came; those of a decision that was not read here yet wait."""
        self.prefetch.pump()
        if not self._mailbox.of_transfers:
            return
        early = []
        while self._mailbox.of_transfers:
            key, message = self._mailbox.of_transfers.popleft()
            if int(message.meta["since"]) > self._version:
                early.append((key, message))
            else:
                self._take(key, message)
        self._mailbox.of_transfers.extend(early)

    def _take(self, key: MessageKey, message: Message) -> None:
        since, slot = int(message.meta["since"]), key.to
        if key.kind == "state":
            coming = self._in.get(slot)
            if coming is not None and coming.transfer.since == since and coming.run is None:
                self._chunk_came(coming, key.index, message)
            return
        if key.kind == "pull":
            self._out.pulled(slot, since, key.index)
        else:
            self._out.stood(slot, since, key.index)

    def _tell_source(self, kind: MessageKind, transfer: Transfer, index: int) -> None:
        key = MessageKey(kind=kind, to=transfer.slot, source=transfer.slot, step=0, index=index)
        self._mailbox.post_to(transfer.source, key, (), {"since": transfer.since})
