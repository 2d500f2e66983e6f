"""The nodes of a run, and what every decision asks of them.

Rule: a node is never forgotten and keeps its place, so what was found of all of them goes on to the
next ones, corrected for those that changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

from bamboo.ids import InstanceId, NodeId, ZoneId

T = TypeVar("T")


class NodeStatus(StrEnum):
    """ready: a standby, no slot or replica yet · member: owns or shadows something · draining: a
    member with a preemption notice · gone: decided lost, fenced for ever · left: in order."""

    READY = "ready"
    MEMBER = "member"
    DRAINING = "draining"
    GONE = "gone"
    LEFT = "left"

    @property
    def live(self) -> bool:
        return self is not NodeStatus.GONE and self is not NodeStatus.LEFT


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One boot of one instance, as the members know it."""

    id: NodeId
    instance: InstanceId
    zone: ZoneId
    endpoint: str
    """Where its transport listens, e.g. `ipc:///…` or `tcp://10.0.0.4:41234`."""
    pid: int
    status: NodeStatus
    notice_deadline_s: float | None = None
    """Store time at which the cloud said it will take the instance, or None."""
    advised: bool = False
    """Whether the cloud has advised to leave the instance. The node goes on; the fleet keeps one
    node more for it."""
    released: bool = False
    """Whether the run gives its instance back: the node leaves with the next layout."""

    @property
    def usable(self) -> bool:
        """Live, and nobody has said that it is to go: neither the cloud nor the run."""
        return self.status.live and self.notice_deadline_s is None and not self.released


class Nodes(tuple[Node, ...]):
    """The nodes in the order in which they joined, equal to any tuple of the same.

    What is asked of all of them is found when it is first asked for, and handed on, corrected, to
    those made of these by `having`.
    """

    @cached_property
    def places(self) -> Mapping[NodeId, int]:
        """Where each stands."""
        return {node.id: place for place, node in reversed(tuple(enumerate(self)))}

    @cached_property
    def zones(self) -> Mapping[NodeId, ZoneId]:
        """Where each runs."""
        return {node.id: node.zone for node in self}

    @cached_property
    def live(self) -> frozenset[NodeId]:
        """Who is neither gone nor has left."""
        return frozenset(node.id for node in self if node.status.live)

    @cached_property
    def usable(self) -> frozenset[NodeId]:
        """Who of them has had no notice."""
        return frozenset(node.id for node in self if node.usable)

    @property
    def advised(self) -> int:
        """How many of the usable nodes the cloud has advised to leave."""
        return len(self._advised)

    @cached_property
    def aside(self) -> tuple[Node, ...]:
        """The live nodes that are no members like most: that stand by, drain or have had a notice.
        They are few in a run that trains."""
        return tuple(self[place] for place in sorted(self._aside))

    @cached_property
    def leaving(self) -> frozenset[NodeId]:
        """The live nodes of which somebody has said that they are to go."""
        return frozenset(node.id for node in self.aside if not node.usable)

    @cached_property
    def _advised(self) -> frozenset[NodeId]:
        return frozenset(node.id for node in self if node.advised and node.usable)

    @cached_property
    def _aside(self) -> frozenset[int]:
        return frozenset(place for place, node in enumerate(self) if _is_aside(node))

    def having(self, *changed: Node) -> "Nodes":
        """The same, with these in place of those of the same ids; new ones come last."""
        nodes, places, zones = list(self), self.places, self.zones
        if new := [node for node in changed if node.id not in places]:
            places = {**places, **{node.id: at for at, node in enumerate(new, len(nodes))}}
            zones = {**zones, **{node.id: node.zone for node in new}}
            nodes += new
        for node in changed:
            nodes[places[node.id]] = node
        after = Nodes(nodes)
        after.places, after.zones = places, zones
        after.live = _corrected(self.live, {n.id: n.status.live for n in changed})
        after.usable = _corrected(self.usable, {n.id: n.usable for n in changed})
        after._advised = _corrected(self._advised, {n.id: n.advised and n.usable for n in changed})
        after._aside = _corrected(self._aside, {places[n.id]: _is_aside(n) for n in changed})
        return after


def _is_aside(node: Node) -> bool:
    return node.status.live and (node.status is not NodeStatus.MEMBER or not node.usable)


def _corrected(those: frozenset[T], is_one: Mapping[T, bool]) -> frozenset[T]:
    """`those`, with each key of `is_one` among them or not, as it says."""
    more = {key for key, one in is_one.items() if one and key not in those}
    fewer = {key for key, one in is_one.items() if not one and key in those}
    those = those | more if more else those
    return those - fewer if fewer else those
