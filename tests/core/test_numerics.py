"""The facts of the first worker are the run's; others are compared, named and refused."""

from dataclasses import replace

from bamboo.core.effects import TerminateInstance
from bamboo.core.events import Attested
from bamboo.core.faults import MOST_TRIES
from bamboo.core.machine import transition
from bamboo.core.numerics import differing, facts_of, named
from bamboo.core.state import Attestation, NodeStatus, Outcome, Phase, Policy, State, initial_state
from bamboo.ids import InstanceId, NodeId, RunId, ZoneId
from bamboo.topology.grid import Grid
from tests.core.build import joined, lost, running

CARD = {"device": "cuda", "gpu": "L4", "torch": "2.13.0+cu130", "threads": 1}


def attested(node: str, **changes: object) -> Attested:
    facts = facts_of(CARD | changes)
    name = NodeId(node)
    return Attested(node=name, instance=InstanceId(node), zone=ZoneId("z"), numerics=facts)


def fresh(attestation: Attestation | None = None) -> State:
    grid = Grid(pipelines=1, stages=2)
    return initial_state(run=RunId("r"), grid=grid, redundancy="stash", attested=attestation)


def after(state: State, *events: object, now_s: float = 0.0) -> State:
    for event in events:
        state = transition(state, event, now_s=now_s, policy=Policy()).state  # type: ignore[arg-type]
    return state


def test_the_first_worker_decides_and_a_later_one_alike_changes_nothing() -> None:
    first = after(fresh(), attested("a.1"))
    assert first.attested == Attestation(node=NodeId("a.1"), numerics=facts_of(CARD))
    assert first.sentence.endswith("device cuda, gpu L4, threads 1, torch 2.13.0+cu130")
    assert after(first, attested("b.1")) is first
    assert after(first, attested("a.1")) is first


def test_a_later_one_that_differs_is_lost_by_the_fact_that_differs() -> None:
    first = after(fresh(), attested("a.1"), joined("a.1"))
    decided = transition(first, attested("b.1", gpu="T4"), now_s=0.0, policy=Policy())
    node = decided.state.node(NodeId("b.1"))
    assert node is not None
    assert node.status is NodeStatus.GONE
    assert "gpu is T4 there and L4 in the run, as node a.1 has said" in decided.reason
    assert [type(effect) for effect in decided.effects] == [TerminateInstance]
    assert decided.state.phase is Phase.FORMING
    assert decided.state.attested == first.attested
    assert after(decided.state, joined("b.1")) is decided.state, "it never takes part"


def test_a_join_says_it_again_and_counts_the_same() -> None:
    """The store may have forgotten what was said before."""
    first = after(fresh(), replace(joined("a.1"), numerics=facts_of(CARD)))
    assert first.attested == Attestation(node=NodeId("a.1"), numerics=facts_of(CARD))
    other = after(first, replace(joined("b.1"), numerics=facts_of(CARD | {"gpu": "T4"})))
    assert [node.status for node in other.nodes] == [NodeStatus.READY, NodeStatus.GONE]
    assert "gpu is T4 there and L4 in the run" in other.sentence
    alike = after(first, replace(joined("b.1"), numerics=facts_of(CARD)))
    assert alike.phase is Phase.RUNNING
    assert alike.attested == first.attested
    assert after(fresh(), joined("a.1")).attested is None, "nothing was said"


def test_what_an_earlier_part_of_the_run_computed_with_still_counts() -> None:
    before = Attestation(node=NodeId("z.1"), numerics=facts_of(CARD))
    state = after(fresh(before), attested("a.1", torch="2.12.1"))
    assert "torch is 2.12.1 there and 2.13.0+cu130 in the run, as node z.1" in state.sentence
    assert after(fresh(before), attested("a.1")).version == 0


def test_a_run_for_which_nobody_else_comes_waits_in_vain_for_a_while_and_says_why() -> None:
    before = Attestation(node=NodeId("z.1"), numerics=facts_of(CARD))
    state, now_s = fresh(before), 0.0
    for number in range(MOST_TRIES):
        assert state.phase is Phase.FORMING
        state = after(state, attested(f"n{number}.1", gpu="T4"), now_s=now_s)
        now_s += 1000.0
    assert (state.phase, state.outcome) == (Phase.FINISHED, Outcome.FAULT)
    assert "gpu is T4 there and L4 in the run" in state.sentence


def test_a_run_that_trains_loses_the_node_and_goes_on() -> None:
    state = replace(running(), attested=Attestation(node=NodeId("n00.1"), numerics=facts_of(CARD)))
    state = after(state, attested("new.1", device="cpu"))
    assert state.phase is Phase.RUNNING
    member = state.nodes[1].id
    odd = after(state, attested(member, device="cpu"))
    assert odd.phase is Phase.FAILING_OVER, "a member that is found out is a loss"
    assert after(odd, attested(member)) is odd, "and gone for ever"
    gone = after(state, lost(str(member)))
    assert after(gone, attested(member)) is gone


def test_facts_are_compared_by_their_text_and_missing_ones_are_named() -> None:
    assert facts_of({"b": 1, "a": True}) == facts_of({"a": "True", "b": "1"})
    ours, theirs = facts_of({"a": 1, "b": 2}), facts_of({"b": 2, "c": 3})
    assert differing(ours, ours) == ()
    assert differing(ours, theirs) == (("a", "1", "unknown"), ("c", "unknown", "3"))
    many = differing(facts_of(dict.fromkeys("abcde", 1)), facts_of(dict.fromkeys("abcde", 2)))
    assert named(many, "here") == (
        "a is 1 here and 2 in the run; b is 1 here and 2 in the run; c is 1 here and 2 in the run; "
        "and 2 more"
    )
