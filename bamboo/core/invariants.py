"""Checks what must hold of every state and every decision; each violation is one sentence.

Rule: the machine never calls this; tests, replay and the simulator do.
"""

from bamboo.core.events import Event, NodeFailed, RunFailed
from bamboo.core.faults import has_begun, owns_slot
from bamboo.core.rounds import choice_at
from bamboo.core.state import Move, Node, NodeStatus, Outcome, Phase, State, Transfer
from bamboo.ids import NodeId
from bamboo.topology.assignment import Assignment
from bamboo.topology.strategy import BARE_MODES

_MEMBER = (NodeStatus.MEMBER, NodeStatus.DRAINING)


def check(state: State) -> list[str]:
    """List everything that is wrong with a state; empty when nothing is."""
    wrong = _check_header(state)
    if state.phase is not Phase.FINISHED:
        if state.assignment is not None and state.reconfiguration is None:
            wrong += _check_assignment(state, state.assignment)
        wrong += _check_failovers(state)
        wrong += _check_transfers(state)
        wrong += _check_preparing(state)
        wrong += _check_end_reports(state)
        wrong += _check_proposal(state)
    return wrong


def check_cause(before: State, event: Event, after: State) -> list[str]:
    """List what is wrong with the cause of a decision: a node that owns no slot must not end a run
    that has begun."""
    if after.phase is not Phase.FINISHED or before.phase is Phase.FINISHED:
        return []
    if not isinstance(event, NodeFailed | RunFailed) or not has_begun(before):
        return []
    said_by = NodeId(event.reporter) if isinstance(event, RunFailed) else event.node
    of_a_node = isinstance(event, NodeFailed) or before.node(said_by) is not None
    trains = owns_slot(before, said_by) or (
        before.reconfiguration is not None and not after.live_nodes()
    )
    return [f"{said_by} owns no slot and ends the run"] if of_a_node and not trains else []


def check_step(before: State, after: State) -> list[str]:
    """List everything that is wrong between two states in a row; the same object means no
    change."""
    if after is before:
        return []
    wrong = []
    if after.version != before.version + 1:
        wrong.append(f"version goes from {before.version} to {after.version}")
    if not before.generation <= after.generation <= before.generation + 1:
        wrong.append(f"generation goes from {before.generation} to {after.generation}")
    if not after.sentence:
        wrong.append("the change has no reason")
    if after.generation == before.generation and after.assignment != before.assignment:
        wrong.append("the assignment changes without a new generation")
    if before.phase is Phase.FINISHED and after.phase is not Phase.FINISHED:
        wrong.append(f"a finished run is {after.phase} again")
    if (after.run, after.redundancy) != (before.run, before.redundancy):
        wrong.append("run or redundancy changes")
    layout = (before.grid, before.cut, before.shares)
    if (after.grid, after.cut, after.shares) != layout and after.era != after.generation:
        wrong.append("the layout changes without a new era")
    wrong += _check_choice(before, after)
    now = {node.id: node for node in after.nodes}
    for node in before.nodes:
        if node.id not in now:
            wrong.append(f"node {node.id} is forgotten")
        elif not node.status.live and now[node.id].status is not node.status:
            wrong.append(f"node {node.id} was {node.status} and is {now[node.id].status}")
    return wrong


