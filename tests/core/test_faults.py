"""Whether a node's fault ends the run, and when the next node may be rented."""

from dataclasses import replace

import pytest

from bamboo.core.events import FaultScope, RunFailed
from bamboo.core.faults import (
    CALM_S,
    FEW_STEPS,
    FIRST_WAIT_S,
    MOST_TRIES,
    has_begun,
    may_rent,
    owns_slot,
    wait_s,
)
from bamboo.core.invariants import check_cause
from bamboo.core.state import Faults, NodeStatus, Outcome, Phase, State
from bamboo.ids import NodeId
from tests.core.build import apply, failed, forming, joined, lost, running

NEW = "n90.1"
SCOPES = list(FaultScope)


def tries_of(state: State) -> int:
    assert state.faults is not None
    return state.faults.tries


def refused(state: State, number: int, now_s: float) -> State:
    return apply(state, failed(f"n9{number}.1", FaultScope.RUN), now_s).state


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("has_joined", [False, True])
def test_a_newcomer_ends_no_run_that_trains(scope: FaultScope, has_joined: bool) -> None:
    state = running()
    if has_joined:
        state = apply(state, joined(NEW)).state
    after = apply(state, failed(NEW, scope))
    assert after.state.phase is Phase.RUNNING
    node = after.state.node(NodeId(NEW))
    assert node is not None
    assert node.status is NodeStatus.GONE
    assert "its disk is full" in after.reason
    assert NEW in after.reason


@pytest.mark.parametrize(
    ("scope", "outcome"), [(FaultScope.NODE, None), (FaultScope.RUN, Outcome.FAULT)]
)
def test_an_owners_fault_is_a_loss_or_the_runs(scope: FaultScope, outcome: Outcome | None) -> None:
    after = apply(running(), failed("n02.1", scope)).state
    assert after.outcome is outcome
    assert "its disk is full" in after.sentence
    if outcome is None:
        assert after.phase is Phase.FAILING_OVER


def test_before_anybody_trained_what_all_would_meet_ends_the_run_at_once() -> None:
    state = apply(forming(), joined("n00.1")).state
    assert not has_begun(state)
    assert apply(state, failed(NEW, FaultScope.RUN)).state.outcome is Outcome.FAULT
    assert apply(state, failed(NEW, FaultScope.NODE)).state.phase is Phase.FORMING
    assert has_begun(running())


def test_who_says_that_the_run_failed_and_owns_nothing_speaks_of_itself() -> None:
    state = apply(running(), joined(NEW)).state
    assert not owns_slot(state, NodeId(NEW))
    event = RunFailed(reporter=NEW, outcome=Outcome.UNRECOVERABLE, reason="nothing can be read")
    after = apply(state, event)
    assert after.state.phase is Phase.RUNNING
    assert "n90.1 is gone: it failed, nothing can be read" in after.reason
    for reporter in ("n01.1", "launcher"):
        ended = apply(state, replace(event, reporter=reporter)).state
        assert ended.outcome is Outcome.UNRECOVERABLE


def test_the_invariant_sees_a_newcomer_that_ends_the_run() -> None:
    state = apply(running(), joined(NEW)).state
    over = replace(state, phase=Phase.FINISHED, outcome=Outcome.FAULT)
    event = failed(NEW, FaultScope.RUN)
    assert check_cause(state, event, over) == ["n90.1 owns no slot and ends the run"]
    assert check_cause(state, replace(event, node=NodeId("n01.1")), over) == []
    said = RunFailed(reporter=NEW, outcome=Outcome.FAULT, reason="x")
    assert check_cause(state, said, over) == ["n90.1 owns no slot and ends the run"]
    assert check_cause(state, replace(said, reporter="launcher"), over) == []


# ---------------------------------------------------------------- devices


def device(state: State, node: str, step: int, now_s: float = 0.0) -> State:
    event = failed(node, FaultScope.DEVICE, "CUDA out of memory")
    return apply(state, replace(event, step=step), now_s).state


def replaced(state: State, lost: str, by: str, **others: object) -> State:
    """`by` has come and has what the lost node had; all have a shadow again."""
    state = apply(state, joined(by)).state
    assert state.assignment is not None
    before = running().assignment
    assert before is not None
    owners, shadows = (
        {
            slot: NodeId(by) if node == lost else node
            for slot, node in zip(state.grid.slots(), part, strict=True)
        }
        for part in (before.owners, before.shadows)
    )
    assignment = state.assignment.replace(owners=owners, shadows=shadows)
    return replace(state, assignment=assignment, failovers=(), transfers=(), **others)


@pytest.mark.parametrize(
    ("step", "later", "ends"),
    [(0, 0, True), (5, 5 + FEW_STEPS, True), (5, 2, True), (5, 6 + FEW_STEPS, False)],
)
def test_a_second_device_that_fails_at_a_stage_ends_the_run_unless_it_got_on(
    step: int, later: int, ends: bool
) -> None:
    state = device(running(), "n02.1", step)
    assert state.phase is Phase.FAILING_OVER, "a fault of the node alone"
    state = device(replaced(state, "n02.1", NEW), NEW, later, now_s=2 * CALM_S)
    assert state.outcome is (Outcome.FAULT if ends else None)
    if ends:
        assert state.sentence == (
            f"node n90.1 (stage 2) failed in step {later}: CUDA out of memory; node n02.1 failed "
            f"at this stage, too, in step {step}; so would another"
        )


