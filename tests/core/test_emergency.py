"""Notices that leave a stage without a home: when all must hold, who stores what, what fails."""

from dataclasses import replace

import pytest

from bamboo.core.effects import AgreeBoundary, CompleteCheckpoint, Quiesce
from bamboo.core.events import (
    BoundaryReady,
    CheckpointDone,
    CheckpointFailed,
    Event,
    LayoutBuilt,
    NodeFinished,
    NoticeReceived,
    Quiesced,
    ReplicaJoined,
    SaveDue,
    ShardSaved,
    StopReady,
    StopRequested,
)
from bamboo.core.liveness.patience import parked, stands_for_s
from bamboo.core.machine import Transition
from bamboo.core.state import Holding, Norm, Outcome, Phase, Policy, State
from bamboo.ids import NodeId
from tests.core.build import afresh, forming, joined, lost

POLICY = Policy(
    cuts=((0, 2, 4), (0, 1, 2, 4)),
    virtual_nodes=4,
    pipelines=2,
    stages=2,
    layer_bytes=(1_000_000,) * 4,
    store_bytes_per_s=1_000_000.0,
    notice_s=20.0,
)
"""A stage of two layers takes 2 s, and so 4 s with the margin."""
A, B, C, D = (NodeId(f"n{n:02}.1") for n in range(4))


def say(state: State, *events: Event, now_s: float = 0.0, policy: Policy = POLICY) -> Transition:
    for event in events:
        decided = afresh(state, event, now_s, policy)
        state = decided.state
    return decided


def running(pipelines: int = 1, redundancy: str = "stash", policy: Policy = POLICY) -> State:
    state = forming(pipelines, 2, redundancy)
    nodes = (joined(f"n{n:02}.1") for n in range(state.grid.size))
    return say(state, *nodes, policy=policy).state


def notice(node: NodeId, deadline_s: float) -> NoticeReceived:
    return NoticeReceived(node=node, deadline_s=deadline_s)


def stopped(state: State, node: NodeId, *layers: tuple[int, int], step: int = 9) -> Quiesced:
    assert state.reconfiguration is not None
    return Quiesced(
        node=node,
        since=state.reconfiguration.since,
        holdings=tuple(Holding(first=a, stop=b, step=step, reach=step) for a, b in layers),
        norms=(Norm(step=step - 1, total_square=1.0),),
    )


def kept_of_two(deadlines: tuple[float, float] = (20.0, 20.0)) -> State:
    """Both nodes of a run have stopped before step 9 and store it."""
    state = say(running(), notice(A, deadlines[0]), notice(B, deadlines[1])).state
    assert state.emergency is not None
    state = say(state, SaveDue(node=A, since=state.emergency.since, at_once=True)).state
    return say(state, *(stopped(state, node, (0, 4)) for node in (A, B))).state


def parts_of(state: State) -> dict[NodeId, tuple[int, ...]]:
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    return {part.node: part.layers for part in state.reconfiguration.keep.parts}


# ---------------------------------------------------------------- by when


def test_one_notice_is_no_emergency_and_a_second_one_is() -> None:
    one = say(running(), notice(A, 20.0))
    assert one.state.emergency is None
    both = say(one.state, notice(B, 20.5))
    assert both.state.emergency is not None
    assert both.state.emergency.stages == (0, 1)
    assert both.state.emergency.by_s == pytest.approx(20.0 - 1.5 * 2.0 - 1.0)
    assert "all nodes that hold stage 0 and stage 1 will be taken: within 16.0 s" in both.reason


def test_who_lives_long_enough_for_all_stores_all() -> None:
    state = say(running(), notice(A, 10.0), notice(B, 19.0)).state
    assert state.emergency is not None
    assert state.emergency.by_s == pytest.approx(19.0 - 1.5 * 4.0 - 1.0), "not 10 - 4"


def test_a_sooner_deadline_moves_it_and_a_later_one_does_not() -> None:
    state = say(running(), notice(A, 19.0), notice(B, 19.0)).state
    assert state.emergency is not None
    assert "had its notice already" in say(state, notice(A, 30.0)).reason
    sooner = say(state, notice(A, 12.0))
    assert "sooner than it said" in sooner.reason
    assert sooner.state.emergency is not None
    assert sooner.state.emergency.by_s < state.emergency.by_s
    assert sooner.state.emergency.since > state.emergency.since, "members look anew"