def _check_header(state: State) -> list[str]:
    wrong = []
    anew = (Phase.RECONFIGURING, Phase.RESTORING)
    ids = [node.id for node in state.nodes]
    if len(set(ids)) != len(ids):
        wrong.append("two nodes have one id")
    # A resumed run that ends during its first reconfiguration never had an assignment.
    never = state.reconfiguration is not None or state.phase is Phase.FINISHED
    fits = (state.assignment is not None) == (state.generation > 0)
    if not fits and not (never and state.assignment is None):
        wrong.append(f"generation {state.generation} does not fit the assignment")
    if state.phase is Phase.FORMING and state.assignment is not None:
        wrong.append("forming with an assignment")
    unassigned = (Phase.FORMING, Phase.FINISHED, *anew)
    if state.phase not in unassigned and state.assignment is None:
        wrong.append(f"{state.phase} without an assignment")
    if state.assignment is not None and state.assignment.grid != state.grid:
        wrong.append("the assignment is for another grid")
    if (state.reconfiguration is not None) != (state.phase in anew):
        wrong.append(
            f"{state.phase} {'with' if state.reconfiguration else 'without'} a reconfiguration"
        )
    if state.reconfiguration is not None and (state.failovers or state.transfers or state.moves):
        wrong.append("something of the old layout goes on in a reconfiguration")
    given_back = any(node.released and node.status.live for node in state.nodes)
    if given_back and state.reconfiguration is None and state.phase is not Phase.FINISHED:
        wrong.append("a node is to be given back and no new layout is made without it")
    if (state.outcome is not None) != (state.phase is Phase.FINISHED):
        wrong.append(f"outcome {state.outcome} while {state.phase}")
    if (state.stop_reason is None) != (state.stop_outcome is None):
        wrong.append("a stop needs both reason and outcome")
    if state.stop_reason is None and (state.stop_ready or state.stop_at_step is not None):
        wrong.append("a stop is being agreed that nobody asked for")
    fixed = state.stop_outcome is Outcome.DONE
    if state.outcome is Outcome.DONE and state.stop_at_step is not None and not fixed:
        wrong.append("the run was stopped and says done")
    if fixed and (state.evaluated is None or state.stop_at_step != state.evaluated.step - 1):
        wrong.append("evaluations end the run at another step than that of the last one")
    return wrong


def _check_assignment(state: State, assignment: Assignment) -> list[str]:
    wrong = []
    nodes = {node.id: node for node in state.nodes}
    for slot in assignment.grid.slots():
        owner, shadow = assignment.owner(slot), assignment.shadow(slot)
        if not _has_status(nodes.get(owner), _MEMBER):
            wrong.append(f"slot {slot} is owned by {owner}, which is no live member")
        if shadow is not None and not _has_status(nodes.get(shadow), _MEMBER):
            wrong.append(f"slot {slot} is shadowed by {shadow}, which is no live member")
        if shadow == owner:
            wrong.append(f"slot {slot} is owned and shadowed by {owner}")
        if shadow is not None and state.redundancy in BARE_MODES:
            wrong.append(f"slot {slot} has a shadow although redundancy is off")
    roles = assignment.members()
    for node in state.nodes:
        if node.status is NodeStatus.MEMBER and node.id not in roles:
            wrong.append(f"node {node.id} is a member and holds nothing")
        if node.status is NodeStatus.DRAINING:
            if node.notice_deadline_s is None:
                wrong.append(f"node {node.id} drains without a notice")
            if any(assignment.shadow(slot) is None for slot in assignment.owned_by(node.id)):
                wrong.append(f"node {node.id} drains and has nobody to hand over to")
    return wrong


def _check_failovers(state: State) -> list[str]:
    wrong = []
    nodes = {node.id: node for node in state.nodes}
    slots = [failover.slot for failover in state.failovers]
    if len(set(slots)) != len(slots):
        wrong.append("two failovers of one slot")
    for failover in state.failovers:
        where = f"the failover of slot {failover.slot}"
        if state.assignment is None or state.assignment.owner(failover.slot) != failover.successor:
            wrong.append(f"{where} has a successor that does not own it")
        victim = nodes.get(failover.victim)
        if victim is None or (victim.status.live and not failover.planned):
            wrong.append(f"{where} has a victim that is not gone")
    wants = state.phase if state.reconfiguration is not None else _expected_phase(state)
    if state.phase is not wants:
        wrong.append(f"the phase is {state.phase}, not {wants}")
    return wrong


def _check_transfers(state: State) -> list[str]:
    wrong = []
    nodes = {node.id: node for node in state.nodes}
    under_way: tuple[Transfer | Move, ...] = (*state.transfers, *state.moves)
    slots = [item.slot for item in under_way]
    if len(set(slots)) != len(slots):
        wrong.append("two transfers or moves of one slot")
    if state.assignment is None:
        return [*wrong, "a transfer without an assignment"] if under_way else wrong
    for item in under_way:
        where = f"the transfer of slot {item.slot} to {item.receiver}"
        if state.assignment.owner(item.slot) != item.source:
            wrong.append(f"{where} has a source that does not own it")
        if not _has_status(nodes.get(item.receiver), (NodeStatus.READY, *_MEMBER)):
            wrong.append(f"{where} goes to a node that is not live")
    for transfer in state.transfers:
        held = (transfer.source, state.assignment.shadow(transfer.slot))
        if transfer.receiver in held:
            wrong.append(f"slot {transfer.slot} is sent to {transfer.receiver}, which has it")
    for move in state.moves:
        if state.assignment.shadow(move.slot) != move.receiver:
            wrong.append(f"slot {move.slot} moves to {move.receiver}, which does not shadow it")
    return wrong


