"""The nodes of a run, and the questions that every decision asks about all of them.

Rule: a node is never forgotten and keeps its position. So an answer about all nodes is handed on
from one state to the next, corrected for the nodes that changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

from bamboo.ids import InstanceId, NodeId, ZoneId

T = TypeVar("T")


class NodeStatus(StrEnum):
    """ready: a standby, without slot or replica · member: owns or shadows a slot · draining: a
    member that hands over because of a notice · gone: decided lost, and fenced for ever · left:
    left in order."""

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
    """One boot of one instance, as the run knows it."""

    id: NodeId
    instance: InstanceId
    zone: ZoneId
    endpoint: str
    """Where its transport listens, such as `ipc:///…` or `tcp://10.0.0.4:41234`."""
    pid: int
    status: NodeStatus
    notice_deadline_s: float | None = None
    """The store's time at which the cloud will take the instance; None: there is no notice."""
    advised: bool = False
    """Whether the cloud gave rebalance advice for the instance. The node goes on, and the fleet
    keeps one more node for it."""
    released: bool = False
    """Whether the run gives the instance back. The node then leaves with the next layout."""

    @property
    def usable(self) -> bool:
        """Whether the node is live and neither the cloud nor the run has said that it will go."""
        return self.status.live and self.notice_deadline_s is None and not self.released


class Nodes(tuple[Node, ...]):
    """The nodes in the order in which they joined; equal to any tuple of the same nodes.

    Each answer about all of them is computed when it is first asked for. `having` hands it on to
    the next nodes, corrected.
    """

    @cached_property
    def places(self) -> Mapping[NodeId, int]:
        """The position of each node."""
        return {node.id: place for place, node in reversed(tuple(enumerate(self)))}

    @cached_property
    def zones(self) -> Mapping[NodeId, ZoneId]:
        """The zone of each node."""
        return {node.id: node.zone for node in self}

    @cached_property
    def live(self) -> frozenset[NodeId]:
        """The nodes that are neither gone nor have left."""
        return frozenset(node.id for node in self if node.status.live)

    @cached_property
    def usable(self) -> frozenset[NodeId]:
        """The live nodes that will not go: without a notice, and not released."""
        return frozenset(node.id for node in self if node.usable)

    @property
    def advised(self) -> int:
        """How many of the usable nodes have rebalance advice."""
        return len(self._advised)

    @cached_property
    def aside(self) -> tuple[Node, ...]:
        """The live nodes that are not plain members: standbys, and nodes that drain, have a notice
        or are released. They are few in a run that trains."""
        return tuple(self[place] for place in sorted(self._aside))

    @cached_property
    def leaving(self) -> frozenset[NodeId]:
        """The live nodes that will go: with a notice, or released."""
        return frozenset(node.id for node in self.aside if not node.usable)

    @cached_property
    def _advised(self) -> frozenset[NodeId]:
        return frozenset(node.id for node in self if node.advised and node.usable)

    @cached_property
    def _aside(self) -> frozenset[int]:
        return frozenset(place for place, node in enumerate(self) if _is_aside(node))

    def having(self, *changed: Node) -> "Nodes":
        """Return the nodes with these, each in place of the one with its id; new ones come last."""
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
    """Correct `those`: each key of `is_one` is in the result if its value is true, else not."""
    more = {key for key, one in is_one.items() if one and key not in those}
    fewer = {key for key, one in is_one.items() if not one and key in those}
    those = those | more if more else those
    return those - fewer if fewer else those
