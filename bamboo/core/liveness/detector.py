"""Judges leases: a node whose counter stands still is first suspected, then gone.

Rule: only growth of the progress counter counts as life. A node whose beats come but whose worker
is frozen is treated like one whose beats are missing. The counter is any integer that grows. No
node is judged by a time in which the observer itself could not have renewed its lease (`outage`).
Suspicion is evidence and is only shown. For a node that is gone a PeerLost is returned for the
caller to append, at every reading until the caller stops watching the node.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bamboo.core.events import PeerLost
from bamboo.core.liveness.outage import PIECES, Writing
from bamboo.core.state import Policy
from bamboo.ids import NodeId
from bamboo.ports import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an observer remembers about one watched node."""

    node: NodeId
    progress: int
    """The highest counter seen; -1 before the first."""
    grown_at_s: float
    """The store's time since which the counter has not grown."""
    in_all_s: float
    """The value of the observer's `Writing.in_all_s` at that time."""
    leased: bool
    """Whether the last reading had a lease of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """One observer's memory between two readings of the leases."""

    read_at_s: float | None = None
    seen: tuple[Seen, ...] = ()
    suspects: tuple[NodeId, ...] = ()
    """The nodes that have stood still for `suspect_s` or longer, including those that are gone."""


def judge(
    view: LeaseView,
    *,
    watched: Collection[NodeId],
    leases: Mapping[NodeId, Lease],
    now_s: float,
    writing: Writing,
    policy: Policy,
    reporter: str,
) -> tuple[LeaseView, tuple[PeerLost, ...]]:
    """Compare a successful reading (`Store.leases`) with the one before.

    `watched` are the nodes to judge: the live ones without the observer's own. A node without a
    lease is judged from the first reading that watched it. `writing` is what the observer knows
    about its own writes: a store that can be read and refuses writes shows old leases of all nodes.

    The time of every node starts again, so that none is gone before one full lease has passed, when
    the store was away (more than half of `gone_s` since the reading before: another node's beat may
    be waiting right behind this reading), when it was wiped (a lease that was there is missing), or
    when its clock went back. A store that is away again and again still lets nodes be judged: a
    node whose counter did not grow while the observer's own writes succeeded for PIECES leases in
    all is gone, with or without outages.
    """
    before = {seen.node: seen for seen in view.seen}
    fresh = (
        view.read_at_s is None
        or not 0 <= now_s - view.read_at_s <= policy.gone_s / 2
        or any(seen.leased and seen.node not in leases for seen in view.seen)
    )
    seen = tuple(
        _look(
            node,
            before.get(node),
            leases.get(node),
            now_s=now_s,
            in_all_s=writing.in_all_s,
            fresh=fresh,
        )
        for node in sorted(watched)
    )
    idle_s = {
        entry.node: max(
            writing.waited_s(now_s - entry.grown_at_s),
            (writing.in_all_s - entry.in_all_s) / PIECES,
        )
        for entry in seen
    }
    suspects = tuple(node for node, idle in idle_s.items() if idle >= policy.suspect_s)
    lost = tuple(
        PeerLost(node=node, reporter=reporter, cause="lease")
        for node, idle in idle_s.items()
        if idle >= policy.gone_s
    )
    return LeaseView(read_at_s=now_s, seen=seen, suspects=suspects), lost


def _look(
    node: NodeId,
    before: Seen | None,
    lease: Lease | None,
    *,
    now_s: float,
    in_all_s: float,
    fresh: bool,
) -> Seen:
    progress = -1 if lease is None else _progress(lease.payload)
    if before is not None and progress <= before.progress:
        in_all_s = before.in_all_s
    if before is None or fresh:
        known = -1 if before is None else before.progress
        grown_at_s = now_s
    else:
        known = before.progress
        grown_at_s = before.grown_at_s
        if lease is not None and progress > known:
            # The beat's own time is nearer to the truth than this reading's.
            grown_at_s = max(grown_at_s, min(lease.beaten_at_s, now_s))
    return Seen(
        node=node,
        progress=max(known, progress),
        grown_at_s=grown_at_s,
        in_all_s=in_all_s,
        leased=lease is not None,
    )


def _progress(payload: str) -> int:
    """The counter in a beat, or -1 (no growth) when an agent did not write the beat."""
    try:
        beat = json.loads(payload)
    except (ValueError, RecursionError):
        return -1
    progress = beat.get("progress") if isinstance(beat, dict) else None
    return progress if isinstance(progress, int) and not isinstance(progress, bool) else -1
