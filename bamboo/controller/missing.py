"""Reports instances that no member reports: nodes whose loss nobody has noticed, and instances that
never joined, whether they live or have ended by themselves.

Rule: members see a loss first and report it. When the last of them go at once, no member is left to
report. An instance whose agent broke or never began counts as there, but takes no part.
"""

from collections.abc import Callable, Collection, Sequence

from bamboo.billing.money import Rented
from bamboo.config.tree import JobConfig
from bamboo.core.events import FaultScope, NodeFailed, PeerLost
from bamboo.core.faults import may_rent
from bamboo.core.state import Phase, State
from bamboo.ids import InstanceId, ZoneId, node_id


def missing(
    state: State,
    rented: Sequence[Rented],
    job: JobConfig,
    *,
    now_s: float,
    waited_s: Callable[[float], float],
    not_its_own: Collection[str],
) -> list[PeerLost | NodeFailed]:
    """The events that are due for the instances of a run. `waited_s` gives the part of
    the time since a moment in which a node could have joined: while the store is away none can.
    The end of those in `not_its_own` was meant, or is known already."""
    lost = _lost(state, rented, now_s=now_s, gone_s=job.cluster.gone_s)
    ended = [] if state.stop_reason else _ended_first(state, rented, not_its_own)
    return [*lost, *_never_came(state, rented, job, waited_s=waited_s), *ended]


def may_start(
    state: State, rented: Sequence[Rented], *, most: int | None, now_s: float
) -> int | None:
    """How many instances may be started now, at most `most`; None: as many as are wanted. After
    nodes that failed by themselves, the next ones wait."""
    new = may_rent(state, booting=len(_booting(state, rented)), now_s=now_s)
    return min((n for n in (new, most) if n is not None), default=None)


def _lost(state: State, rented: Sequence[Rented], *, now_s: float, gone_s: float) -> list[PeerLost]:
    """One event for each live node whose instance ended at least a lease ago. While the cluster
    forms the event comes at once, since no node is connected yet and a dead node must not get a
    slot."""
    ended_s = {r.instance: r.ended_at_s for r in rented}
    patience_s = 0.0 if state.phase is Phase.FORMING else gone_s
    return [
        PeerLost(node=node.id, reporter="fleet", cause="its instance was terminated")
        for node in state.live_nodes()
        if (at_s := ended_s.get(node.instance)) is not None and now_s - at_s >= patience_s
    ]


def _never_came(
    state: State,
    rented: Sequence[Rented],
    job: JobConfig,
    *,
    waited_s: Callable[[float], float],
) -> list[NodeFailed]:
    """One event for each instance whose node has not joined for too long."""
    join_s = job.cluster.forming_timeout_s + job.cloud.boot_s
    reason = f"no node came from its instance within {join_s:g} s"
    late = [one for one in _booting(state, rented) if waited_s(one.started_at_s) > join_s]
    return [_failed(one, reason) for one in late]


def _ended_first(
    state: State, rented: Sequence[Rented], not_its_own: Collection[str]
) -> list[NodeFailed]:
    """One event for each instance that ended by itself before its node joined, as after a boot that
    failed. The next one may end in the same way, and costs money."""
    reason = f"its instance ended by itself before the node joined; see `bamboo logs {state.run}`"
    known = {node.instance for node in state.nodes}.union(not_its_own)
    return [
        _failed(one, reason)
        for one in rented
        if one.ended_at_s is not None and not one.interrupted and one.instance not in known
    ]


def _failed(one: Rented, reason: str) -> NodeFailed:
    return NodeFailed(
        node=node_id(InstanceId(one.instance), 0),
        instance=InstanceId(one.instance),
        zone=ZoneId(one.zone),
        scope=FaultScope.NODE,
        reason=reason,
    )


def _booting(state: State, rented: Sequence[Rented]) -> list[Rented]:
    """The instances that exist and whose node has not joined yet."""
    known = {node.instance for node in state.nodes}
    return [one for one in rented if one.ended_at_s is None and one.instance not in known]
