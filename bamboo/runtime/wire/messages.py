"""Messages between slots: routing by slot, the inbox, and the stash of what was sent.

Rules. A message is addressed to a slot, and goes to the node that owns the slot now. A message that
was sent in a step stays in the stash until every slot is safe beyond that step; when a slot gets a
new owner, all messages that are kept for it are sent again. Messages of one key are bitwise equal,
so the first one wins and later ones are dropped. Nothing here waits. Messages leave in the order in
which they were posted, each in the generation of that moment, once the device has written its
tensors to the host, where the stash keeps them too. Messages about state (`ports.AT_REST`), and
sums that are made on the host, have an order of their own and wait for no operation.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from bamboo.core.state import State
from bamboo.ids import NodeId
from bamboo.ports import AT_REST, Buffer, Delivered, MessageKey, MessageKind, Transport
from bamboo.runtime.device.devices import Cpu, Device
from bamboo.runtime.device.staging import Staged
from bamboo.runtime.wire.frames import to_buffer, to_bytes, to_gradient, to_tensor
from bamboo.topology.assignment import Assignment
from bamboo.topology.slots import Slot

GRADIENTS = frozenset({"partial", "shard", "merged", "relayed", "reduced", "ship", "follow"})
"""Kinds of messages whose tensors are added or stepped with, element by element."""
Address: TypeAlias = tuple[MessageKind, int, int]
"""(kind, step, index) of a message within the inbox of its slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The contents of a message that has arrived."""

    tensors: tuple[Tensor, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    generation: int = 0
    """The generation that its sender knew of when sending, if it came from another node."""
    copy: Staged | None = None
    """Where the tensors are a copy in the host's memory: that copy, which may be under way."""

    def size_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors)


class Posted(NamedTuple):
    """A message that has not left, with all that can be made of it before it may leave."""

    generation: int | None
    node: NodeId
    key: MessageKey
    message: Message
    buffers: list[Buffer]


@dataclass(slots=True, kw_only=True)
class Joining:
    """A receiver that follows an owned slot as a shadow does, and is not its shadow yet."""

    receiver: NodeId
    guarded: bool = False
    """Set once the receiver was reported: what is safe is then what the receiver acknowledges, and
    the present shadow gets nothing before the receiver has it."""
    stands: int = -1
    withheld: list[tuple[MessageKey, Message]] = field(default_factory=list)