@pytest.mark.parametrize("redundancy", ["off", "peer"])
def test_another_pipeline_is_a_home_until_it_will_be_taken_too(redundancy: str) -> None:
    state = say(running(2, redundancy), notice(A, 20.0), policy=POLICY).state
    assert state.emergency is None
    bare = say(running(1, redundancy), notice(A, 20.0)).state
    assert bare.emergency is not None
    assert bare.emergency.stages == (0,)


def test_without_redundancy_all_hold_before_the_first_owner_is_taken() -> None:
    """Another pipeline has the stage, and without redundancy a loss ends the run all the same."""
    for redundancy, by_s in (("peer", 20.0 - 4.0), ("off", 6.0 - 1.0)):
        state = running(2, redundancy)
        for node, deadline_s in ((A, 6.0), (B, 20.0), (C, 20.0), (D, 20.0)):
            state = say(state, notice(node, deadline_s)).state
        while state.reconfiguration is not None and state.reconfiguration.base is None:
            ready = [
                BoundaryReady(node=n, since=state.reconfiguration.since, step=8)
                for n in (A, B, C, D)
            ]
            layers = {A: (0, 2), B: (2, 4), C: (0, 2), D: (2, 4)}
            state = say(state, *ready).state
            state = say(state, *(stopped(state, n, layers[n]) for n in (A, B, C, D))).state
        assert state.emergency is not None
        assert state.emergency.by_s == pytest.approx(by_s)


def test_what_does_not_fit_is_not_tried_and_said_at_the_end() -> None:
    policy = replace(POLICY, notice_s=3.9)
    decided = say(running(), notice(A, 3.9), notice(B, 3.9), policy=policy)
    assert decided.state.emergency is None
    assert "a notice of 3.9 s is too short for 1.9 MiB a stage" in decided.reason
    over = say(decided.state, lost(A), lost(B), now_s=4.0, policy=policy)
    assert over.state.outcome is Outcome.UNRECOVERABLE
    assert "a notice of 3.9 s is too short for 1.9 MiB a stage" in over.reason


def test_too_late_is_not_tried() -> None:
    late = say(say(running(), notice(A, 3.0)).state, notice(B, 1.9), now_s=1.5)
    assert late.state.emergency is None
    assert "too soon to store anything" in late.reason


def test_a_node_that_comes_in_time_ends_it() -> None:
    state = say(running(), notice(A, 20.0), notice(B, 20.0), joined("n02.1")).state
    assert state.emergency is not None, "it has nothing yet"
    (first, *_) = state.transfers
    for transfer in state.transfers:
        state = say(
            state,
            ReplicaJoined(
                node=transfer.source,
                slot=transfer.slot,
                receiver=transfer.receiver,
                since=transfer.since,
                step=5,
                bytes=1,
            ),
        ).state
    assert first.receiver == C
    assert state.emergency is None
    assert "home again" in state.sentence


# ---------------------------------------------------------------- all hold


def test_between_two_steps_all_hold_at_a_boundary_else_where_they_are() -> None:
    state = say(running(), notice(A, 20.0), notice(B, 20.0)).state
    assert state.emergency is not None
    since = state.emergency.since
    other = SaveDue(node=A, since=since - 1, at_once=False)
    assert "has a home again" in say(state, other).reason
    calm = say(state, SaveDue(node=A, since=since, at_once=False))
    assert {type(e) for e in calm.effects} == {AgreeBoundary}
    assert calm.state.reconfiguration is not None
    assert calm.state.reconfiguration.save
    ready = BoundaryReady(node=A, since=calm.state.reconfiguration.since, step=8)
    late = say(calm.state, ready, SaveDue(node=B, since=since, at_once=True))
    assert {type(e) for e in late.effects} == {Quiesce}, "a step that takes too long is left"
    again = say(late.state, SaveDue(node=A, since=since, at_once=True))
    assert "being done already" in again.reason


def test_a_stop_keeps_all_anyway() -> None:
    state = say(running(), notice(A, 20.0), notice(B, 20.0)).state
    assert state.emergency is not None
    stop = StopRequested(reason="enough", outcome=Outcome.STOPPED)
    due = SaveDue(node=A, since=state.emergency.since, at_once=False)
    assert "the run is ending" in say(state, stop, due).reason


# ---------------------------------------------------------------- it is stored


