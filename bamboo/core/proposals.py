"""Decides how the steps of a run are synchronised from some step on, while it trains.

Rule: which choice a step has is a function of the step, the same for every node that runs it. So a
choice counts from a step that no node can have begun: every node that takes part has answered, and
has promised to begin no step `MARGIN` beyond its last one before it knows the decision. Whatever
changes who takes part withdraws the proposal, and the nodes are free once they read that.
"""

import re
from dataclasses import replace

from bamboo.core.events import StrategyProposed, StrategyReady
from bamboo.core.rounds import Proposal, SyncChoice, choice_at
from bamboo.core.state import Phase, Policy, State
from bamboo.core.transition import Transition, away, changed, describe, stale
from bamboo.errors import CoreMisuse

MARGIN = 4
"""Steps between the last one that a node has begun and the first one that it must not begin before
it knows the decision: so many that no node stands still while the others answer."""

_CHOSEN = re.compile(r"; (strategy \d+ \(\S+\) counts from step .*)", re.DOTALL)


def chosen_in(reason: str) -> str:
    """The part of a decision's reason that says from which step on a strategy counts, and why; ""
    where none was chosen."""
    found = _CHOSEN.search(reason)
    return found[1] if found else ""


def propose(state: State, event: StrategyProposed) -> Transition:
    """Ask all who take part, unless something else is under way."""
    if not event.hash:
        raise CoreMisuse(f"{event.reporter} proposes a strategy without a hash")
    if state.phase not in (Phase.RUNNING, Phase.DEGRADED) or state.stop_reason is not None:
        return stale(state, f"the strategy {event.hash} waits: the run is {_busy(state)}")
    if state.proposal is not None:
        return stale(state, f"the strategy {state.proposal.hash} is being agreed on already")
    if state.syncs and state.syncs[-1].hash == event.hash:
        return stale(state, f"the strategy {event.hash} was chosen already")
    asked = len(state.participants())
    proposal = Proposal(since=state.version + 1, hash=event.hash, why=event.why)
    who = f"{asked} nodes are asked" if asked > 1 else "one node is asked"
    reason = f"the strategy {event.hash} is proposed ({event.why}): {who}"
    return changed(state.having(proposal=proposal), (), reason)


def _busy(state: State) -> str:
    return "stopping" if state.stop_reason is not None else str(state.phase).replace("_", " ")


def answer_proposal(state: State, event: StrategyReady, policy: Policy) -> Transition:
    """Note that a node has the strategy, or cannot use it. The last answer fixes the step."""
    node, proposal = state.node(event.node), state.proposal
    if node is None:
        raise CoreMisuse(f"StrategyReady from node {event.node}, which never joined")
    if proposal is None or proposal.since != event.since:
        return stale(state, f"{event.node} answers about a strategy that nobody asks about now")
    asked = state.participants()
    if event.node not in asked:
        return stale(state, f"{event.node} {away(node)}: its answer does not count")
    if event.node in proposal.ready:
        return stale(state, f"{event.node} has answered already")
    who = describe(state, event.node)
    if event.refused:
        words = f"{who} cannot use the strategy {proposal.hash}: {event.refused}"
        return changed(state.having(proposal=None), (), f"{words}; all go on as before")
    noted = replace(
        proposal,
        ready=(*proposal.ready, event.node),
        begun=max(proposal.begun, event.begun),
        oldest=min(proposal.oldest, event.oldest) if proposal.ready else event.oldest,
    )
    begun = "no step" if event.begun < 0 else f"step {event.begun}"
    reason = f"{who} has the strategy {proposal.hash} and has begun {begun}"
    if missing := len(asked.difference(noted.ready)):
        return changed(state.having(proposal=noted), (), f"{reason}; waiting for {missing} more")
    first = noted.begun + MARGIN
    if policy.steps and first >= policy.steps:
        words = f"the run ends before step {first}, so all go on as before"
        return changed(state.having(proposal=None), (), f"{reason}; {words}")
    choice = SyncChoice(
        number=state.syncs[-1].number + 1 if state.syncs else 1,
        hash=noted.hash,
        from_step=first,
        why=noted.why,
    )
    chosen = state.having(syncs=_with(state.syncs, choice, noted.oldest), proposal=None)
    words = f"strategy {choice.number} ({choice.hash}) counts from step {first} on: {choice.why}"
    return changed(chosen, (), f"{reason}; {words}")


def _with(syncs: tuple[SyncChoice, ...], choice: SyncChoice, oldest: int) -> tuple[SyncChoice, ...]:
    """The choices with one more, without those that no step from `oldest` on has. The first one
    that is left counts for all earlier steps, which are taken again only where all start over."""
    kept = tuple(one for one in syncs if one.from_step < choice.from_step)
    in_force = choice_at(kept, oldest)
    if in_force is not None:
        kept = kept[kept.index(in_force) :]
        kept = (replace(in_force, from_step=0), *kept[1:])
    return (*kept, choice)


def withdraw(before: State, decided: Transition) -> Transition:
    """Withdraw the proposal that is under way, if other nodes take part now, or all stop."""
    state, proposal = decided.state, decided.state.proposal
    if state is before or proposal is None:
        return decided
    same = state.generation == before.generation and state.same_participants(before)
    if same and state.stop_reason is None and state.phase is not Phase.FINISHED:
        return decided
    words = f"{decided.reason}; the strategy {proposal.hash} is not chosen"
    return replace(decided, state=state.having(proposal=None), reason=words)
