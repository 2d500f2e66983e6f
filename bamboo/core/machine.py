"""`transition(state, event)` decides what an event means for the run. Workers, agents, launcher,
simulator and tests all ask this one function.

Rules. (1) It is pure: time and policy are arguments, and nothing is read or written. (2) Any member
may report any event at any time. An event that comes too late, twice, or from a node that is gone
returns the same state object, with a reason. (3) What no honest driver can report (such as an event
about slots from a node that never had one) raises CoreMisuse. (4) Every change has a sentence for
people.

    FORMING -- enough nodes --> RUNNING -- a member goes --> FAILING_OVER -- caught up --> DEGRADED
    DEGRADED -- every slot has a shadow again --> RUNNING
    RUNNING, DEGRADED -- another layout is wanted --> RECONFIGURING -- all are built --> RUNNING
    any phase -- layers are found in a checkpoint only --> RESTORING -- all are built --> RUNNING
    any phase -- all finished, a stop, a fault, a slot without a copy --> FINISHED

After the event itself, each decision also begins what follows from the new state: replicas and
moves (`protect`), another layout (`improve`), an emergency, the completion of a checkpoint.
"""

import math
from dataclasses import replace

from bamboo.core.effects import Drain, Effect, End, Start
from bamboo.core.ending import (
    answer_stop,
    finish_node,
    report_non_finite,
    request_stop,
)
from bamboo.core.evaluation import note_evaluation
from bamboo.core.events import (
    Attested,
    BoundaryReady,
    CaughtUp,
    CheckpointDamaged,
    CheckpointDone,
    CheckpointFailed,
    EvaluationDone,
    Event,
    HandedOver,
    LayoutBuilt,
    NodeFailed,
    NodeFinished,
    NodeJoined,
    NodeLeft,
    NodesReleased,
    NonFinite,
    NoticeReceived,
    PaceMeasured,
    PeerLost,
    Prepared,
    Quiesced,
    RebalanceAdvised,
    Reconsider,
    ReplicaJoined,
    RunFailed,
    SaveDue,
    ShardSaved,
    SpeedsMeasured,
    Stalled,
    StopReady,
    StopRequested,
    StoreRefilled,
    StrategyProposed,
    StrategyReady,
    Yielded,
)
from bamboo.core.failover import assigned, catch_up, hand_over, heir, lose, take_back_drains
from bamboo.core.faults import fail_node, fail_run
from bamboo.core.layout import assign
from bamboo.core.next_layout import (
    break_stall,
    improve,
    note_prepared,
    rebalance,
    reconsider,
    release,
)
from bamboo.core.numerics import attest, unlike
from bamboo.core.proposals import answer_proposal, propose, withdraw
from bamboo.core.protect import join_replica, protect, yield_slot
from bamboo.core.reconfiguration import (
    agree_boundary,
    begin_reconfiguration,
    note_built,
    note_holdings,
    settle,
)
from bamboo.core.saving import (
    complete,
    give_up,
    note_emergency,
    order_completion,
    reject,
    save_due,
    save_shard,
)
from bamboo.core.state import Attestation, Node, NodeStatus, Phase, Policy, State
from bamboo.core.straggler import judge_speeds
from bamboo.core.transition import (
    Transition,
    away,
    changed,
    describe,
    name_slots,
    numbered,
    stale,
    with_status,
)
from bamboo.errors import CoreMisuse
from bamboo.ids import NodeId
from bamboo.topology.strategy import BARE_MODES

__all__ = ["Transition", "transition"]

_OF_A_LAYOUT = (CaughtUp, HandedOver, NodeFinished, ReplicaJoined, StopReady, Yielded)
"""Events about slots, which do not exist while a reconfiguration is under way."""


def transition(state: State, event: Event, *, now_s: float, policy: Policy) -> Transition:
    """Decide what `event` means at `now_s`, the store's time in Unix seconds.

    Raises CoreMisuse for an event that only a mistake of the driver can cause; see the rules above.
    """
    if not math.isfinite(now_s):
        raise CoreMisuse(f"now_s = {now_s} is no time")
    if state.phase is Phase.FINISHED and not isinstance(event, NodeLeft):
        return stale(state, f"the run is over: {state.sentence}")
    decided = _decide(state, event, now_s=now_s, policy=policy)
    decided = protect(state, settle(state, decided, policy), apart=policy.apart)
    decided = note_emergency(state, improve(state, decided, policy), policy, now_s=now_s)
    return numbered(state, withdraw(state, order_completion(decided)))


