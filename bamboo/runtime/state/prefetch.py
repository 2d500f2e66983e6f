"""Prefetch: layers that a new layout will need are sent, and kept up to date, while all nodes
train.

    receiver  ask 0, ask 1, ...      asks for the copy, some chunks at a time
    source    copy 0, copy 1, ...    parameters and moments at a step boundary
    source    follow t, taken t, follow t+1, ...
                                     their part of every gradient reduced since, and the norm when
                                     the step is taken
    receiver  (event) Prepared       it has all of its feeds, and has taken the steps that came
    all       (event) Quiesced       what was followed is held, like all else

Rules. (1) A prefetched layer takes the same steps as a shadow's replica. The update of a parameter
depends on that parameter alone, so no stage is needed for it. (2) It is not a replica: nobody waits
for it while all nodes train, and no step is safe because of it. Only at an agreed boundary at which
all nodes stop, a receiver that has said Prepared waits until its layers stand there too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from bamboo.checkpoint.manifest import layer_of
from bamboo.core.events import Prepared
from bamboo.core.next_layout import feeds_under_way
from bamboo.core.state import Prefetch, State
from bamboo.ids import NodeId
from bamboo.models import step_statistics
from bamboo.ports import Delivered, MessageKey, MessageKind
from bamboo.runtime.optim.state import BUFFER, PARAM, Layout, named_state
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.rows import packed, unpacked
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.wire.chunks import LARGE_CHUNK, Copying, Gathering
from bamboo.runtime.wire.messages import Mailbox, Message
from bamboo.runtime.wire.outbox import Outbox

WINDOW = 4
"""Chunks of one feed that have been asked for and have not come. An owner that computes on its own
processor answers only between two operations."""


@dataclass(slots=True, kw_only=True)
class Following:
    """A feed as its receiver sees it."""

    feed: Prefetch
    layout: Layout
    room: Mapping[str, Tensor]
    gathering: Gathering
    step: int = -1
    """The step that the layers stand before, once they are complete."""
    gradients: dict[int, Message | Delivered] = field(default_factory=dict)
    """By step: gradients that have come for steps that were not taken here yet."""
    total_squares: dict[int, float] = field(default_factory=dict)
    """By step: squared norms of steps that the owner has taken, or is about to, and that were not
    taken here yet."""
    followed_bytes: int = 0

    @property
    def stands(self) -> bool:
        """Whether it has taken all steps that its owner has reported."""
        return self.gathering.whole and self.step not in self.total_squares

    @property
    def can_follow(self) -> bool:
        """Whether it is whole and can take its owner's next step: gradient and norm are here."""
        return (
            self.gathering.whole and self.step in self.total_squares and self.step in self.gradients
        )