def test_each_part_once_then_the_manifest_then_all_wait() -> None:
    state = kept_of_two((20.0, 21.0))
    assert parts_of(state) == {A: (2, 3), B: (0, 1)}
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    era = state.reconfiguration.keep.era
    one = say(state, ShardSaved(node=A, step=9, era=era, stage=0))
    assert one.effects == ()
    whole = say(one.state, ShardSaved(node=B, step=9, era=era, stage=1))
    assert whole.effects == (CompleteCheckpoint(to=B, step=9, era=era),), "who lives longest"
    assert not parked(one.state), "it is being stored, and no wait for nodes"
    assert stands_for_s(one.state, step_timeout_s=60.0) > 60.0
    done = say(whole.state, CheckpointDone(node=B, step=9, era=era)).state
    assert [made.step for made in done.checkpoints] == [9]
    assert parked(done)
    gone = say(done, lost(A), lost(B)).state
    assert gone.phase is Phase.RESTORING
    assert parked(gone)


def test_who_goes_first_after_its_part_is_stored_ends_nothing() -> None:
    state = kept_of_two()
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    era = state.reconfiguration.keep.era
    state = say(state, ShardSaved(node=A, step=9, era=era, stage=0), lost(A)).state
    last = say(state, ShardSaved(node=B, step=9, era=era, stage=1))
    assert CompleteCheckpoint(to=B, step=9, era=era) in last.effects


def test_another_holder_stores_what_a_lost_node_was_to() -> None:
    state = say(kept_of_two(), lost(A)).state
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    assert [part.node for part in state.reconfiguration.keep.parts] == [B, B]


def test_the_manifest_is_given_to_another_when_its_writer_goes() -> None:
    state = kept_of_two()
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    era = state.reconfiguration.keep.era
    shards = (ShardSaved(node=n, step=9, era=era, stage=s) for s, n in enumerate((A, B)))
    whole = say(state, *shards)
    (order,) = whole.effects
    assert isinstance(order, CompleteCheckpoint)
    other = B if order.to == A else A
    assert CompleteCheckpoint(to=other, step=9, era=era) in say(whole.state, lost(order.to)).effects


def test_one_that_cannot_store_is_replaced_and_two_that_cannot_end_the_try() -> None:
    state = kept_of_two()
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    failed = CheckpointFailed(
        node=A, step=9, era=state.reconfiguration.keep.era, reason="disk full"
    )
    state = say(state, failed).state
    assert set(parts_of(state)) == {B}
    decided = say(state, replace(failed, node=B))
    assert decided.state.emergency is not None
    assert decided.state.emergency.failed
    assert decided.state.reconfiguration is not None
    assert decided.state.reconfiguration.base == 9, "they train on for as long as they are there"


def test_the_manifest_is_given_to_whoever_can_write_it_and_two_that_cannot_end_the_try() -> None:
    """A is taken first; B, who lives longest, has a full disk."""
    state = kept_of_two((20.0, 21.0))
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    era = state.reconfiguration.keep.era
    failed = CheckpointFailed(node=B, step=9, era=era, reason="disk full")
    stored = [ShardSaved(node=A, step=9, era=era, stage=stage) for stage in (0, 1)]
    assert CompleteCheckpoint(to=A, step=9, era=era) in say(state, failed, *stored).effects
    # Or it is full only when the manifest is to be written.
    order = say(state, *stored)
    assert CompleteCheckpoint(to=B, step=9, era=era) in order.effects
    again = say(order.state, failed)
    assert CompleteCheckpoint(to=A, step=9, era=era) in again.effects
    assert "it was not asked to" in say(again.state, failed).reason
    over = say(again.state, replace(failed, node=A)).state
    assert over.emergency is not None
    assert over.emergency.failed


def test_who_comes_after_all_were_taken_writes_the_manifest_and_until_then_the_run_is_parked() -> (
    None
):
    state = kept_of_two()
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    era = state.reconfiguration.keep.era
    shards = (ShardSaved(node=n, step=9, era=era, stage=s) for s, n in enumerate((A, B)))
    state = say(state, *shards, lost(A)).state
    assert not parked(state)
    state = say(state, lost(B)).state
    assert parked(state), "nobody is there who could store anything"
    came = say(state, joined("n02.1"))
    assert came.effects[-1] == CompleteCheckpoint(to=C, step=9, era=era)
    assert not parked(came.state)
    done = say(came.state, CheckpointDone(node=C, step=9, era=era), joined("n03.1")).state
    assert done.reconfiguration is not None
    assert (done.reconfiguration.base, done.reconfiguration.checkpoint) == (9, True)