def _decide(state: State, event: Event, *, now_s: float, policy: Policy) -> Transition:
    if state.reconfiguration is not None and isinstance(event, _OF_A_LAYOUT):
        return stale(state, "a reconfiguration is under way already")
    match event:
        case Attested():
            return attest(state, event, now_s=now_s, policy=policy)
        case NodeJoined():
            return _join(state, event, now_s=now_s, policy=policy)
        case PeerLost():
            return _lose_peer(state, event, now_s=now_s, policy=policy)
        case NoticeReceived():
            return _notice(state, event, now_s=now_s, policy=policy)
        case RebalanceAdvised():
            return _advise(state, event)
        case HandedOver():
            return hand_over(state, event, now_s=now_s)
        case NodeLeft():
            return _leave(state, event, now_s=now_s, policy=policy)
        case CaughtUp():
            return catch_up(state, event)
        case ReplicaJoined():
            return join_replica(state, event)
        case Yielded():
            return yield_slot(state, event, now_s=now_s)
        case StopRequested():
            return request_stop(state, event)
        case StopReady():
            return answer_stop(state, event)
        case NonFinite():
            return report_non_finite(state, event)
        case EvaluationDone():
            return note_evaluation(state, event, policy)
        case NodeFinished():
            return finish_node(state, event)
        case NodeFailed():
            return fail_node(state, event, now_s=now_s, policy=policy)
        case RunFailed():
            return fail_run(state, event, now_s=now_s, policy=policy)
    return _decide_anew(state, event, policy)


def _decide_anew(state: State, event: Event, policy: Policy) -> Transition:
    """Decide an event of a reconfiguration or of a checkpoint."""
    match event:
        case BoundaryReady():
            return agree_boundary(state, event)
        case Quiesced():
            return note_holdings(state, event)
        case LayoutBuilt():
            return note_built(state, event)
        case Prepared():
            return note_prepared(state, event)
        case Reconsider():
            return reconsider(state, event, policy)
        case NodesReleased():
            return release(state, event, policy)
        case Stalled():
            return break_stall(state, event, policy)
        case PaceMeasured():
            return rebalance(state, event, policy)
        case SpeedsMeasured():
            return judge_speeds(state, event)
        case SaveDue():
            return save_due(state, event)
        case ShardSaved():
            return save_shard(state, event)
        case CheckpointDone():
            return complete(state, event)
        case CheckpointFailed():
            return give_up(state, event, policy)
        case CheckpointDamaged():
            return reject(state, event)
        case StrategyProposed():
            return propose(state, event)
        case StrategyReady():
            return answer_proposal(state, event, policy)
        case StoreRefilled():
            return refill(state, event)
    raise CoreMisuse(f"{event!r} is no event")


def _join(state: State, event: NodeJoined, *, now_s: float, policy: Policy) -> Transition:
    known = state.node(event.node)
    if known is not None:
        what = "joined already" if known.status.live else f"{away(known)} for ever"
        return stale(state, f"node {event.node} {what}; another boot needs a new id")
    if event.numerics:
        refused = unlike(state, event, now_s=now_s, policy=policy)
        if refused is not None:
            return refused
        if state.attested is None:
            state = state.having(attested=Attestation(node=event.node, numerics=event.numerics))
    node = Node(
        id=event.node,
        instance=event.instance,
        zone=event.zone,
        endpoint=event.endpoint,
        pid=event.pid,
        status=NodeStatus.READY,
    )
    joined = state.with_nodes(node)
    reason = f"node {event.node} joined in zone {event.zone}"
    if state.phase is not Phase.FORMING:
        return changed(joined, (), f"{reason}; it stands by")
    here = len(joined.roll.live)
    if here < state.grid.size:
        return changed(joined, (), f"{reason}: {here} of {state.grid.size}")
    if state.checkpoints and policy.elastic:
        newest = state.checkpoints[-1].step
        why = f"resumed before step {newest}"
        after, orders = begin_reconfiguration(joined, why=why, planned=False, intact=True)
        return changed(after, orders, f"{reason}, the last one")
    assignment = assign(joined.live_nodes(), state.grid, state.redundancy, apart=policy.apart)
    after = replace(
        with_status(joined, NodeStatus.MEMBER, *assignment.owners),
        assignment=assignment,
        generation=state.generation + 1,
        era=state.generation + 1,
        phase=Phase.RUNNING,
    )
    effects = tuple(Start(to=owner) for owner in assignment.owners)
    grid = f"{state.grid.pipelines} x {state.grid.stages}"
    return changed(after, effects, f"{reason}, the last one: training starts on {grid}")


