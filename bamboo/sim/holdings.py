"""What the nodes of a simulated run hold while all is laid out anew.

Rule: a node says what it held when it stopped, and what it was given since; it forgets the former
once all go on.
"""

from bamboo.core.state import Holding
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.model_layout import ModelLayout


class Holdings:
    """Of all nodes, from the moment that a reconfiguration begins until all go on."""

    def __init__(self) -> None:
        self._trained: tuple[ModelLayout, Assignment] | None = None
        self._held: dict[NodeId, tuple[Holding, ...]] = {}

    def begin(self, layout: ModelLayout, assignment: Assignment | None) -> None:
        """All stop in this layout; without an assignment nobody holds anything."""
        self._trained = None if assignment is None else (layout, assignment)
        self._held.clear()

    def of(self, node: NodeId, *, step: int) -> tuple[Holding, ...]:
        """What a node holds; that of its training as it is before `step`, unless it said so."""
        if node not in self._held:
            self._held[node] = _of_training(self._trained, node, step)
        return self._held[node]

    def lacking(self, node: NodeId, wanted: frozenset[int], *, step: int) -> frozenset[int]:
        """The layers of `wanted` that a node does not have as they are before `step`."""
        have = {
            layer
            for held in self._held.get(node, ())
            if held.step == step
            for layer in range(held.first, held.stop)
        }
        return wanted - have

    def built(self, node: NodeId, layers: frozenset[int], *, step: int) -> None:
        """A node has been given all of these."""
        new = tuple(Holding(first=x, stop=x + 1, step=step, reach=step) for x in sorted(layers))
        self._held[node] = (*self._held.get(node, ()), *new)


def _of_training(
    trained: tuple[ModelLayout, Assignment] | None, node: NodeId, step: int
) -> tuple[Holding, ...]:
    if trained is None:
        return ()
    layout, assignment = trained
    slots = {*assignment.owned_by(node), *assignment.shadowed_by(node)}
    ranges = sorted({(x.start, x.stop) for x in map(layout.layers_of, slots)})
    return tuple(Holding(first=first, stop=stop, step=step, reach=step) for first, stop in ranges)
