"""The layout that a reconfiguration has decided, as one node builds it: fetch what it lacks, build.

    receiver  want l, part l ...    chunks of a layer's parameters and moments, some at a time
    node      (event) LayoutBuilt   all that it is to own or shadow is here

Rules. (1) State is kept by layer, so that any cut can be made from any other. (2) A node asks only
for layers that it lacks, each from one node that has it. A layer that no node has is read from the
checkpoint of that step, or is initial state, with which every run begins. (3) What a node held when
it stopped (`stopped`) stays, because other nodes may ask for it and another round may begin.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from bamboo.core.events import CheckpointDamaged, Event, FaultScope, LayoutBuilt, RunFailed
from bamboo.core.faults import fault_of
from bamboo.core.rounds import holders
from bamboo.core.state import Outcome, Reconfiguration, State
from bamboo.errors import NotAsWritten, StorageFull, StorageUnavailable
from bamboo.ids import NodeId
from bamboo.ports import MessageKey, MessageKind
from bamboo.runtime.state.restore import Reading, Vault, misfit
from bamboo.runtime.state.stopped import Stopped
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.wire.chunks import LARGE_CHUNK, Gathering, as_bytes, bounds_of, slice_of
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


class NewLayout:
    """The newest layout on one node. Belongs to the trainer's thread and never waits."""

    def __init__(
        self,
        *,
        me: NodeId,
        mailbox: Mailbox,
        builder: SlotBuilder,
        outbox: Outbox,
        vault: Vault | None,
        stopped: Stopped,
    ) -> None:
        self._me = me
        self._mailbox = mailbox
        self.builder = builder
        """The builder of the newest layout."""
        self._outbox = outbox
        self._vault = vault
        self._stopped = stopped
        self.round = -1
        """The reconfiguration that this node builds for, by its `since`."""
        self._given: set[int] = set()
        """Layers whose tensors a run of the new layout has taken."""
        self._state: State | None = None
        """The state in which the layout was decided."""
        self._coming: dict[int, Coming] = {}
        self._reading: Reading | None = None
        self._stored: frozenset[int] = frozenset()
        """The layers that are being read."""
        self._bytes = 0
        self.runs: list[SlotRun] = []
        """The slots of the new layout, owned ones first, once all of them are built."""

    def begin(self, state: State, reconfiguration: Reconfiguration) -> None:
        """Fetch and build what this node is to have before the base of a reconfiguration."""
        assert reconfiguration.base is not None
        assert state.assignment is not None, "places are decided with the base"
        self.round = reconfiguration.since
        self._state = state
        self._mailbox.begin_era(state.era, state.assignment, reconfiguration.base)
        self.runs = []
        self._coming = {}
        self._given = set()
        self._bytes = 0
        self._fetch(reconfiguration, state.assignment)
        self._build_if_whole()

    def end_reading(self) -> None:
        """Read no more of a checkpoint."""
        if self._reading is not None:
            self._reading.end()
        self._reading = None

    def clear(self) -> None:
        """Drop everything: all nodes go on."""
        self.end_reading()
        self.round = -1
        self._coming = {}
        self._state = None
        self._given = set()
        self.runs = []

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

    def _take_read(self) -> None:
        """Take in what was read, or report why it could not be read."""
        outcome = None if self._reading is None else self._reading.poll()
        if outcome is None:
            return
        self.end_reading()
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
        owned = [self._build(s, base, owner=True) for s in assignment.owned_by(self._me)]
        shadowed = [self._build(s, base, owner=False) for s in assignment.shadowed_by(self._me)]
        self.runs = [*owned, *shadowed]
        self._outbox.event(LayoutBuilt(node=self._me, since=self.round, bytes=self._bytes))

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

    # ------------------------------------------------------------------ messages

    def pump(self) -> None:
        """Take in the messages about layers, and what was read; messages of a round that was not
        read here yet wait."""
        self._take_read()
        early = []
        while self._mailbox.of_layers:
            key, message = self._mailbox.of_layers.popleft()
            since = int(message.meta["since"])
            if since > self.round:
                early.append((key, message))
            elif since == self.round and self._state is not None:
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
        tensors = as_bytes(self._stopped.state_of(base, layer).values())
        whole = sum(tensor.numel() for tensor in tensors)
        bounds = bounds_of(chunk, whole, LARGE_CHUNK)
        if bounds is None:
            return
        key = MessageKey(kind="part", to=NOWHERE, source=NOWHERE, step=base, index=chunk)
        about = {"since": self.round, "layer": layer, "bytes": whole}
        self._mailbox.post_to(to, key, (slice_of(tensors, *bounds),), about)

    def _came(self, coming: Coming, layer: int, chunk: int, message: Message) -> None:
        gathering = coming.gathering
        if not gathering.take(chunk, message.tensors[0], whole=int(message.meta["bytes"])):
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
        about = {"since": self.round, "layer": layer, "to": str(self._me)}
        self._mailbox.post_to(to, key, (), about)