class Inbox:
    """What came for the slots of one node, and has not been taken yet."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._inbox: dict[Slot, dict[Address, Message | Delivered]] = defaultdict(dict)
        self._taken: dict[Slot, set[Address]] = defaultdict(set)
        self.safe: dict[Slot, int] = {}
        """Per slot, the step before which nothing will ever be asked for again: the version of its
        shadow, or of its owner where there is no shadow."""
        self.replica_hashes: dict[tuple[Slot, int], str] = {}
        self.of_transfers: deque[tuple[MessageKey, Message]] = deque()
        """Messages about the state of slots: they belong to no step, and those that wait for them
        take them."""
        self.of_layers: deque[tuple[MessageKey, Message]] = deque()
        """Messages of reconfigurations."""
        self.of_feeds: deque[tuple[MessageKey, Message | Delivered]] = deque()
        """Messages about layers that are prefetched."""
        self._era = 0

    def forget_before(self, era: int) -> None:
        """Forget all messages of eras before this one, and drop those that still come. Messages
        about layers stay."""
        self._era = era
        for slot, messages in self._inbox.items():
            self._inbox[slot] = {a: x for a, x in messages.items() if x.generation >= era}
        self._taken.clear()
        self.of_transfers = deque(x for x in self.of_transfers if x[1].generation >= era)
        self.of_feeds = deque(x for x in self.of_feeds if x[1].generation >= era)
        self.replica_hashes.clear()

    def forget_steps(self, bound: int, replicas_from: Mapping[Slot, int]) -> None:
        """Forget the messages of steps before `bound`, except the gradients that a replica of this
        node has yet to follow, from its step in `replicas_from` on."""
        for slot, messages in self._inbox.items():
            ships = min(bound, replicas_from.get(slot, bound))
            for address in [a for a in messages if a[1] < (ships if a[0] == "ship" else bound)]:
                del messages[address]
            self._taken[slot] = {a for a in self._taken[slot] if a[1] >= bound}
        for known in [k for k in self.replica_hashes if k[1] < bound]:
            del self.replica_hashes[known]

    def copied(self) -> Staged:
        """Is done once all operations that were issued so far are."""
        return self._device.fetch(())

    @property
    def safe_step(self) -> int:
        """The step before which every slot is safe."""
        return min(self.safe.values())

    def _deliver(self, key: MessageKey, message: Message | Delivered) -> None:
        if key.kind in ("want", "part"):
            self.of_layers.append((key, _as_it_lies(message)))
            return
        if isinstance(message, Delivered) and message.generation < self._era:
            return
        if key.kind == "ack":
            self.safe[key.to] = max(self.safe.get(key.to, 0), key.step)
            if "hash" in message.meta:
                self.replica_hashes[(key.to, key.step)] = str(message.meta["hash"])
            return
        if "parcel" in message.meta:
            for part_key, part in _unparcelled(key, message):
                self._deliver(part_key, part)
            return
        if key.kind in ("pull", "state", "stand"):
            self.of_transfers.append((key, _as_it_lies(message)))
            return
        if key.kind in ("ask", "copy", "taken"):
            self.of_feeds.append((key, _as_it_lies(message)))
            return
        if key.kind == "follow":  # it may wait for many steps, and not on the device
            self.of_feeds.append((key, message))
            return
        address = (key.kind, key.step, key.index)
        if address not in self._taken[key.to]:
            self._inbox[key.to].setdefault(address, message)

    def has(self, slot: Slot, kind: MessageKind, step: int, index: int = 0) -> bool:
        """Whether that message for `slot` has come and was not taken yet."""
        return (kind, step, index) in self._inbox[slot]

    def take(self, slot: Slot, kind: MessageKind, step: int, index: int = 0) -> Message:
        """Take a message that `has` has found."""
        address = (kind, step, index)
        self._taken[slot].add(address)
        return self.opened(self._inbox[slot].pop(address), kind)

    def opened(self, message: Message | Delivered, kind: MessageKind) -> Message:
        """The message with its tensors on the device."""
        if isinstance(message, Message):
            if message.copy is None:
                return message
            tensors = self._device.put(message.tensors, message.copy)
            return replace(message, tensors=tensors, copy=None)
        # Where it is copied to the device, it is not copied on the host first.
        lies = kind in GRADIENTS or self._device.place.type != "cpu"
        tensors = tuple(map(to_gradient if lies else to_tensor, message.buffers))
        tensors = self._device.put(tensors)
        return Message(tensors=tensors, meta=message.meta, generation=message.generation)


class Mailbox(Inbox):
    """Sends, keeps and takes in the messages of one node."""

    def __init__(self, transport: Transport, me: NodeId, device: Device | None = None) -> None:
        super().__init__(device or Cpu())
        self._transport = transport
        self._me = me
        self._generation: int | None = None
        self._orders: tuple[deque[Posted], deque[Posted]] = (deque(), deque())
        """Messages that wait until their copy, or that of one before them in their order, is
        complete; the second order is that of what lies at rest."""
        self._assignment: Assignment | None = None
        self._stash: dict[int, dict[MessageKey, Message]] = defaultdict(dict)
        self.peak_stash_bytes = 0
        self.stash_bytes = 0
        self.turns = 0
        """How often messages were taken in: at least once in each turn of the trainer's loop, which
        turns several times a second even while it waits."""
        self.joining: dict[Slot, Joining] = {}
        self._participants: frozenset[NodeId] = frozenset()
        self._bundle: list[tuple[MessageKey, Message]] = []

    def assign(self, assignment: Assignment, participants: Collection[NodeId] = ()) -> None:
        """Route by this assignment from now on; every node of it, and of `participants`, is sent
        the acknowledgements."""
        self._assignment = assignment
        self._participants = assignment.members().union(participants)
        for slot in assignment.grid.slots():
            self.safe.setdefault(slot, 0)

    def connect(self, state: State) -> None:
        """Connect to the nodes that the state names. What is posted from now on is of its
        generation."""
        self._generation = state.generation
        members = state.participants()
        endpoints = {n.id: n.endpoint for n in state.nodes if n.id in members}
        self._transport.reconfigure(generation=state.generation, members=endpoints)

    def begin_era(self, era: int, assignment: Assignment, step: int) -> None:
        """Slots mean something else from generation `era` on: forget all messages of earlier eras,
        and drop those that still come. Every node starts before `step`. Messages that already
        belong to this era stay: they came before this node read the log."""
        self.forget_before(era)
        self.safe = dict.fromkeys(assignment.grid.slots(), step)
        self._assignment = assignment
        for queue in self._orders:
            queue.clear()
        self._stash.clear()
        self.stash_bytes = 0
        self.joining.clear()
        self._bundle = []

    @property
    def assignment(self) -> Assignment:
        assert self._assignment is not None, "mailbox moves only after the first assignment"
        return self._assignment

    # ------------------------------------------------------------------ sending

    def post(
        self,
        key: MessageKey,
        tensors: Sequence[Tensor] = (),
        meta: Mapping[str, Any] | None = None,
        *,
        also_shadow: bool = False,
        at_rest: bool = False,
    ) -> None:
        """Send to the owner of `key.to`, or to owner and shadow, and keep it in the stash.
        `at_rest`: no operation that is under way writes the tensors, so it waits for none."""
        message = Message(tensors=tuple(t.detach().contiguous() for t in tensors), meta=meta or {})
        kept = self._on_host(message, at_rest=at_rest)
        shadow = self.assignment.shadow(key.to) if also_shadow else None
        # It is sent before it is kept, because the other side waits for it.
        for node in (self.assignment.owner(key.to), shadow):
            if node is not None:
                self._route(node, key, message if node == self._me else kept, at_rest=at_rest)
        self._stash[key.step][key] = kept
        self.stash_bytes += message.size_bytes()
        self.peak_stash_bytes = max(self.peak_stash_bytes, self.stash_bytes)

    def post_to(
        self,
        node: NodeId,
        key: MessageKey,
        tensors: Sequence[Tensor] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """Send to a node, whatever it owns, and keep nothing."""
        message = Message(tensors=tuple(t.detach().contiguous() for t in tensors), meta=meta or {})
        self._route(node, key, message)

    def declare_safe(self, slot: Slot, step: int, meta: Mapping[str, Any] | None = None) -> None:
        """Tell all participants that `slot` will ask for nothing before `step`."""
        key = MessageKey(kind="ack", to=slot, source=slot, step=step)
        for node in self._participants:
            self.post_to(node, key, (), meta)

    def ship(
        self,
        slot: Slot,
        step: int,
        tensors: Sequence[Tensor],
        meta: Mapping[str, Any],
        *,
        more: bool = False,
    ) -> None:
        """Send an owned slot's reduced gradient to its shadow and to the receiver that joins, if
        any.

        `more`: another slot of the pipeline follows in this step. A node that gets several of these
        gradients gets them in one message. So when this node is lost, replicas of neighbouring
        slots stand at one step; what these slots sent each other in the step before was sent by
        this node alone.
        """
        key = MessageKey(kind="ship", to=slot, source=slot, step=step)
        message = Message(tensors=tuple(t.detach().contiguous() for t in tensors), meta=meta)
        self._bundle.append((key, message))
        if more:
            return
        parcels: dict[NodeId, list[tuple[MessageKey, Message]]] = defaultdict(list)
        for item in self._bundle:
            joining, shadow = self.joining.get(item[0].to), self.assignment.shadow(item[0].to)
            if joining is not None:
                parcels[joining.receiver].append(item)
            if joining is not None and joining.guarded and joining.stands <= item[0].step:
                joining.withheld.append(item)
            elif shadow is not None:
                parcels[shadow].append(item)
        self._bundle = []
        for node, parcel in parcels.items():
            self._route(node, *_parcelled(parcel))

    def begin_joining(self, slot: Slot, receiver: NodeId) -> None:
        """From now on send `receiver` whatever the shadow of `slot` is sent."""
        self.joining[slot] = Joining(receiver=receiver)

    def guard(self, slot: Slot) -> None:
        """From now on nothing of `slot` counts as safe, and nothing goes to its shadow, before the
        receiver has it."""
        self.joining[slot].guarded = True

    def guarded(self, slot: Slot) -> bool:
        """Whether the receiver's acknowledgements decide what is safe of `slot`."""
        return slot in self.joining and self.joining[slot].guarded

    def joining_stands(self, slot: Slot, step: int) -> None:
        """Note that the receiver has followed up to `step`."""
        joining = self.joining[slot]
        joining.stands = max(joining.stands, step)
        self._release(joining, self.assignment.shadow(slot))

    def end_joining(self, slot: Slot, *, released: NodeId | None) -> None:
        """The receiver is the shadow, or never will be: send `released` what was withheld from
        it."""
        joining = self.joining.pop(slot, None)
        if joining is not None and released != joining.receiver:
            joining.stands = max((key.step for key, _ in joining.withheld), default=0) + 1
            self._release(joining, released)

    def _release(self, joining: Joining, shadow: NodeId | None) -> None:
        """Send the present shadow the gradients that the receiver has by now."""
        ready = [item for item in joining.withheld if item[0].step < joining.stands]
        joining.withheld = [item for item in joining.withheld if item[0].step >= joining.stands]
        if shadow is not None:
            for key, message in ready:
                self._route(shadow, key, message)

    def resend(self, slot: Slot) -> int:
        """Send again all that is kept for `slot`, to its present owner; returns the number."""
        count = 0
        for messages in self._stash.values():
            for key, message in messages.items():
                if key.to == slot:
                    self._route(self.assignment.owner(slot), key, message)
                    count += 1
        return count

    def _route(
        self, node: NodeId, key: MessageKey, message: Message, *, at_rest: bool = False
    ) -> None:
        if node == self._me:
            self._deliver(key, message)
        else:
            rests = at_rest or key.kind in AT_REST
            queue, kept = self._orders[rests], self._on_host(message, at_rest=rests)
            buffers = [to_buffer(tensor) for tensor in kept.tensors]
            queue.append(Posted(self._generation, node, key, kept, buffers))
            self._send_ready()

    def _on_host(self, message: Message, *, at_rest: bool = False) -> Message:
        """The message with a copy of its tensors in the host's memory, begun now where needed."""
        if message.copy is not None:
            return message
        copy = self._device.fetch(message.tensors, at_rest=at_rest)
        return replace(message, tensors=copy.tensors, copy=copy)

    def _send_ready(self) -> None:
        """Send the messages that wait, of each order up to the first whose copy is not complete."""
        for queue in self._orders:
            while queue:
                generation, node, key, message, buffers = queue[0]
                if message.copy is not None and not message.copy.ready():
                    break
                queue.popleft()
                self._transport.send(node, key, buffers, message.meta, generation)

    @property
    def sent_bytes(self) -> Mapping[str, int]:
        """Bytes sent to other nodes, headers included, by kind of message."""
        return self._transport.sent_bytes

    # ------------------------------------------------------------------ receiving

    def collect(self, timeout_s: float) -> int:
        """Take in all messages that came, waiting up to `timeout_s` for the first; returns the
        number."""
        self.turns += 1
        self._send_ready()
        messages = self._transport.poll(timeout_s)
        self._send_ready()
        for message in messages:
            self._deliver(message.key, message)
        return len(messages)

    def keeps(self, key: MessageKey) -> bool:
        """Whether this node sent that message and still keeps it."""
        return key in self._stash.get(key.step, {})

    def kept(self, key: MessageKey) -> Message | None:
        """A message that this node sent and still keeps, with its tensors on the device, or
        None."""
        found = self._stash.get(key.step, {}).get(key)
        return None if found is None else self.opened(found, key.kind)

    # ------------------------------------------------------------------ forgetting

    def forget_evaluation(self, step: int) -> None:
        """Keep nothing of the evaluation before this step: it was decided on."""
        kept = self._stash.get(step, {})
        for key in [key for key in kept if key.kind in ("eval", "sums")]:
            self.stash_bytes -= kept.pop(key).size_bytes()

    def prune(self, replicas_from: Mapping[Slot, int]) -> None:
        """Forget all messages of steps before `safe_step`, except the gradients that a replica of
        this node has yet to follow, from its step in `replicas_from` on."""
        bound = self.safe_step
        for step in [s for s in self._stash if s < bound]:
            self.stash_bytes -= sum(x.size_bytes() for x in self._stash.pop(step).values())
        self.forget_steps(bound, replicas_from)


