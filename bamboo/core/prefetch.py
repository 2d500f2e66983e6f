"""Decides the prefetch: layers that the next layout needs are sent while all nodes train.

    wanted  ->  each receiver is sent the layers that it will hold and lacks, then their part of
    each reduced gradient, so that it stands where its sources stand  ->  all receivers report that
    ->  all nodes stop, and lack nothing

Rules. (1) It is a function of the state: which node is sent what follows from the nodes that are
there, and what was begun goes on while it is wanted. (2) It never holds anything up. A loss, a stop
or any other change of slots ends it, and it begins again when the run is at rest. (3) Prefetched
layers count as held only once all nodes have stopped and their receiver has reported them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from bamboo.core.events import Prepared
from bamboo.core.layout.layout_choice import place
from bamboo.core.rounds import answers
from bamboo.core.state import Node, Policy, Prefetch, Prefetches, Preparing, State
from bamboo.core.transition import Transition, changed, sent_words, stale
from bamboo.ids import NodeId
from bamboo.quantities import size
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout
from bamboo.topology.slots import Slot

_Layers = Mapping[NodeId, frozenset[int]]
_NOTHING: frozenset[int] = frozenset()
TRIES = 4
"""How often an assignment is looked for that stays the same once its layers are sent."""


def prepare(
    state: State,
    nodes: Sequence[Node],
    layout: ModelLayout,
    policy: Policy,
    *,
    why: str,
    forced: bool,
) -> Preparing:
    """Decide what is prefetched for `layout` on `nodes`. Of the feeds under way, those that are
    still wanted go on. Without feeds no node lacks anything."""
    known = state.preparing or Preparing(since=state.version + 1, why=why)
    feeds = _feeds(state, nodes, layout, policy, known.sent)
    feeds = known.sent if feeds == known.feeds else feeds
    before = known.sent.of
    same = {node for node, mine in feeds.of.items() if mine == before.get(node)}
    return replace(
        known,
        why=why,
        forced=forced,
        feeds=feeds,
        prepared=tuple(one for one in known.prepared if one[0] in same),
    )


def note_prepared(state: State, event: Prepared) -> Transition:
    """Note that a receiver has all of its feeds and follows them."""
    preparing = state.preparing
    mine = _of(preparing, event.node)
    if preparing is None or not mine or event.since != max(feed.since for feed in mine):
        return stale(state, f"{event.node} prefetches nothing of that any more")
    if answers(preparing.prepared).has(event.node):
        return stale(state, f"{event.node} has said so already")
    prepared = answers(preparing.prepared).having((event.node, event.bytes))
    after = state.having(preparing=replace(preparing, prepared=prepared))
    waiting = len(prepared.silent(preparing.receivers))
    reason = (
        f"node {event.node} has what it is to hold next and follows, "
        f"{sent_words(event.bytes)} to it"
    )
    if event.followed_bytes:
        reason += f" and {size(event.followed_bytes)} of gradients"
    return changed(after, (), f"{reason}; waiting for {waiting} more" if waiting else reason)


def whole_of(preparing: Preparing) -> Preparing | None:
    """Keep only the receivers that have all of their feeds; None if there is none."""
    has = answers(preparing.prepared).has
    feeds = tuple(feed for feed in preparing.feeds if has(feed.receiver))
    return replace(preparing, feeds=feeds) if feeds else None


def feeds_under_way(state: State) -> Prefetches:
    """The feeds that are under way: while a layout is prepared, and until all have stopped for
    it."""
    reconfiguration = state.reconfiguration
    if state.preparing is not None:
        return state.preparing.sent
    if (
        reconfiguration is None
        or reconfiguration.ahead is None
        or not reconfiguration.planned
        or reconfiguration.base is not None
    ):
        return Prefetches()
    return reconfiguration.ahead.sent


def fed_layers(preparing: Preparing | None, node: NodeId) -> frozenset[int]:
    """The layers that were prefetched to a node; other nodes hold them too."""
    return _layers_of(_of(preparing, node))


def layers_by_node(assignment: Assignment, cut: Sequence[int]) -> dict[NodeId, frozenset[int]]:
    """The layers that each node should hold, as owner or as shadow, in order of node ids."""
    owned, shadowed = assignment.roles.owned, assignment.roles.shadowed
    none: tuple[int, ...] = ()
    stages, cut = assignment.grid.stages, tuple(cut)
    out = {}
    for node in sorted(assignment.members()):
        numbers = owned.get(node, none) + shadowed.get(node, none)
        out[node] = _layers_at(frozenset([number % stages for number in numbers]), cut)
    return out


@lru_cache(maxsize=1024)
def _layers_at(stages: frozenset[int], cut: tuple[int, ...]) -> frozenset[int]:
    """The layers of these stages. Cached, since many nodes hold the same stages."""
    return frozenset(layer for stage in stages for layer in range(cut[stage], cut[stage + 1]))


def _layers_of(feeds: Iterable[Prefetch]) -> frozenset[int]:
    return frozenset(layer for feed in feeds for layer in feed.layers)


def _of(preparing: Preparing | None, node: NodeId) -> tuple[Prefetch, ...]:
    return () if preparing is None else preparing.sent.of.get(node, ())


def _feeds(
    state: State,
    nodes: Sequence[Node],
    layout: ModelLayout,
    policy: Policy,
    known: Prefetches,
) -> Prefetches:
    """Decide all feeds, in order of receivers and layers."""
    assignment = state.assignment
    assert assignment is not None, "a layout is prepared by a run that trains"
    cut = state.cut or policy.cut_for(state.grid.stages)
    held = layers_by_node(assignment, cut)
    coming = _both(held, {node: _layers_of(feeds) for node, feeds in known.of.items()})

    def places(held: _Layers) -> Assignment:
        return place(nodes, layout, held, state.redundancy, apart=policy.apart)

    aimed = places(coming)
    wanted = layers_by_node(aimed, layout.cut)
    for _ in range(TRIES):
        sent = _both(held, wanted)
        if sent == coming:
            break
        before, aimed, coming = aimed, places(sent), sent
        if aimed == before:
            break
        wanted = layers_by_node(aimed, layout.cut)
    goes_on = {
        (f.receiver, f.first, f.stop): f for f in known if assignment.owner(f.slot) == f.source
    }
    feeds = []
    for order, (node, layers) in enumerate(wanted.items()):
        has = held.get(node, _NOTHING)
        if layers <= has:
            continue
        for first, stop in _runs(layers - has, cut):
            if (feed := goes_on.get((node, first, stop))) is None:
                slot = _slot_of(first, state.grid, cut, order)
                feed = Prefetch(
                    slot=slot,
                    source=assignment.owner(slot),
                    receiver=node,
                    first=first,
                    stop=stop,
                    since=state.version + 1,
                )
            feeds.append(feed)
    return Prefetches(feeds)


def _both(held: _Layers, wanted: _Layers) -> _Layers:
    """For each node, the union of its layers in both mappings."""
    sums: dict[tuple[frozenset[int], frozenset[int]], frozenset[int]] = {}  # many pairs are equal
    out = dict(held)
    for node, more in wanted.items():
        pair = (held.get(node, _NOTHING), more)
        if pair not in sums:
            sums[pair] = pair[0] | more
        out[node] = sums[pair]
    return out


def _slot_of(layer: int, grid: Grid, cut: Sequence[int], order: int) -> Slot:
    """A slot that has the layer; the pipelines take turns as sources."""
    stage = bisect_right(cut, layer) - 1
    return grid.column(stage)[(order + stage) % grid.pipelines]


def _runs(layers: Iterable[int], cut: Sequence[int]) -> list[tuple[int, int]]:
    """Group consecutive layers of one stage as [first, stop)."""
    out: list[tuple[int, int]] = []
    for layer in sorted(layers):
        if out and out[-1][1] == layer and layer not in cut:
            out[-1] = (out[-1][0], layer + 1)
        else:
            out.append((layer, layer + 1))
    return out
