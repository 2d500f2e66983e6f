"""What the nodes of a simulated run hold during a reconfiguration.

Rule: a node reports what it held when it stopped, and what it has received since. It drops the
former once all nodes continue.
"""

from collections.abc import Iterable, Mapping

from bamboo.core.state import Holding, Prefetch
from bamboo.ids import NodeId, ZoneId
from bamboo.topology.assignment import Assignment
from bamboo.topology.model_layout import ModelLayout
from bamboo.topology.roles import Roles


class Holdings:
    """The holdings of all nodes, from the start of a reconfiguration until all continue."""

    def __init__(self) -> None:
        self._trained: tuple[ModelLayout, Roles] | None = None
        self._ahead: dict[NodeId, tuple[Prefetch, ...]] = {}
        self._held: dict[NodeId, tuple[Holding, ...]] = {}
        self._by_stages: dict[tuple[int, frozenset[int]], tuple[Holding, ...]] = {}
        """Holdings of a node that trained these stages, before a step."""
        self._by_layers: dict[tuple[int, frozenset[int]], tuple[Holding, ...]] = {}
        """Holdings of these layers before a step, one for each layer."""

    def begin(
        self, layout: ModelLayout, assignment: Assignment | None, ahead: Iterable[Prefetch] = ()
    ) -> None:
        """All nodes stop in this layout and have what was prefetched (`ahead`). Without an
        assignment no node holds anything."""
        self._ahead = {}
        for feed in ahead:
            self._ahead[feed.receiver] = (*self._ahead.get(feed.receiver, ()), feed)
        self._trained = None if assignment is None else (layout, assignment.roles)
        self._held.clear()
        self._by_stages.clear()
        self._by_layers.clear()

    def of(self, node: NodeId, *, step: int) -> tuple[Holding, ...]:
        """What a node holds; it is the state of its training before `step`, unless it reported
        another."""
        if node not in self._held:
            self._held[node] = self._of_training(node, step)
            if fed := self._ahead.get(node):
                ahead = (Holding(first=f.first, stop=f.stop, step=step, reach=step) for f in fed)
                self._held[node] = (*self._held[node], *ahead)
        return self._held[node]

    def lacking(
        self, wants: Mapping[NodeId, frozenset[int]], *, step: int
    ) -> dict[NodeId, frozenset[int]]:
        """The layers that each node wants and does not hold in their state before `step`."""
        out: dict[NodeId, frozenset[int]] = {}
        known: dict[tuple[int, frozenset[int]], frozenset[int]] = {}  # many nodes hold the same
        for node, wanted in wants.items():
            held = self._held.get(node, ())
            key = (id(held), wanted)
            if key not in known:
                at_step = (h for h in held if h.step == step)
                have = frozenset(layer for h in at_step for layer in range(h.first, h.stop))
                known[key] = wanted - have
            out[node] = known[key]
        return out

    def from_afar(
        self,
        lacking: Mapping[NodeId, frozenset[int]],
        zone_of: Mapping[NodeId, ZoneId],
        *,
        step: int,
    ) -> list[int]:
        """The layers that nodes lack, once for each node, if no node in its zone holds them in
        their state before `step`."""
        if len({*zone_of.values()}) < 2:
            return []
        near: dict[ZoneId, set[int]] = {}
        for node, held in self._held.items():
            if node in zone_of:
                layers = (x for h in held if h.step == step for x in range(h.first, h.stop))
                near.setdefault(zone_of[node], set()).update(layers)
        wanted = ((x, zone_of[node]) for node, layers in lacking.items() for x in layers)
        return [layer for layer, zone in wanted if layer not in near.get(zone, ())]

    def built(self, node: NodeId, layers: frozenset[int], *, step: int) -> None:
        """A node has received all of these layers."""
        if (step, layers) not in self._by_layers:
            self._by_layers[step, layers] = tuple(
                Holding(first=x, stop=x + 1, step=step, reach=step) for x in sorted(layers)
            )
        self._held[node] = (*self._held.get(node, ()), *self._by_layers[step, layers])

    def _of_training(self, node: NodeId, step: int) -> tuple[Holding, ...]:
        if self._trained is None:
            return ()
        layout, roles = self._trained
        slots = (*roles.owned.get(node, ()), *roles.shadowed.get(node, ()))
        stages = frozenset([number % layout.grid.stages for number in slots])
        if (step, stages) not in self._by_stages:
            cut = layout.cut
            ranges = sorted((cut[stage], cut[stage + 1]) for stage in stages)
            self._by_stages[step, stages] = tuple(
                Holding(first=first, stop=stop, step=step, reach=step) for first, stop in ranges
            )
        return self._by_stages[step, stages]