class NodePrefetch:
    """The feeds of one node. Belongs to the trainer's thread and never waits."""

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
        self._builder = builder
        self._outbox = outbox
        self.version = 0
        """The version of the newest state that it follows."""
        self._out: dict[Prefetch, Copying] = {}
        self._shared: dict[Prefetch, int] = {}
        """The last step whose gradient was sent for a feed."""
        self._in: dict[Prefetch, Following] = {}
        self._wanted: frozenset[Prefetch] = frozenset()
        """The feeds of `_in` that go on."""
        self._said: frozenset[Prefetch] = frozenset()

    # ------------------------------------------------------------------ decisions

    def sync(self, state: State) -> None:
        """Begin and end feeds as the newest state has them. During a reconfiguration, layers that
        have come whole stay until this node has reported that it holds them."""
        self.version = state.version
        feeds = feeds_under_way(state)
        mine = [feed for feed in feeds if feed.source == self._me]
        self._out = {feed: self._out.get(feed) or Copying(LARGE_CHUNK) for feed in mine}
        self._shared = {feed: step for feed, step in self._shared.items() if feed in self._out}
        for run in self._executor.owned.values():
            self.offer(run)
        self._wanted = frozenset(feed for feed in feeds if feed.receiver == self._me)
        anew = state.reconfiguration is not None
        self._in = {
            feed: found
            for feed, found in self._in.items()
            if feed in self._wanted or (anew and found.gathering.whole)
        }
        if state.preparing is None:
            self._said = self._wanted  # all stop, or nothing is prefetched: no report is needed
            return
        for feed in feeds:  # in the list's order, not the set's: a run asks alike each time
            if feed not in self._wanted or feed in self._in:
                continue
            layout, on_host = self._builder.layout_of(feed.layers), self._builder.replica_on_host
            room = layout.room(self._builder.device.place, on_host=on_host)
            gathering = Gathering(WINDOW, tuple(room.values()), LARGE_CHUNK)
            self._in[feed] = Following(feed=feed, layout=layout, room=room, gathering=gathering)
            for chunk in range(WINDOW):
                self._ask(feed, chunk)

    # ------------------------------------------------------------------ by the source

    def offer(self, run: SlotRun) -> None:
        """Take the owner's tensors as the state to send, for feeds that have none yet. They are the
        state before the owner's step until the step is taken, so there is nothing to wait for."""
        for feed, copying in self._out.items():
            if feed.slot != run.slot or copying.begun:
                continue
            tensors = [x for n, x in run.tensors().items() if layer_of(n) in feed.layers]
            for chunk in copying.begin(tensors, run.step):
                self._send_chunk(feed, copying, chunk)

    def share(self, run: SlotRun) -> None:
        """Send the reduced gradient, now that it is whole, to the receivers that follow this slot.
        It travels while other slots have yet to send their squares. (On a node that owns two slots
        it may be whole before the other slot's backward, which then waits until it is copied into
        frames.)"""
        for feed in self._begun(run):
            if self._shared.get(feed) == run.step:
                continue
            self._shared[feed] = run.step
            named = zip(run.plan.names, run.exchange.gradient, run.plan.widths, strict=True)
            part = [(x, w) for n, x, w in named if layer_of(f"{PARAM}/{n}") in feed.layers]
            tensors, how = packed([x for x, _ in part], [width for _, width in part])
            self._tell(feed.receiver, "follow", feed, run.step, about=how, tensors=tensors)

    def ship(self, run: SlotRun) -> None:
        """Tell the receivers that the owner is about to take a step, which they then take too."""
        self.share(run)  # also to feeds whose copy has begun since
        for feed in self._begun(run):
            self._out[feed].freeze()
            about = {"total_square": run.history[run.step].total_square}
            self._tell(feed.receiver, "taken", feed, run.step, about=about)

    def _begun(self, run: SlotRun) -> list[Prefetch]:
        """The feeds of this slot that have a state to copy."""
        return [
            feed for feed, copying in self._out.items() if feed.slot == run.slot and copying.begun
        ]

    def _send_chunk(self, feed: Prefetch, copying: Copying, chunk: int) -> None:
        part = copying.chunk(chunk)
        if part is not None:
            about = {"at_step": copying.step, "bytes": copying.bytes}
            self._tell(feed.receiver, "copy", feed, chunk, about=about, tensors=(part,))

    # ------------------------------------------------------------------ by the receiver

    def stands_after(self, step: int) -> bool:
        """Whether all feeds that are waited for have taken this step."""
        waited_for = (found for feed, found in self._in.items() if feed in self._wanted)
        return all(found.step > step for found in waited_for)

    def take(self) -> dict[tuple[int, int], Mapping[str, Tensor]]:
        """Hand over the layers that are whole, by (step, layer); nothing changes them any more."""
        whole = [found for found in self._in.values() if found.gathering.whole]
        self._in = {}
        self._wanted = frozenset()
        return {
            (found.step, layer): {n: x for n, x in found.room.items() if layer_of(n) == layer}
            for found in whole
            for layer in found.feed.layers
        }

    def _chunk_came(self, found: Following, chunk: int, message: Message) -> None:
        gathering = found.gathering
        if not gathering.take(chunk, message.tensors[0], whole=int(message.meta["bytes"])):
            return
        wanted = gathering.next_chunk()
        if wanted is not None:
            self._ask(found.feed, wanted)
        if gathering.whole:
            found.step = int(message.meta["at_step"])

    def _follow(self) -> None:
        """Take the steps that can be taken; a node that trains takes one at a time."""
        for found in self._in.values():
            while found.can_follow:
                message = self._mailbox.opened(found.gradients.pop(found.step), "follow")
                on_host = self._builder.replica_on_host
                kept = found.layout.optimizer_state(found.room, on_host=on_host)
                came = unpacked(message.tensors, message.meta)
                params = [found.room[f"{PARAM}/{name}"] for name in kept.tensors]
                self._executor.operations.follow(
                    params,
                    kept,
                    [x.reshape(p.shape) for x, p in zip(came, params, strict=False)],
                    stage=found.feed.slot.stage,
                    step=found.step,
                    total_square=found.total_squares.pop(found.step),
                    statistics=partial(
                        step_statistics,
                        found.layout.momenta,
                        {name: found.room[f"{BUFFER}/{name}"] for name in found.layout.buffers},
                        came[len(params) :],
                        microbatches=self._builder.batch.total,
                    ),
                )
                found.room = {**found.room, **named_state({}, kept.tensors, {})}
                found.step += 1
                found.followed_bytes += message.size_bytes()
                if self._executor.owned:
                    return

    @property
    def can_follow(self) -> bool:
        """Whether a step can be taken; a node that trains takes one at a time."""
        return any(found.can_follow for found in self._in.values())

    def _say_prepared(self) -> None:
        if self._wanted == self._said or not self._wanted:
            return
        mine = [self._in[feed] for feed in self._wanted]
        if not all(found.stands for found in mine):
            return
        self._said = self._wanted
        self._outbox.event(
            Prepared(
                node=self._me,
                since=max(feed.since for feed in self._wanted),
                bytes=sum(_bytes_of(found.room.values()) for found in mine),
                followed_bytes=sum(found.followed_bytes for found in mine),
            )
        )

    # ------------------------------------------------------------------ messages

    def pump(self) -> None:
        """Take in the messages that came, and take the steps that can be taken."""
        self._take_in()
        # A step waits for an idle device; what the device computes is not to wait for the step.
        if self._in and self._executor.operations.device.accepts("R"):
            self._follow()
            self._say_prepared()

    def _take_in(self) -> None:
        """Send the chunks that are asked for, and store chunks and gradients that came; messages of
        a decision that was not read here yet wait."""
        early = []
        while self._mailbox.of_feeds:
            key, message = self._mailbox.of_feeds.popleft()
            if int(message.meta["since"]) > self.version:
                early.append((key, message))
            else:
                self._take(key, message)
        self._mailbox.of_feeds.extend(early)

    def _take(self, key: MessageKey, message: Message | Delivered) -> None:
        about = (key.to, message.meta["to"], message.meta["first"], message.meta["since"])
        if key.kind == "ask":
            for feed, copying in self._out.items():
                if _named(feed) == about:
                    self._send_chunk(feed, copying, key.index)
            return
        found = next((x for feed, x in self._in.items() if _named(feed) == about), None)
        if found is None:
            return
        if key.kind == "follow":
            found.gradients[key.index] = message
        elif key.kind == "taken":
            found.total_squares[key.index] = float(message.meta["total_square"])
        elif isinstance(message, Message):
            self._chunk_came(found, key.index, message)

    def _ask(self, feed: Prefetch, chunk: int) -> None:
        self._tell(feed.source, "ask", feed, chunk)

    def _tell(
        self,
        to: NodeId,
        kind: MessageKind,
        feed: Prefetch,
        index: int,
        *,
        about: Mapping[str, Any] | None = None,
        tensors: Sequence[Tensor] = (),
    ) -> None:
        key = MessageKey(kind=kind, to=feed.slot, source=feed.slot, step=0, index=index)
        name = {"to": str(feed.receiver), "first": feed.first, "since": feed.since}
        self._mailbox.post_to(to, key, tensors, {**name, **(about or {})})


def _named(feed: Prefetch) -> tuple[object, ...]:
    return (feed.slot, str(feed.receiver), feed.first, feed.since)


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