def test_devices_that_fail_at_two_stages_or_on_merged_nodes_are_losses_like_any_other() -> None:
    state = device(running(), "n02.1", 3)
    merged = device(state, "n01.1", 3)
    assert merged.outcome is Outcome.UNRECOVERABLE, "it had two stages, which nobody has now"
    state = device(replaced(state, "n02.1", NEW), "n03.1", 3)
    assert state.phase is Phase.FAILING_OVER
    assert state.faults is not None
    assert [fault.stage for fault in state.faults.devices] == ["2 of 4", "3 of 4"]
    newcomer = device(apply(state, joined("n91.1")).state, "n91.1", 3)
    assert newcomer.phase is Phase.FAILING_OVER, "it owns nothing"


# ---------------------------------------------------------------- the next node


def test_the_wait_doubles_and_one_is_rented_at_a_time() -> None:
    state = apply(running(), lost("n02.1")).state
    assert may_rent(state, booting=0, now_s=0.0) is None
    now_s = 100.0
    state = refused(state, 1, now_s)
    assert may_rent(state, booting=0, now_s=now_s + FIRST_WAIT_S - 0.1) == 0
    assert may_rent(state, booting=3, now_s=now_s + FIRST_WAIT_S) is None
    waits = []
    for number in range(2, 8):
        now_s += wait_s(number - 1)
        state = refused(state, number, now_s)
        assert state.phase is Phase.FAILING_OVER, "it trains on with the nodes that it has"
        assert may_rent(state, booting=0, now_s=now_s + wait_s(number) - 0.1) == 0
        assert may_rent(state, booting=0, now_s=now_s + wait_s(number)) == 1
        assert may_rent(state, booting=1, now_s=now_s + wait_s(number)) == 0
        waits.append(wait_s(number))
    assert waits == [FIRST_WAIT_S * 2**k for k in range(1, 7)]


def test_nodes_that_were_rented_together_are_one_try() -> None:
    state = running()
    for number in range(8):
        state = refused(state, number, 100.0 + number / 10)
    assert state.faults == Faults(tries=1, nodes=8, at_s=100.0, known=12, reason="its disk is full")


def test_one_that_was_taken_in_lets_all_be_rented_again() -> None:
    state = apply(running(), lost("n02.1")).state
    for number in range(3):
        state = refused(state, number, 100.0 * number)
    state = apply(state, joined("n97.1")).state
    assert may_rent(state, booting=0, now_s=1e4) == 1, "it stands by, and is sent a replica"
    assert state.assignment is not None
    shadows = {state.grid.slots()[0]: NodeId("n97.1")}
    state = replace(state, assignment=state.assignment.replace(shadows=shadows, owners={}))
    assert may_rent(state, booting=0, now_s=1e4) is None
    # A fault soon after belongs to those before, one much later does not.
    tries = [tries_of(refused(state, 8, at_s)) for at_s in (300.0, 201.0 + CALM_S)]
    assert tries == [4, 1]


def test_a_run_that_forms_counts_who_is_there() -> None:
    state = refused_alone(forming(), 0, 0.0)
    state = refused_alone(state, 1, 10.0)
    assert may_rent(state, booting=0, now_s=1e4) == 1
    state = apply(state, joined("n00.1")).state
    assert may_rent(state, booting=0, now_s=1e4) is None


@pytest.mark.parametrize("stages", [2, 3, 64])
def test_a_run_that_forms_ends_after_four_tries_in_vain(stages: int) -> None:
    """However small its grid is: single failures over time, of one kind."""
    state = forming(stages=stages)
    for number in range(MOST_TRIES):
        assert state.phase is Phase.FORMING, f"after {number} tries"
        state = refused_alone(state, number, 100.0 * number)
    assert state.outcome is Outcome.FAULT


@pytest.mark.parametrize("stages", [2, 3])
def test_a_run_that_forms_ends_at_once_when_all_its_nodes_meet_one_fault_together(
    stages: int,
) -> None:
    state = forming(stages=stages)
    for number in range(stages):
        assert state.phase is Phase.FORMING
        reason = f"its driver is too old; `bamboo logs r --node n9{number}.1` has the traceback"
        event = failed(f"n9{number}.1", FaultScope.NODE, reason)
        state = apply(state, event, number / 10).state
    assert state.outcome is Outcome.FAULT
    assert state.sentence.endswith("nodes failed, and the run has not begun")


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_nodes_that_fail_together_for_two_reasons_are_one_try(odd: int) -> None:
    state = forming(stages=3)
    for number in range(3):
        reason = "its memory is full" if number == odd else "its disk is full"
        event = failed(f"n9{number}.1", FaultScope.NODE, reason)
        state = apply(state, event, number / 10).state
    assert state.phase is Phase.FORMING
    assert tries_of(state) == 1


def test_a_run_that_forms_and_has_a_node_goes_on_whatever_others_meet() -> None:
    state = apply(forming(stages=3), joined("n00.1")).state
    for number in range(3):
        state = refused_alone(state, number, 0.0)
    assert state.phase is Phase.FORMING


def refused_alone(state: State, number: int, now_s: float) -> State:
    return apply(state, failed(f"n9{number}.1", FaultScope.NODE), now_s).state