def _lose_peer(state: State, event: PeerLost, *, now_s: float, policy: Policy) -> Transition:
    node = state.node(event.node)
    if node is None:
        return stale(state, f"no node {event.node} ever joined")
    if not node.status.live:
        return stale(state, f"node {event.node} {away(node)} already")
    reporter = state.node(NodeId(event.reporter))
    if reporter is not None and not reporter.status.live:
        return stale(state, f"{event.reporter} {away(reporter)}: its report does not count")
    hows = {
        "disconnect": f"{event.reporter} saw its connection end",
        "lease": f"it made no progress for {policy.gone_s:g} s, says {event.reporter}",
        "exit": f"its worker ended, says {event.reporter}",
    }
    how = hows.get(event.cause, f"{event.cause}, says {event.reporter}")
    return lose(state, node, how=how, now_s=now_s, policy=policy)


def _notice(state: State, event: NoticeReceived, *, now_s: float, policy: Policy) -> Transition:
    node = state.node(event.node)
    if node is None:
        return stale(state, f"no node {event.node} has joined yet; say it again when it has")
    if not node.status.live:
        return stale(state, f"node {event.node} {away(node)} already")
    known_s = node.notice_deadline_s
    if known_s is not None and event.deadline_s >= known_s:
        return stale(state, f"node {event.node} has had its notice already")
    noted = state.with_nodes(replace(node, notice_deadline_s=event.deadline_s))
    if known_s is not None:
        sooner = f"{describe(state, node.id)} in {event.deadline_s - now_s:.1f} s, sooner than it"
        return changed(noted, (), f"the cloud takes {sooner} said")
    stays: tuple[Effect, ...] = ()
    if state.assignment is not None and state.reconfiguration is None:
        noted, stays = take_back_drains(noted)
    in_s = event.deadline_s - now_s
    reason = f"the cloud takes {describe(state, node.id)} in {in_s:.1f} s"
    if state.reconfiguration is not None:  # a node without a slot in the new layout leaves then
        return changed(noted, (), f"{reason}; a reconfiguration is under way")
    if node.status is NodeStatus.READY:
        after = with_status(noted, NodeStatus.LEFT, node.id)
        return changed(after, (End(to=node.id),), f"{reason}; it had no slot and leaves")
    if state.redundancy in BARE_MODES and _can_spare(noted, policy):
        after, orders = begin_reconfiguration(noted, why=reason, planned=True)
        return changed(after, orders, f"{reason}; a new layout at the next boundary")
    assignment = assigned(state)
    slots = assignment.owned_by(node.id)
    to = [heir(state, assignment, slot) for slot in slots]
    if any(shadow is None or _under_notice(state, shadow) for shadow in to):
        words = f"no shadow stays to hand {name_slots(state, slots)} over to, so it goes on"
        return changed(noted, stays, f"{reason}; {words}")
    after = with_status(noted, NodeStatus.DRAINING, node.id)
    what = name_slots(state, slots) if slots else "its replicas"
    reason = f"{reason}; it hands {what} over at the next step boundary"
    return changed(after, (*stays, Drain(to=node.id)), reason)


def _advise(state: State, event: RebalanceAdvised) -> Transition:
    """Advice alone moves nothing: the fleet keeps one more node as a standby."""
    node = state.node(event.node)
    if node is None:
        return stale(state, f"no node {event.node} has joined yet; say it again when it has")
    if not node.status.live:
        return stale(state, f"node {event.node} {away(node)} already")
    if node.advised or node.notice_deadline_s is not None:
        return stale(state, f"node {event.node} has a replacement coming already")
    advised = state.with_nodes(replace(node, advised=True))
    reason = f"the cloud may soon take {describe(state, node.id)}: one more standby is wanted"
    return changed(advised, (), reason)


def _can_spare(state: State, policy: Policy) -> bool:
    """Whether the nodes that stay can take over everything at a boundary."""
    staying = len(state.roll.usable)
    return policy.elastic and staying >= policy.stages and not state.failovers


def _under_notice(state: State, node: NodeId) -> bool:
    found = state.node(node)
    return found is not None and found.notice_deadline_s is not None


def _leave(state: State, event: NodeLeft, *, now_s: float, policy: Policy) -> Transition:
    node = state.node(event.node)
    if node is None:
        return stale(state, f"no node {event.node} ever joined")
    if not node.status.live:
        return stale(state, f"node {event.node} {away(node)} already")
    if state.phase is not Phase.FINISHED:
        return lose(state, node, how=f"it left, {event.reason}", now_s=now_s, policy=policy)
    after = with_status(state, NodeStatus.LEFT, node.id)
    return changed(after, (), f"node {event.node} left: {event.reason}")


def refill(state: State, event: StoreRefilled) -> Transition:
    """Go on from `state`, the newest that any member had read, under the next generation. Before
    the first generation there is none to end."""
    generation = state.generation + 1 if state.generation else 0
    reason = f"the store had lost the run; {event.reporter} gave it version {state.version} back"
    return changed(replace(state, generation=generation), (), reason)
