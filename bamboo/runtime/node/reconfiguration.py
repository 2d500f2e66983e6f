"""A node's part in a reconfiguration: stop, report what it holds, fetch what it lacks, go on.

    node      (event) Quiesced      the layers that it holds, and as of which step
    receiver  want l, part l ...    chunks of a layer's parameters and moments, some at a time
    node      (event) LayoutBuilt   all that it is to own or shadow is here

Rules. (1) State is kept by layer, so that any cut can be made from any other. (2) What a node held
when it stopped stays until all nodes go on, because other nodes may ask for it and another round
may begin. (3) A node asks only for layers that it lacks, each from one node that has it. A layer
that no node has is read from the checkpoint of that step, or is initial state, with which every run
begins.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from bamboo.core.base import holders
from bamboo.core.events import (
    BoundaryReady,
    CheckpointDamaged,
    Event,
    FaultScope,
    LayoutBuilt,
    Quiesced,
    RunFailed,
)
from bamboo.core.faults import fault_of
from bamboo.core.state import Outcome, Reconfiguration, State
from bamboo.errors import NotAsWritten, StorageFull, StorageUnavailable
from bamboo.ids import NodeId
from bamboo.ports import MessageKey, MessageKind
from bamboo.runtime.state.prefetch import NodePrefetch
from bamboo.runtime.state.restore import Reading, Vault, misfit
from bamboo.runtime.state.stopped import Stopped
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.wire.chunks import LARGE_CHUNK, Gathering, bounds_of, slice_of
from bamboo.runtime.wire.messages import Mailbox, Message
from bamboo.runtime.wire.outbox import Outbox
from bamboo.topology.assignment import Assignment
from bamboo.topology.slots import Slot

WINDOW = 4
"""Chunks of one layer that have been asked for and have not come."""
NOWHERE = Slot(pipeline=0, stage=0)
"""The address of messages about layers, which belong to no slot."""


@dataclass(slots=True, kw_only=True)
class Coming:
    """A layer that is being received."""

    source: NodeId
    room: Mapping[str, Tensor]
    gathering: Gathering


class NodeReconfiguration:
    """The reconfigurations of one node. Belongs to the trainer's thread and never waits."""

    def __init__(
        self,
        *,
        me: NodeId,
        mailbox: Mailbox,
        executor: Executor,
        builder: SlotBuilder,
        outbox: Outbox,
        vault: Vault | None,
        prefetch: NodePrefetch,
    ) -> None:
        self._me, self._mailbox, self._executor = me, mailbox, executor
        self.builder = builder
        """The builder of the newest layout."""
        self._outbox, self._vault, self._prefetch = outbox, vault, prefetch
        self.holding = False
        """Whether no step may begin before a boundary is agreed."""
        self.since = -1
        """The round that this node stops, or has stopped, for."""
        self._stopping = False
        self._stopped = Stopped(me=me, mailbox=mailbox, executor=executor)
        self.say_losses: Callable[[], None] = lambda: None
        self._said_era = -1
        self._given: set[int] = set()
        """Layers whose tensors a run of the new layout has taken."""
        self._building = -1
        self._state: State | None = None
        self._coming: dict[int, Coming] = {}
        self._reading: Reading | None = None
        self._stored: frozenset[int] = frozenset()
        """The layers that are being read."""
        self._bytes = 0
        self.owned: dict[Slot, SlotRun] = {}
        self.shadowed: dict[Slot, SlotRun] = {}

    # ------------------------------------------------------------------ stopping

    def agree(self, since: int, begun: int) -> None:
        """Begin no step, and report which was begun last."""
        self.since, self.holding, self._executor.operations.shadows_first.wanted = since, True, True
        self._outbox.event(BoundaryReady(node=self._me, since=since, step=begun))

    def stop_after(self, since: int, step: int) -> None:
        """Finish `step`, then stop."""
        self.since, self.holding, self._stopping = since, False, True
        self._executor.stop_after(step)

    def stop(self, since: int) -> None:
        """Stop with what is here, but take the steps that need nothing more to be computed."""
        self.since, self.holding, self._stopping = since, False, True
        self._executor.freeze()

    def serve(self) -> None:
        """Once nothing moves any more, report what is here. Called when no operation is ready."""
        if not self._stopping or not (self._executor.frozen or self._at_boundary()):
            return
        self._stopping = False
        self._executor.freeze()
        self._stopped.take(self._executor.release_all())
        self._stopped.held |= self._prefetch.take()
        self._outbox.event(
            Quiesced(
                node=self._me,
                since=self.since,
                holdings=self._stopped.holdings(),
                norms=self._stopped.norms(),
            )
        )

    def _at_boundary(self) -> bool:
        runs = (*self._executor.owned.values(), *self._executor.shadowed.values())
        boundary = self._executor.boundary
        if boundary is None or not self._prefetch.stands_after(boundary):
            return False
        there = all(run.step > boundary and not run.cursor for run in runs)
        return there and (not runs or self._mailbox.safe_step > boundary)

    # ------------------------------------------------------------------ the new layout

    def sync(self, state: State) -> None:
        """Begin to build the layout that the newest state has decided, once."""
        reconfiguration = state.reconfiguration
        if state.assignment is not None and (
            reconfiguration is None or reconfiguration.base is not None
        ):
            # Independent of the reconfiguration: a log that was refilled may begin after it.
            self.builder = self.builder.laid_out(state.grid, state.cut, state.shares)
        if reconfiguration is None or reconfiguration.since != self._building:
            self._end_reading()
        if reconfiguration is None:
            if self.since >= 0 or self._building >= 0:
                self._forget(state)
            return
        if reconfiguration.keep is not None and self._vault is not None:
            self._stopped.keep(reconfiguration.keep, self._vault)
            if reconfiguration.keep.era != self._said_era:
                # The node that reported the losses so far may be lost, and no node that goes on
                # would repeat them.
                self._said_era = reconfiguration.keep.era
                self.say_losses()
        if reconfiguration.base is None or self._building == reconfiguration.since:
            return
        assert state.assignment is not None, "places are decided with the base"
        self._building, self._state = reconfiguration.since, state
        self._stopped.reach(reconfiguration.base, reconfiguration.total_square)
        self._mailbox.begin_era(state.era, state.assignment, reconfiguration.base)
        self.owned, self.shadowed = {}, {}
        self._coming, self._given, self._bytes = {}, set(), 0
        self._fetch(reconfiguration, state.assignment)
        self._build_if_whole()

    def _fetch(self, reconfiguration: Reconfiguration, assignment: Assignment) -> None:
        assert reconfiguration.base is not None
        here = self._stopped.layers_at(reconfiguration.base)
        missing = sorted(self._needed(assignment) - here)
        found = holders(reconfiguration)
        stored = frozenset(layer for layer in missing if layer not in found)
        if stored:
            self._read(reconfiguration.base, stored)
        order = sorted(assignment.members()).index(self._me) if missing else 0
        for layer in (layer for layer in missing if layer in found):
            sources = found[layer]
            room = self.builder.room_for((layer,))
            coming = Coming(
                source=sources[(order + layer) % len(sources)],
                room=room,
                gathering=Gathering(WINDOW, tuple(room.values()), LARGE_CHUNK),
            )
            self._coming[layer] = coming
            for chunk in range(WINDOW):
                self._tell("want", coming.source, layer, chunk)

    def _needed(self, assignment: Assignment) -> set[int]:
        slots = (*assignment.owned_by(self._me), *assignment.shadowed_by(self._me))
        placement = self.builder.strategy.placement
        return {layer for slot in slots for layer in placement.layers_of(slot.stage)}

    def _read(self, base: int, layers: frozenset[int]) -> None:
        """Begin to read the layers that no live node has."""
        if base == 0:
            return  # a stage is built with its initial state
        if self._vault is None:
            self._not_read(base, StorageUnavailable("this node has no object store"))
            return
        patience_s = self.builder.job.cluster.step_timeout_s
        self._reading = Reading(self._vault, base, layers, patience_s=patience_s)
        self._stored = layers

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.end()
        self._reading = None

    def _take_read(self) -> None:
        """Take in what was read, or report why it could not be read."""
        outcome = None if self._reading is None else self._reading.poll()
        if outcome is None:
            return
        self._end_reading()
        assert self._state is not None
        assert self._state.reconfiguration is not None
        base = self._state.reconfiguration.base
        assert base is not None
        rooms = {layer: self.builder.room_for((layer,)) for layer in self._stored}
        if not isinstance(outcome, StorageUnavailable):
            whole = {name: tensor for room in rooms.values() for name, tensor in room.items()}
            if odd := misfit(whole, outcome):
                outcome = NotAsWritten(odd)
        if isinstance(outcome, StorageUnavailable):
            self._not_read(base, outcome)
            return
        for layer, room in rooms.items():
            for name, tensor in room.items():
                # Copied, like all other state, into torch's own memory, whatever it was read into.
                tensor.copy_(outcome[name])
            self._stopped.held[(base, layer)] = room
        self._build_if_whole()

    def _not_read(self, base: int, why: StorageUnavailable) -> None:
        """Report it: another checkpoint, another node, or the end of the run follows."""
        assert self._state is not None
        event: Event
        if isinstance(why, NotAsWritten):
            event = CheckpointDamaged(node=self._me, step=base, reason=str(why))
        elif isinstance(why, StorageFull) and (me := self._state.node(self._me)):
            event = fault_of(me, FaultScope.NODE, f"no room to read a checkpoint: {why}")
        else:
            words = (
                f"the checkpoint of step {base} cannot be read: {why}; nothing of it is lost, go "
                f"on with `bamboo resume {self._state.run}` when it can be"
            )
            event = RunFailed(reporter=str(self._me), outcome=Outcome.UNRECOVERABLE, reason=words)
        self._outbox.event(event)

    def _build_if_whole(self) -> None:
        state = self._state
        if (
            self._coming
            or state is None
            or state.reconfiguration is None
            or state.reconfiguration.base is None
        ):
            return
        assignment, base = state.assignment, state.reconfiguration.base
        assert assignment is not None
        if self._me not in assignment.members():
            return
        needed = self._needed(assignment)
        if base > 0 and needed - self._stopped.layers_at(base):
            return  # the checkpoint is not good, so another round is about to begin
        for slot in assignment.owned_by(self._me):
            self.owned[slot] = self._build(slot, base, owner=True)
        for slot in assignment.shadowed_by(self._me):
            self.shadowed[slot] = self._build(slot, base, owner=False)
        self._outbox.event(LayoutBuilt(node=self._me, since=self._building, bytes=self._bytes))

    def _build(self, slot: Slot, base: int, *, owner: bool) -> SlotRun:
        layers = self.builder.strategy.placement.layers_of(slot.stage)
        if set(layers) - self._stopped.layers_at(base):
            return self.builder.build(slot, owner=owner)
        held: dict[str, Tensor] = {}
        for layer in layers:
            # No step is taken before all go on, and then the state that stopped is dropped: so one
            # run may take the tensors themselves.
            taken, found = layer in self._given, self._stopped.state_of(base, layer)
            held |= {n: x.clone() for n, x in found.items()} if taken else found
            self._given.add(layer)
        return self.builder.build(slot, owner=owner, held=held, step=base)

    def finish(self) -> None:
        """Hand the new runs over to the executor: all nodes go on."""
        self._executor.release_all()
        for run in (*self.owned.values(), *self.shadowed.values()):
            self._executor.adopt(run)
        self._clear()

    def _forget(self, state: State) -> None:
        assignment = state.assignment
        if assignment is None or self._me not in assignment.members():
            self._clear()  # a member gets the effect GoOn instead

    def _clear(self) -> None:
        self.since = self._building = -1
        self.holding = self._stopping = False
        self._executor.go_on()
        self._executor.operations.shadows_first.wanted = False
        self._end_reading()
        self._stopped.clear()
        self._coming, self._state = {}, None
        self._given, self.owned, self.shadowed = set(), {}, {}

    # ------------------------------------------------------------------ messages

    def pump(self) -> None:
        """Take in the messages about layers, and what was read; messages of a round that was not
        read here yet wait."""
        self._take_read()
        early = []
        while self._mailbox.of_layers:
            key, message = self._mailbox.of_layers.popleft()
            since = int(message.meta["since"])
            if since > self._building:
                early.append((key, message))
            elif since == self._building and self._state is not None:
                self._take(key, message)
        self._mailbox.of_layers.extend(early)

    def _take(self, key: MessageKey, message: Message) -> None:
        layer = int(message.meta["layer"])
        if key.kind == "want":
            self._send(NodeId(str(message.meta["to"])), layer, key.index)
        elif layer in self._coming:
            self._came(self._coming[layer], layer, key.index, message)

    def _send(self, to: NodeId, layer: int, chunk: int) -> None:
        assert self._state is not None
        assert self._state.reconfiguration is not None
        base = self._state.reconfiguration.base
        assert base is not None
        tensors = self._stopped.state_of(base, layer).values()
        elements = sum(tensor.numel() for tensor in tensors)
        bounds = bounds_of(chunk, elements, LARGE_CHUNK)
        if bounds is None:
            return
        key = MessageKey(kind="part", to=NOWHERE, source=NOWHERE, step=base, index=chunk)
        about = {"since": self._building, "layer": layer, "elements": elements}
        self._mailbox.post_to(to, key, (slice_of(tensors, *bounds),), about)

    def _came(self, coming: Coming, layer: int, chunk: int, message: Message) -> None:
        gathering = coming.gathering
        if not gathering.take(chunk, message.tensors[0], elements=int(message.meta["elements"])):
            return
        self._bytes += message.size_bytes()
        wanted = gathering.next_chunk()
        if wanted is not None:
            self._tell("want", coming.source, layer, wanted)
        if gathering.whole:
            assert self._state is not None
            assert self._state.reconfiguration is not None
            assert self._state.reconfiguration.base is not None
            self._stopped.held[(self._state.reconfiguration.base, layer)] = coming.room
            del self._coming[layer]
            self._build_if_whole()

    def _tell(self, kind: MessageKind, to: NodeId, layer: int, chunk: int) -> None:
        key = MessageKey(kind=kind, to=NOWHERE, source=NOWHERE, step=0, index=chunk)
        about = {"since": self._building, "layer": layer, "to": str(self._me)}
        self._mailbox.post_to(to, key, (), about)