def _check_preparing(state: State) -> list[str]:
    preparing = state.preparing
    if preparing is None:
        return []
    busy = (state.reconfiguration, state.failovers, state.transfers, state.moves, state.stop_reason)
    if any(busy) or state.assignment is None:
        return ["state is prefetched while something else is under way"]
    wrong = []
    nodes = {node.id: node for node in state.nodes}
    for feed in preparing.feeds:
        where = f"the prefetch to {feed.receiver}"
        if state.assignment.owner(feed.slot) != feed.source or feed.source == feed.receiver:
            wrong.append(f"{where} has a source that does not own it, or is itself the source")
        if not _has_status(nodes.get(feed.receiver), (NodeStatus.READY, *_MEMBER)):
            wrong.append(f"{where} goes to a node that is not live")
    said = [node for node, _ in preparing.prepared]
    if len(set(said)) != len(said) or not preparing.receivers > set(said):
        wrong.append("all have what they prefetch, or one says so twice or prefetches nothing")
    return wrong


def _expected_phase(state: State) -> Phase:
    """The phase that follows from assignment and failovers of a run that is not over."""
    if state.assignment is None:
        return Phase.FORMING
    if state.failovers:
        return Phase.FAILING_OVER
    if state.redundancy not in BARE_MODES and None in state.assignment.shadows:
        return Phase.DEGRADED
    return Phase.RUNNING


def _check_end_reports(state: State) -> list[str]:
    wrong = []
    members = {node.id for node in state.nodes if node.status in _MEMBER}
    ready = [node for node, _ in state.stop_ready]
    if len(set(ready)) != len(ready) or not members.issuperset(ready):
        wrong.append("a stop is answered by a node that is no live member, or twice")
    if len(set(state.finished)) != len(state.finished) or not members.issuperset(state.finished):
        wrong.append("a node that is no live member has finished, or twice")
    if any(failover.successor in state.finished for failover in state.failovers):
        wrong.append("a node has finished while its failover is under way")
    owners = set() if state.assignment is None else set(state.assignment.owners)
    if owners and owners.issubset(state.finished):
        wrong.append("every owner has finished and the run has not")
    agreed = members and members.issubset(ready)
    if state.stop_reason is not None and agreed and state.stop_at_step is None:
        wrong.append("every member is ready to stop and no step is named")
    return wrong


def _check_proposal(state: State) -> list[str]:
    proposal = state.proposal
    if proposal is None:
        return []
    wrong = []
    if state.reconfiguration is not None or state.stop_reason is not None or state.failovers:
        wrong.append("a strategy is being agreed on while something else is under way")
    asked = state.participants()
    if len(set(proposal.ready)) != len(proposal.ready) or not asked > set(proposal.ready):
        wrong.append("all have the strategy, or one says so twice or takes no part")
    return wrong


def _check_choice(before: State, after: State) -> list[str]:
    """What is wrong with the choices of how steps are synchronised, between two states in a row."""
    if after.syncs == before.syncs:
        return []
    wrong = []
    asked, new = before.proposal, after.syncs[-1:]
    steps = [choice.from_step for choice in after.syncs]
    if steps != sorted(set(steps)):
        wrong.append("two strategies count from one step")
    if asked is None or not new or asked.hash != new[0].hash:
        return [*wrong, "a strategy is chosen that nobody proposed"]
    if new[0].number != (before.syncs[-1].number if before.syncs else 0) + 1:
        wrong.append("a chosen strategy has another number than the next one")
    if new[0].from_step <= asked.begun + 1:
        wrong.append(f"a strategy counts from step {new[0].from_step}, which a node has begun")
    for step in range(asked.oldest, new[0].from_step) if asked.ready else ():
        then, now = choice_at(before.syncs, step), choice_at(after.syncs, step)
        if (then and then.hash) != (now and now.hash):
            wrong.append(f"step {step}, which a node may be in, has another strategy now")
    return wrong


def _has_status(node: Node | None, statuses: tuple[NodeStatus, ...]) -> bool:
    return node is not None and node.status in statuses
