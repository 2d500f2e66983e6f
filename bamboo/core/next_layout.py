"""Decides when another layout is wanted, and what is sent for it while all nodes train.

    no further node comes, more nodes have come, a step stalls, pipelines are of unequal speed, or
    nodes are given back  ->  a reconfiguration; first, unless a node is about to go, a prefetch

    the prefetch: each receiver is sent the layers that it will hold and lacks, then their part of
    each reduced gradient, so that it stands where its sources stand  ->  all receivers report that
    ->  all nodes stop, and lack nothing

Rules. (1) Grid and shares change only where the time that is gained is worth the change. (2) A node
that is given back loses nothing: what it holds goes to the nodes that stay, and at least as many
stay as one whole pipeline needs. (3) A prefetch is a function of the state: which node is sent what
follows from the nodes that are there, and what was begun goes on while it is wanted. (4) It never
holds anything up. A loss, a stop or any other change of slots ends it, and it begins again when the
run is at rest. (5) Prefetched layers count as held only once all nodes have stopped and their
receiver has reported them.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from bamboo.core.effects import Effect, End
from bamboo.core.events import NodesReleased, PaceMeasured, Prepared, Reconsider, Stalled
from bamboo.core.layout import grid_for, layout_for, place
from bamboo.core.reconfiguration import (
    at_rest,
    begin_reconfiguration,
    give_back,
    usable_nodes,
    usable_number,
    void_member,
)
from bamboo.core.rounds import answers, layers_of, sent_to, whole_of
from bamboo.core.state import (
    Node,
    NodeStatus,
    Outcome,
    Policy,
    Prefetch,
    Prefetches,
    Preparing,
    State,
)
from bamboo.core.transition import (
    ENOUGH,
    Transition,
    changed,
    end,
    grid_words,
    sent_words,
    stale,
    why_words,
    with_status,
)
from bamboo.ids import NodeId
from bamboo.quantities import size
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import ModelLayout, equal_shares, minimax_shares
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import BARE_MODES

WORTH = 0.97
"""The layout changes for a better one only if its steps take at most this share of the present
time."""
SHARES_WORTH = 0.9
"""The new time of a step must be at most this share of the present time."""


def reconsider(state: State, event: Reconsider, policy: Policy) -> Transition:
    """Reconfigure, or prefetch for it, if another layout suits the nodes that are there better."""
    if not policy.elastic or state.assignment is None:
        return stale(state, "no other layout is possible")
    reconfiguration = state.reconfiguration
    if reconfiguration is not None:
        if reconfiguration.base is not None or reconfiguration.forced:
            return stale(state, "that is being done already")
        after = replace(state, reconfiguration=replace(reconfiguration, forced=True))
        return changed(after, (), f"{event.reason}: go on with the nodes that are there")
    if not at_rest(state):
        return stale(state, "something else is under way; say it again")
    better = layout_for(usable_number(state), policy)
    ahead = state.preparing
    if ahead is None and not _differs(state, better):
        return stale(state, f"{grid_words(state.grid)} suits the {len(state.roll.live)} nodes best")
    if ahead is None:
        ahead = _prepared_for(state, better, policy, why=event.reason, forced=True)
        if ahead.feeds and not _leaving(state):
            after = replace(state, preparing=ahead)
            return changed(after, (), f"{event.reason}: {_ahead_words(ahead)}")
    after, orders = begin_reconfiguration(
        state, why=ahead.why, planned=True, forced=ahead.forced, ahead=whole_of(ahead)
    )
    return changed(after, orders, f"{event.reason}: a new layout at the next boundary")


def break_stall(state: State, event: Stalled, policy: Policy) -> Transition:
    """A member waits for a message that was lost with several nodes at once and that no copy can
    repeat: all stop and do the step again from what they hold. Another stall within one step of it
    ends the run."""
    if (why := void_member(state, event.node)) is not None:
        return stale(state, why)
    if event.era != state.era or state.reconfiguration is not None:
        return stale(state, "the layout is another one by now")
    again = state.stalled_step is not None and abs(event.step - state.stalled_step) <= 1
    if state.finished or not policy.elastic or again:
        return end(state, Outcome.FAULT, event.reason)
    noted = replace(state, stalled_step=event.step)
    after, orders = begin_reconfiguration(noted, why=event.reason, planned=False)
    return changed(after, orders, f"{event.reason}; all stop and do the step again")


def rebalance(state: State, event: PaceMeasured, policy: Policy) -> Transition:
    """Begin a reconfiguration to shares that suit the speeds of the pipelines, if it is worth
    it."""
    assignment = state.assignment
    if not policy.elastic or assignment is None or event.era != state.era:
        return stale(state, "the layout is another one by now")
    if not at_rest(state) or state.preparing is not None or state.grid.pipelines == 1:
        return stale(state, "there is nothing to be shared out now")
    pace_s = {pace.node: pace.microbatch_s for pace in event.paces}
    if any(owner not in pace_s or pace_s[owner] <= 0 for owner in assignment.owners):
        return stale(state, "the pace of some member is not known")
    slowest_s = tuple(
        max(pace_s[assignment.owner(slot)] for slot in state.grid.pipeline(pipeline))
        for pipeline in range(state.grid.pipelines)
    )
    now = state.shares or equal_shares(policy.virtual_nodes, state.grid.pipelines)
    better = minimax_shares(policy.virtual_nodes, tuple(1 / s for s in slowest_s))
    before_s, after_s = (
        max(share * s for share, s in zip(shares, slowest_s, strict=True))
        for shares in (now, better)
    )
    if after_s > SHARES_WORTH * before_s:
        return stale(state, f"no shares are much better than {list(now)}")
    words = f"pipelines of unequal speed: shares {list(now)} become {list(better)}"
    after, orders = begin_reconfiguration(state, why=words, planned=True)
    assert after.reconfiguration is not None
    after = replace(after, reconfiguration=replace(after.reconfiguration, shares=better))
    return changed(after, orders, f"{words} at the next boundary")


def release(state: State, event: NodesReleased, policy: Policy) -> Transition:
    """Release the nodes that the launcher gives back. Standbys leave at once, all others with the
    layout that is made without them."""
    if not policy.elastic or state.assignment is None:
        return stale(state, "no other layout is possible")
    if not at_rest(state):
        return stale(state, "something else is under way; say it again")
    found = (state.node(node) for node in dict.fromkeys(event.nodes))
    named = [node for node in found if node is not None and node.usable]
    if not named:
        return stale(state, "none of these nodes is there to be given back")
    staying = len(state.roll.usable) - len(named)
    if staying < policy.stages:
        return stale(state, f"{staying} nodes would stay, and a pipeline takes {policy.stages}")
    if staying < event.keep:
        return stale(state, f"{staying} nodes would stay, and {event.keep} are wanted")
    idle = [node for node in named if node.status is NodeStatus.READY]
    effects: list[Effect] = [End(to=node.id) for node in idle]
    effects += [give_back(node) for node in idle]
    after = state.with_nodes(*(replace(node, released=True) for node in named))
    after = with_status(after, NodeStatus.LEFT, *(node.id for node in idle))
    count = f"{len(named)} {'node is' if len(named) == 1 else 'nodes are'} given back"
    if len(idle) == len(named):
        return changed(after, effects, f"{event.reason}: {count} that had no slot")
    after, orders = begin_reconfiguration(after, why=event.reason, planned=True, forced=True)
    reason = f"{event.reason}: {count}, a new layout at the next boundary"
    return changed(after, (*effects, *orders), reason)


def improve(before: State, decided: Transition, policy: Policy) -> Transition:
    """Begin a reconfiguration when there are nodes for another pipeline or for all stages, or when
    nodes with a notice can go that have no shadows to hand over to. What nodes will lack is
    prefetched first, unless a node is about to go."""
    state = decided.state
    if state is before or not policy.elastic:
        return decided
    known = state.preparing
    if not at_rest(state):
        return _without_preparing(decided)
    same = state.nodes is before.nodes and state.assignment is before.assignment
    if known is None or not same:
        forced = _is_forced(state, policy)
        why = known.why if known is not None and forced else _wanted(state, policy)
        if not why:
            return _without_preparing(decided)
        better = layout_for(usable_number(state), policy)
        ahead = _prepared_for(state, better, policy, why=why, forced=forced)
        if ahead.feeds and ahead == known and not _leaving(state):
            return decided
    else:
        ahead = known
    if not _leaving(state) and answers(ahead.prepared).silent(ahead.receivers):
        if ahead is known:
            return decided
        reason = f"{decided.reason}; {_why(state, ahead, policy)}: {_ahead_words(ahead)}"
        return replace(decided, state=state.having(preparing=ahead), reason=reason)
    after, orders = begin_reconfiguration(
        state, why=ahead.why, planned=True, forced=ahead.forced, ahead=whole_of(ahead)
    )
    after = after.having(generation=before.generation + 1)
    reason = f"{decided.reason}; {_why(state, ahead, policy)}: a new layout at the next boundary"
    return Transition(state=after, effects=(*decided.effects, *orders), reason=reason)


def _prepared_for(
    state: State, layout: ModelLayout, policy: Policy, *, why: str, forced: bool
) -> Preparing:
    return prepare(state, usable_nodes(state), layout, policy, why=why, forced=forced)


def _without_preparing(decided: Transition) -> Transition:
    """End the prefetch."""
    if decided.state.preparing is None:
        return decided
    state = decided.state.having(preparing=None)
    return replace(decided, state=state, reason=f"{decided.reason}; nothing is prefetched now")


def _why(state: State, ahead: Preparing, policy: Policy) -> str:
    return why_words(ahead.why, grid_for(usable_number(state), policy))


def _ahead_words(ahead: Preparing) -> str:
    count = len(ahead.receivers)
    nodes = f"{count} node{'' if count == 1 else 's'}"
    return f"a new layout once {nodes} {'has' if count == 1 else 'have'} been sent what it needs"


def _differs(state: State, better: ModelLayout) -> bool:
    """Whether `better` is another layout than the present one."""
    return (better.grid, better.cut) != (state.grid, state.cut or better.cut)


def _is_forced(state: State, policy: Policy) -> bool:
    """Whether the layout that is being prepared was asked for and still differs from the
    present."""
    asked = state.preparing is not None and state.preparing.forced
    return asked and _differs(state, layout_for(usable_number(state), policy))


def _leaving(state: State) -> list[Node]:
    """The nodes with a role in the run that are about to go."""
    return [n for n in state.roll.aside if n.status is not NodeStatus.READY and not n.usable]


def _wanted(state: State, policy: Policy) -> str:
    """Why another layout is wanted now; "" if none is."""
    better = grid_for(usable_number(state), policy)
    if _is_worth_it(state.grid, better, policy):
        return ENOUGH
    if state.redundancy not in BARE_MODES or len(state.roll.usable) < policy.stages:
        return ""
    if _is_merged(state) and usable_number(state) >= state.grid.size:
        # Without shadows a newcomer cannot take a slot by a move, so it would stay idle.
        return f"there are nodes for every stage of {grid_words(state.grid)}"
    leaving = _leaving(state)
    return f"{len(leaving)} nodes with a notice can go" if leaving else ""


def _is_merged(state: State) -> bool:
    """Whether a node owns several slots."""
    assignment = state.assignment
    return assignment is not None and len(set(assignment.owners)) < state.grid.size


def _is_worth_it(now: Grid, better: Grid, policy: Policy) -> bool:
    """Whether `better` is a larger grid that is worth stopping all nodes."""
    if better.size <= now.size:
        return False
    now_s = policy.step_s(now.pipelines, now.stages)
    better_s = policy.step_s(better.pipelines, better.stages)
    if now_s is not None and better_s is not None:
        return better_s <= WORTH * now_s
    whole = better.stages == policy.stages
    return whole and (better.pipelines > now.pipelines or better.stages > now.stages)


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
    mine = sent_to(preparing, event.node)
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
    coming = _both(held, {node: layers_of(feeds) for node, feeds in known.of.items()})

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
