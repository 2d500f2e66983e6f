"""A reconfiguration as the state has it: what is prefetched for it, and how far it is.

Rule: what is found of all feeds is found when it is first asked for, and kept with them: they stay
the same from event to event while they are sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from bamboo.core.answers import answers
from bamboo.ids import NodeId
from bamboo.topology.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Layers [first, stop) on their way to one that will hold them in the next layout: the source
    sends them as they are at a step boundary, and then their part of every reduced gradient."""

    slot: Slot
    """That the layers belong to now."""
    source: NodeId
    """The owner of the slot."""
    receiver: NodeId
    first: int
    stop: int
    since: int
    """Version of the state that decided it."""

    @property
    def layers(self) -> range:
        """Which they are."""
        return range(self.first, self.stop)


class Feeds(tuple[Feed, ...]):
    """In order of receivers and layers; equal to any tuple of the same."""

    @cached_property
    def of(self) -> Mapping[NodeId, tuple[Feed, ...]]:
        """What each receiver is sent."""
        found: dict[NodeId, list[Feed]] = {}
        for feed in self:
            found.setdefault(feed.receiver, []).append(feed)
        return {node: tuple(feeds) for node, feeds in found.items()}

    @cached_property
    def receivers(self) -> frozenset[NodeId]:
        """Who is sent anything."""
        return frozenset(self.of)

    def has(self, feed: Feed) -> bool:
        """Whether it is one of them."""
        return feed in self.of.get(feed.receiver, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparing:
    """A reconfiguration that will be: it begins once every receiver has all and follows."""

    since: int
    """Version of the state that decided on it."""
    why: str
    forced: bool = False
    """As the reconfiguration will be."""
    feeds: tuple[Feed, ...] = ()
    prepared: tuple[tuple[NodeId, int], ...] = ()
    """Receivers that have all of theirs, each with the bytes of it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prepared", answers(self.prepared))
        if not isinstance(self.feeds, Feeds):
            object.__setattr__(self, "feeds", Feeds(self.feeds))

    @property
    def sent(self) -> Feeds:
        """`feeds`, with what is known of them."""
        assert isinstance(self.feeds, Feeds), "any other tuple is made one at once"
        return self.feeds

    @property
    def receivers(self) -> frozenset[NodeId]:
        """Who is sent anything."""
        return self.sent.receivers

    @property
    def prepared_bytes(self) -> int:
        """Sent to those who have all."""
        return sum(size for _, size in self.prepared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A node has the state of layers [first, stop) as it is before `step`. It could take the step
    at once, and so stand at `reach`, if it knew the gradient norm of the whole model."""

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
    """What a node holds that has stopped for a reconfiguration."""

    node: NodeId
    holdings: tuple[Holding, ...]
    norms: tuple[Norm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A node that has all that it is to hold; `bytes` were sent to it."""

    node: NodeId
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Layers that one node stores in an emergency."""

    node: NodeId
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The state before `step` is being stored while all stand still: each part by one node."""

    step: int
    era: int
    """The generation that began it: what was said in another does not count."""
    total_square: float | None
    """Of the step before `step`, for those who have yet to take it."""
    parts: tuple[Part, ...]
    stored: tuple[int, ...] = ()
    """Numbers of the parts that are stored."""
    committer: NodeId | None = None
    """Who is to write the manifest."""
    unable: tuple[NodeId, ...] = ()
    """Who could not store a part, or write the manifest, and is asked for nothing again."""

    @property
    def whole(self) -> bool:
        """Whether all parts are stored."""
        return len(self.stored) == len(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Emergency:
    """All who hold some stage's state will be taken: it is to be stored before they are."""

    since: int
    """Version of the state that found it."""
    by_s: float
    """Store time at which all must stand still, so that all is stored in time."""
    stages: tuple[int, ...]
    """Those that nobody holds who stays."""
    losses: tuple[tuple[float, float], ...] = ()
    """Store times at which owners are taken, the last one first, each with that by which all must
    stand still if it is to store all that it owns before."""
    failed: bool = False
    """It was tried, and could not be stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfiguration:
    """A reconfiguration under way: all stop, say what they hold, a new layout is decided, each gets
    what it lacks, and all go on together from `base`."""

    since: int
    """Version of the state that began it; tells two rounds apart."""
    why: str
    planned: bool
    """Nothing is lost: the step is finished first."""
    intact: bool
    """Nothing is lost that any node held, so what live nodes hold counts without redundancy too."""
    asked: tuple[NodeId, ...]
    """Who is to say what it holds."""
    owners: tuple[NodeId, ...] = ()
    """Who owned a slot when all stopped first; none: nobody has trained yet."""
    ready: tuple[tuple[NodeId, int], ...] = ()
    """While the boundary is being agreed: the last step that each has begun."""
    boundary: int | None = None
    """All finish this step, if planned."""
    reports: tuple[Report, ...] = ()
    shares: tuple[int, ...] = ()
    """Virtual nodes of each pipeline, where the grid stays and only they are to change."""
    forced: bool = False
    """Go on with however few nodes there are."""
    ahead: Preparing | None = None
    """What was sent for it ahead."""
    save: bool = False
    """What nobody holds who stays is stored before all go on."""
    keep: Keep | None = None
    """What is being stored for that."""
    base: int | None = None
    """The step that all go on from; None until it is decided."""
    checkpoint: bool = False
    """Whether what no live node holds is read from the checkpoint of step `base`."""
    total_square: float | None = None
    """Of the step before `base`, for those who have yet to take it."""
    rebuilt: tuple[Rebuilt, ...] = ()

    def __post_init__(self) -> None:
        for name in ("ready", "reports", "rebuilt"):
            object.__setattr__(self, name, answers(getattr(self, name)))
