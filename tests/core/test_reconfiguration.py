"""Reconfigurations: whose loss counts, whose word counts, and which stall is broken."""

from dataclasses import replace

import pytest

from bamboo.core.events import (
    BoundaryReady,
    CheckpointDamaged,
    Event,
    Quiesced,
    Stalled,
    StopRequested,
)
from bamboo.core.invariants import check
from bamboo.core.machine import transition
from bamboo.core.state import Checkpoint, Holding, Outcome, Phase, Policy, State
from bamboo.ids import NodeId
from tests.core.build import forming, joined, lost, prepared

POLICY = Policy(cuts=((0, 4), (0, 2, 4)), virtual_nodes=4, pipelines=2, stages=2)
SAVING = replace(POLICY, checkpoint_every=4)


def said(state: State, *events: Event, policy: Policy = POLICY) -> State:
    for event in events:
        state = transition(state, event, now_s=1.0, policy=policy).state
    return state


def holds(first: int, stop: int, step: int) -> tuple[Holding, ...]:
    return (Holding(first=first, stop=stop, step=step, reach=step),) if stop > first else ()


def all_stop(state: State, step: int, policy: Policy) -> State:
    """a and b hold the two stages, c and d nothing yet."""
    assert state.reconfiguration is not None
    since, parts = state.reconfiguration.since, {"a": (0, 2), "b": (2, 4), "c": (0, 0), "d": (0, 0)}
    events = [
        Quiesced(node=NodeId(n), since=since, holdings=holds(*parts[n], step), norms=())
        for n in parts
    ]
    return said(state, *events, policy=policy)


@pytest.mark.parametrize("policy", [POLICY, SAVING])
def test_who_came_too_late_to_be_asked_takes_nothing_with_it(policy: Policy) -> None:
    """Two pipelines are being made of one, all that is needed lies with live nodes, and a fifth
    node joins and goes."""
    state = said(forming(1, 2, "off"), *(joined(n) for n in "abcd"), policy=policy)
    state = said(state, *prepared(state), policy=policy)
    assert state.reconfiguration is not None
    assert state.reconfiguration.planned
    since = state.reconfiguration.since
    ready = [BoundaryReady(node=NodeId(n), since=since, step=19) for n in "abcd"]
    state = all_stop(said(state, joined("e"), *ready, policy=policy), 20, policy)
    assert state.reconfiguration is not None
    assert (state.reconfiguration.base, state.reconfiguration.checkpoint) == (20, False)
    state = said(state, lost("e", "a"), policy=policy)
    if state.reconfiguration is not None and state.reconfiguration.base is None:
        state = all_stop(state, 20, policy)
    assert state.outcome is None
    assert state.reconfiguration is not None
    assert (state.reconfiguration.base, state.reconfiguration.checkpoint) == (20, False)


@pytest.mark.parametrize("step", [0, 1, 7])
def test_the_first_stall_is_broken_and_the_second_ends_the_run(step: int) -> None:
    state = said(forming(2, 2, "stash"), *(joined(n) for n in "abcd"))
    stall = Stalled(node=NodeId("a"), era=state.era, step=step, reason="it waits in vain")
    state = said(state, stall)
    assert state.phase is Phase.RECONFIGURING
    again = replace(state, reconfiguration=None, phase=Phase.RUNNING)
    assert said(again, stall).outcome is Outcome.FAULT
    assert said(again, replace(stall, step=step + 2)).phase is Phase.RECONFIGURING


def test_the_word_of_a_gone_node_damages_no_checkpoint() -> None:
    state = said(forming(2, 2, "stash"), *(joined(n) for n in "abcd"), policy=SAVING)
    state = replace(state, checkpoints=(Checkpoint(step=8, era=1),))
    damaged = CheckpointDamaged(node=NodeId("d"), step=8, reason="torn")
    gone = said(state, lost("d", "a", "lease"), policy=SAVING)
    assert said(gone, damaged, policy=SAVING).checkpoints == state.checkpoints
    assert said(state, damaged, policy=SAVING).checkpoints == ()


def resumed(redundancy: str) -> State:
    """Two nodes have come to a run that goes on from the checkpoint of step 4."""
    state = replace(forming(1, 2, redundancy), checkpoints=(Checkpoint(step=4, era=0),))
    return said(state, joined("a"), joined("b"), policy=SAVING)


def test_a_resumed_run_that_is_stopped_while_it_is_laid_out_is_sound() -> None:
    stop = StopRequested(reason="enough", outcome=Outcome.STOPPED)
    state = said(resumed("stash"), stop, policy=SAVING)
    assert state.outcome is Outcome.STOPPED
    assert check(state) == []


def test_what_a_resumed_run_has_read_is_not_read_again_after_a_loss() -> None:
    """Without redundancy too: the one who is lost held nothing that is not there."""
    state = said(resumed("off"), joined("c"), policy=SAVING)
    assert state.reconfiguration is not None
    since = state.reconfiguration.since
    empty = [Quiesced(node=NodeId(n), since=since, holdings=(), norms=()) for n in "ab"]
    state = said(state, *empty, lost("b"), policy=SAVING)
    assert state.reconfiguration is not None
    since = state.reconfiguration.since
    answers = [
        Quiesced(node=NodeId(n), since=since, holdings=holds(*part, 4), norms=())
        for n, part in (("a", (0, 4)), ("c", (0, 0)))
    ]
    state = said(state, *answers, policy=SAVING)
    assert state.reconfiguration is not None
    assert (state.reconfiguration.base, state.reconfiguration.checkpoint) == (4, False)


def test_what_others_have_read_of_a_damaged_checkpoint_counts() -> None:
    """One node finds a part damaged that others have: nothing was lost, whatever the redundancy."""
    state = said(resumed("off"), policy=SAVING)
    assert state.reconfiguration is not None
    since = state.reconfiguration.since
    empty = [Quiesced(node=NodeId(n), since=since, holdings=(), norms=()) for n in "ab"]
    torn = CheckpointDamaged(node=NodeId("b"), step=4, reason="torn")
    state = said(state, *empty, torn, policy=SAVING)
    assert state.reconfiguration is not None
    since = state.reconfiguration.since
    answers = [
        Quiesced(node=NodeId(n), since=since, holdings=holds(*part, 4), norms=())
        for n, part in (("a", (0, 2)), ("b", (2, 4)))
    ]
    state = said(state, *answers, policy=SAVING)
    assert state.reconfiguration is not None
    assert (state.reconfiguration.base, state.reconfiguration.checkpoint) == (4, False)