def _as_it_lies(message: Message | Delivered) -> Message:
    """A message with state: its bytes stay where they came, because the receiver copies them."""
    if isinstance(message, Delivered):
        tensors = tuple(map(to_bytes, message.buffers))
        return Message(tensors=tensors, meta=message.meta, generation=message.generation)
    return message


def _parcelled(parcel: Sequence[tuple[MessageKey, Message]]) -> tuple[MessageKey, Message]:
    """Shipped gradients of several slots as one message."""
    if len(parcel) == 1:
        return parcel[0]
    tensors = tuple(tensor for _, message in parcel for tensor in message.tensors)
    parts = [[key.to.pipeline, key.to.stage, len(x.tensors), x.meta] for key, x in parcel]
    return parcel[0][0], Message(tensors=tensors, meta={"parcel": parts})


def _unparcelled(
    key: MessageKey, message: Message | Delivered
) -> Iterator[tuple[MessageKey, Message | Delivered]]:
    at = 0
    for pipeline, stage, count, meta in message.meta["parcel"]:
        slot, inside = Slot(pipeline=int(pipeline), stage=int(stage)), slice(at, at + int(count))
        part: Message | Delivered
        if isinstance(message, Delivered):
            part = replace(message, buffers=message.buffers[inside], meta=meta)
        else:
            part = replace(message, tensors=message.tensors[inside], meta=meta)
        yield replace(key, to=slot, source=slot), part
        at += int(count)
