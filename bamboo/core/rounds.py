"""The parts of the state about which many nodes are asked: a reconfiguration, with its prefetch,
the answers of the nodes, its progress and what is stored for it; and another way to synchronise.

Rules. (1) Facts about all prefetches are computed when they are first asked for and kept with them,
since they stay the same object from event to event while they are sent. (2) A reconfiguration asks
every node three times, so the nodes that are still silent are found once and handed on from answer
to answer.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, TypeVar

from bamboo.ids import NodeId
from bamboo.topology.slots import Slot


class _Signed(Protocol):
    @property
    def node(self) -> NodeId: ...


T = TypeVar("T", bound=_Signed | tuple[NodeId, int])
_Known = tuple[Collection[NodeId], Collection[NodeId] | None, frozenset[NodeId]]
"""The nodes that were asked, the nodes among which they count, and those of them that are
silent."""


class Answers(tuple[T, ...]):
    """Answers in the order in which they came; equal to any tuple of the same answers."""

    _known: _Known = ((), None, frozenset())
    """One value that is set as a whole, since several threads may ask."""

    def silent(
        self, asked: Collection[NodeId], among: Collection[NodeId] | None = None
    ) -> frozenset[NodeId]:
        """The nodes of `asked` that have not answered; with `among`, only those that are in it
        too."""
        known_asked, known_among, silent = self._known
        if known_asked is not asked or known_among is not among:
            those = frozenset(asked) if among is None else frozenset(among).intersection(asked)
            silent = those.difference(map(_node, self))
            self._known = (asked, among, silent)
        return silent

    def has(self, node: NodeId) -> bool:
        """Whether `node` has answered."""
        *_, silent = self._known
        return node not in silent and any(_node(answer) == node for answer in self)

    def having(self, *more: T) -> "Answers[T]":
        """Return the answers with these added."""
        after = Answers((*self, *more))
        asked, among, silent = self._known
        after._known = (asked, among, silent.difference(map(_node, more)))
        return after


def answers(given: tuple[T, ...]) -> Answers[T]:
    """Return `given` as Answers; the same object if it is that already."""
    return given if isinstance(given, Answers) else Answers(given)


def _node(answer: _Signed | tuple[NodeId, int]) -> NodeId:
    return answer[0] if isinstance(answer, tuple) else answer.node


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefetch:
    """One prefetch: layers [first, stop) go to a node that will hold them in the next layout. The
    source sends them as they are at a step boundary, and then their part of each reduced
    gradient."""

    slot: Slot
    """The slot that the layers belong to at present."""
    source: NodeId
    """The owner of `slot`."""
    receiver: NodeId
    first: int
    stop: int
    since: int
    """The version of the state that began it."""

    @property
    def layers(self) -> range:
        """The layers that are sent."""
        return range(self.first, self.stop)


class Prefetches(tuple[Prefetch, ...]):
    """Prefetches in order of receivers and layers; equal to any tuple of the same ones."""

    @cached_property
    def of(self) -> Mapping[NodeId, tuple[Prefetch, ...]]:
        """The prefetches of each receiver."""
        found: dict[NodeId, list[Prefetch]] = {}
        for feed in self:
            found.setdefault(feed.receiver, []).append(feed)
        return {node: tuple(feeds) for node, feeds in found.items()}

    @cached_property
    def receivers(self) -> frozenset[NodeId]:
        """The nodes that are sent anything."""
        return frozenset(self.of)

    def has(self, feed: Prefetch) -> bool:
        """Whether this one is among them."""
        return feed in self.of.get(feed.receiver, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """A reconfiguration that is being prepared: it begins once every receiver has all of its feeds
    and follows them."""

    since: int
    """The version of the state that decided on it."""
    why: str
    forced: bool = False
    """`forced` of the reconfiguration to come."""
    feeds: tuple[Prefetch, ...] = ()
    prepared: tuple[tuple[NodeId, int], ...] = ()
    """The receivers that have all of their feeds, each with the bytes that it was sent."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prepared", answers(self.prepared))
        if not isinstance(self.feeds, Prefetches):
            object.__setattr__(self, "feeds", Prefetches(self.feeds))

    @property
    def sent(self) -> Prefetches:
        """The same as `feeds`, with the type that answers questions about all of them."""
        assert isinstance(self.feeds, Prefetches), "any other tuple is made one at once"
        return self.feeds

    @property
    def receivers(self) -> frozenset[NodeId]:
        """The nodes that are sent anything."""
        return self.sent.receivers

    @property
    def prepared_bytes(self) -> int:
        """The bytes that were sent to the receivers that have all of their feeds."""
        return sum(size for _, size in self.prepared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A node holds the state of layers [first, stop) as it is before `step`. If it knew the
    gradient norm of the whole model it could take that step at once and so stand at `reach`."""

    first: int
    stop: int
    step: int
    reach: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The squared gradient norm of the whole model in `step`."""

    step: int
    total_square: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a node holds after it has stopped for a reconfiguration."""

    node: NodeId
    holdings: tuple[Holding, ...]
    norms: tuple[Norm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A node that has everything that it should hold in the new layout; it was sent `bytes`."""

    node: NodeId
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The layers that one node stores in an emergency."""

    node: NodeId
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The state before `step` is being stored while all nodes stand still, each part by one
    node."""

    step: int
    era: int
    """The generation that began it; reports of another one do not count."""
    total_square: float | None
    """The squared norm of the step before `step`, for nodes that have yet to take that step."""
    parts: tuple[Part, ...]
    stored: tuple[int, ...] = ()
    """The numbers of the parts that are stored."""
    committer: NodeId | None = None
    """The node that should write the manifest."""
    unable: tuple[NodeId, ...] = ()
    """The nodes that could not store a part or write the manifest; they are not asked again."""

    @property
    def whole(self) -> bool:
        """Whether all parts are stored."""
        return len(self.stored) == len(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emergency:
    """All nodes that hold some stage's state will be taken, so the state must be stored before."""

    since: int
    """The version of the state that found it."""
    by_s: float
    """The store's time at which all nodes must stand still, so that everything is stored in
    time."""
    stages: tuple[int, ...]
    """The stages that no staying node holds."""
    losses: tuple[tuple[float, float], ...] = ()
    """The store's times at which owners are taken, the last one first. Each comes with the time by
    which all must stand still, if that owner should store all that it owns before."""
    failed: bool = False
    """Whether storing it was tried and failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfiguration:
    """A reconfiguration that is under way: all nodes stop and report what they hold, a new layout
    is decided, each node fetches what it lacks, and all go on from `base`."""

    since: int
    """The version of the state that began this round; tells two rounds apart."""
    why: str
    planned: bool
    """Whether nothing is lost, so that the step is finished first."""
    intact: bool
    """Whether no state is lost that any node held. Then what live nodes hold counts without
    redundancy too."""
    asked: tuple[NodeId, ...]
    """The nodes that are asked what they hold."""
    owners: tuple[NodeId, ...] = ()
    """The nodes that owned a slot when the first round began; empty: nothing was trained yet."""
    ready: tuple[tuple[NodeId, int], ...] = ()
    """While the boundary is being agreed: the last step that each node has begun."""
    boundary: int | None = None
    """If planned: the step that all nodes finish before they stop."""
    reports: tuple[Report, ...] = ()
    shares: tuple[int, ...] = ()
    """The new shares, where the grid stays and only they should change."""
    forced: bool = False
    """Whether to go on with however few nodes there are."""
    ahead: Preparing | None = None
    """What was prefetched for it."""
    save: bool = False
    """Whether state that no staying node holds is stored before all go on."""
    keep: Keep | None = None
    """What is being stored for that at present."""
    base: int | None = None
    """The step from which all go on; None until it is decided."""
    checkpoint: bool = False
    """Whether layers that no live node holds are read from the checkpoint of step `base`."""
    total_square: float | None = None
    """The squared norm of the step before `base`, for nodes that have yet to take that step."""
    rebuilt: tuple[Built, ...] = ()

    def __post_init__(self) -> None:
        for name in ("ready", "reports", "rebuilt"):
            object.__setattr__(self, name, answers(getattr(self, name)))


def held_at(report: Report, base: int, total_square: float | None) -> frozenset[int]:
    """The layers that a node holds, or can reach, as they are before step `base`."""
    return frozenset(
        layer
        for h in report.holdings
        if h.step == base or (h.reach == base and total_square is not None)
        for layer in range(h.first, h.stop)
    )


def holders(reconfiguration: Reconfiguration) -> dict[int, tuple[NodeId, ...]]:
    """For each layer, the nodes that can send it as it is at the base."""
    out: dict[int, tuple[NodeId, ...]] = {}
    assert reconfiguration.base is not None, "a base is decided before anything is sent"
    for report in reconfiguration.reports:
        for layer in held_at(report, reconfiguration.base, reconfiguration.total_square):
            out[layer] = (*out.get(layer, ()), report.node)
    return out


def whole_of(preparing: Preparing) -> Preparing | None:
    """Keep only the receivers that have all of their feeds; None if there is none."""
    has = answers(preparing.prepared).has
    feeds = tuple(feed for feed in preparing.feeds if has(feed.receiver))
    return replace(preparing, feeds=feeds) if feeds else None


def fed_layers(preparing: Preparing | None, node: NodeId) -> frozenset[int]:
    """The layers that were prefetched to a node; other nodes hold them too."""
    return layers_of(sent_to(preparing, node))


def layers_of(feeds: Iterable[Prefetch]) -> frozenset[int]:
    """The layers of several prefetches."""
    return frozenset(layer for feed in feeds for layer in feed.layers)


def sent_to(preparing: Preparing | None, node: NodeId) -> tuple[Prefetch, ...]:
    """What is prefetched to a node."""
    return () if preparing is None else preparing.sent.of.get(node, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A step from which all nodes can go on."""

    step: int
    checkpoint: bool
    total_square: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncChoice:
    """From one step on, parameters are synchronised by the strategy with this hash, until the step
    of the next choice. The strategy itself lies in the store."""

    number: int
    """Counted from 1."""
    hash: str
    """As `topology.sync.Sync.hash`."""
    from_step: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A strategy that the nodes are asked about. Each reads it, and says how far it is. From then
    on it does nothing of a step that is `MARGIN` beyond, until it knows what is decided."""

    since: int
    """The version of the state that began it; tells two proposals apart."""
    hash: str
    why: str
    ready: tuple[NodeId, ...] = ()
    """The nodes that have the strategy, in the order of their answers."""
    begun: int = -1
    """The last step that any of them has begun."""
    oldest: int = 0
    """The oldest step that any of them is in."""


def choice_at(syncs: tuple[SyncChoice, ...], step: int) -> SyncChoice | None:
    """The choice by which a step is synchronised; None: as the run began."""
    return next((choice for choice in reversed(syncs) if choice.from_step <= step), None)
