"""What is sent ahead of a new layout, and who is sent it.

Rule: what is found of all feeds is found when it is first asked for, and kept with them: they stay
the same from event to event while they are sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

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
