"""Decides whose facts are the numerics of the run, and refuses every node whose facts differ.

Rule: the first worker that attests decides, because what it computes is what the run computes; the
machine that launches decides nothing. Each worker attests before it joins, so a node that would
compute other bits never trains. It is lost with its reason, which names the facts that differ; the
run goes on without it.
"""

from collections.abc import Mapping, Sequence

from bamboo.core.events import Attested, FaultScope, NodeFailed, NodeJoined
from bamboo.core.faults import fail_node
from bamboo.core.state import Attestation, Fact, Policy, State
from bamboo.core.transition import Transition, away, changed, stale

MOST_NAMED = 3
"""Facts that a reason names; machines of two kinds differ in many at once."""
TELLING = ("device", "gpu", "torch")
MISSING = "unknown"


def attest(state: State, event: Attested, *, now_s: float, policy: Policy) -> Transition:
    """A worker says what its machine computes with, before it joins, or again afterwards."""
    node = state.node(event.node)
    if node is not None and not node.status.live:
        return stale(state, f"node {event.node} {away(node)}: what it computes with does not count")
    known = state.attested
    if known is None:
        found = Attestation(node=event.node, numerics=event.numerics)
        facts = ", ".join(f"{fact.name} {fact.value}" for fact in event.numerics)
        reason = f"node {event.node} is the first to say what it computes with: {facts}"
        return changed(state.having(attested=found), (), reason)
    refused = unlike(state, event, now_s=now_s, policy=policy)
    return refused or stale(state, f"node {event.node} computes with what the run does")


def unlike(
    state: State, event: Attested | NodeJoined, *, now_s: float, policy: Policy
) -> Transition | None:
    """The refusal of a node whose facts differ from those of the run; None: they do not."""
    known = state.attested
    differ = differing(event.numerics, known.numerics) if known is not None else ()
    if known is None or not differ:
        return None
    refused = NodeFailed(
        node=event.node,
        instance=event.instance,
        zone=event.zone,
        scope=FaultScope.NODE,
        reason=f"it would compute other bits: {named(differ, 'there')}, as {_who(known)} has said; "
        "rent nodes of one kind: no tolerance can be set, since `verify` compares every bit",
    )
    return fail_node(state, refused, now_s=now_s, policy=policy)


def _who(known: Attestation) -> str:
    return f"node {known.node}" if known.node else "its launcher"


def differing(here: Sequence[Fact], run: Sequence[Fact]) -> tuple[tuple[str, str, str], ...]:
    """The facts that differ: (name, the value here, in the run). Those that explain others come
    first, then the order is that of the names."""
    ours, theirs = ({fact.name: fact.value for fact in facts} for facts in (here, run))
    names = sorted(ours.keys() | theirs.keys(), key=lambda name: (name not in TELLING, name))
    return tuple(
        (name, ours.get(name, MISSING), theirs.get(name, MISSING))
        for name in names
        if ours.get(name, MISSING) != theirs.get(name, MISSING)
    )


def named(differ: Sequence[tuple[str, str, str]], where: str) -> str:
    """Text such as `torch is 2.12.1 here and 2.13.0 in the run`, with `where` for `here`."""
    words = [f"{name} is {ours} {where} and {theirs} in the run" for name, ours, theirs in differ]
    more = len(words) - MOST_NAMED
    return "; ".join(words[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def facts_of(values: Mapping[str, object]) -> tuple[Fact, ...]:
    """Facts from values by name; a value counts by its text."""
    return tuple(Fact(name=name, value=str(value)) for name, value in sorted(values.items()))