def test_the_end_says_that_it_could_not_be_stored() -> None:
    state = say(running(), lost(A), notice(B, 20.0)).state
    assert state.emergency is not None
    state = say(state, SaveDue(node=B, since=state.emergency.since, at_once=True)).state
    state = say(state, stopped(state, B, (0, 4))).state
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    era, since = state.reconfiguration.keep.era, state.reconfiguration.since
    failed = CheckpointFailed(node=B, step=9, era=era, reason="disk full")
    over = say(state, failed, LayoutBuilt(node=B, since=since, bytes=0), lost(B))
    assert over.state.outcome is Outcome.UNRECOVERABLE
    assert "what it alone held could not be stored before" in over.reason


def test_a_stop_whose_step_takes_too_long_stores_what_is_there() -> None:
    """All wait for a last step that none of them lives to see."""
    state = say(running(), notice(A, 20.0), notice(B, 20.0)).state
    assert state.emergency is not None
    stop = StopRequested(reason="enough", outcome=Outcome.STOPPED)
    ready = [StopReady(node=node, step=9) for node in (A, B)]
    state = say(state, stop, *ready).state
    due = SaveDue(node=A, since=state.emergency.since, at_once=True)
    late = say(state, due)
    assert {type(e) for e in late.effects} == {Quiesce}
    state = say(late.state, *(stopped(late.state, node, (0, 4)) for node in (A, B))).state
    assert set(parts_of(state)) == {A, B}
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    era = state.reconfiguration.keep.era
    shards = (ShardSaved(node=n, step=9, era=era, stage=s) for s, n in enumerate((A, B)))
    over = say(state, *shards, CheckpointDone(node=B, step=9, era=era)).state
    assert over.outcome is Outcome.STOPPED
    assert [made.step for made in over.checkpoints] == [9]
    # Where one has written its final state all have taken the last step, and do so too.
    written = say(say(running(), notice(A, 20.0), notice(B, 20.0)).state, stop, *ready).state
    written = say(written, NodeFinished(node=A, step=9)).state
    assert written.emergency is not None
    kept = say(written, SaveDue(node=B, since=written.emergency.since, at_once=True))
    assert "the run is ending" in kept.reason


def test_who_stands_behind_the_last_step_writes_the_final_state_all_the_same() -> None:
    """Notices to all, due in the last step: nothing is left to be waited for."""
    for steps, goes_on in ((9, True), (10, False)):
        policy = replace(POLICY, steps=steps)
        state = kept_of_two()
        assert state.reconfiguration is not None
        assert state.reconfiguration.keep is not None
        era = state.reconfiguration.keep.era
        shards = (ShardSaved(node=n, step=9, era=era, stage=s) for s, n in enumerate((A, B)))
        done = CheckpointDone(node=B, step=9, era=era)
        state = say(state, *shards, done, policy=policy).state
        assert state.reconfiguration is not None
        assert parked(state) is not goes_on
        assert state.reconfiguration.base == (9 if goes_on else None)


def test_nothing_is_stored_of_a_run_that_has_taken_no_step() -> None:
    state = say(running(), notice(A, 20.0), notice(B, 20.0)).state
    assert state.emergency is not None
    state = say(state, SaveDue(node=A, since=state.emergency.since, at_once=True)).state
    state = say(state, *(stopped(state, node, (0, 4), step=0) for node in (A, B))).state
    assert parked(state)
    gone = say(state, lost(A), lost(B)).state
    assert gone.outcome is None
    new = say(gone, joined("n02.1"), joined("n03.1")).state
    assert new.reconfiguration is not None
    assert new.reconfiguration.base == 0


def test_those_who_come_meanwhile_go_on_from_live_copies() -> None:
    state = kept_of_two()
    assert state.reconfiguration is not None
    assert state.reconfiguration.keep is not None
    era = state.reconfiguration.keep.era
    state = say(state, joined("n02.1"), joined("n03.1")).state
    assert state.reconfiguration is not None
    assert state.reconfiguration.base is None, "first it is stored"
    shards = (ShardSaved(node=n, step=9, era=era, stage=s) for s, n in enumerate((A, B)))
    state = say(state, *shards, CheckpointDone(node=B, step=9, era=era)).state
    assert state.reconfiguration is not None
    assert (state.reconfiguration.base, state.reconfiguration.checkpoint) == (9, False)
    assert state.assignment is not None
    assert set(state.assignment.owners) == {C, D}
