"""Reconfigurations: whose loss counts, whose word counts, and which stall is broken."""

from dataclasses import replace

import pytest

from bamboo.core.events import (
    BoundaryReady,
    CheckpointDamaged,
    Event,
    NodesReleased,
    NoticeReceived,
    Pace,
    PaceMeasured,
    Quiesced,
    Reconsider,
    Stalled,
    StopRequested,
)
from bamboo.core.invariants import check
from bamboo.core.machine import transition
from bamboo.core.next_layout import WORTH
from bamboo.core.reconfiguration import begin_reconfiguration, usable_nodes, usable_number
from bamboo.core.rounds import held_at
from bamboo.core.state import (
    Checkpoint,
    GridTime,
    Holding,
    NodeStatus,
    Outcome,
    Phase,
    Policy,
    Report,
    Saving,
    State,
    Transfer,
)
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


def resting() -> State:
    """Four nodes train on two pipelines."""
    return said(forming(2, 2, "stash"), *(joined(n) for n in "abcd"))


def test_a_layout_is_made_anew_from_nothing_of_the_old_one() -> None:
    """Whatever is under way when all stop is over; what has been asked of the run stays."""
    state = resting()
    slot = state.grid.slots()[0]
    busy = replace(
        state,
        transfers=(Transfer(slot=slot, source=NodeId("a"), receiver=NodeId("x"), since=1),),
        finished=(NodeId("a"),),
        stop_reason="enough",
        stop_outcome=Outcome.STOPPED,
        stop_ready=((NodeId("a"), 3),),
        stop_at_step=4,
        saving=(Saving(step=4, stages=(0,)),),
    )
    after, orders = begin_reconfiguration(busy, why="x", planned=False)
    assert {order.to for order in orders} == {"a", "b", "c", "d"}
    assert (after.transfers, after.finished, after.stop_ready, after.saving) == ((), (), (), ())
    assert (after.stop_at_step, after.preparing) == (None, None)
    assert (after.stop_reason, after.generation) == ("enough", busy.generation + 1)


def test_what_is_asked_for_is_asked_once() -> None:
    """Whoever says again that no node comes changes nothing, before and after the base."""
    event = Reconsider(reporter="fleet", reason="no node came")
    state = said(resting(), Stalled(node=NodeId("a"), era=1, step=3, reason="it waits in vain"))
    forced = said(state, event)
    assert forced.reconfiguration is not None
    assert forced.reconfiguration.forced
    assert said(forced, event) is forced
    assert state.reconfiguration is not None
    decided = replace(state, reconfiguration=replace(state.reconfiguration, base=3))
    assert said(decided, event) is decided
    assert said(resting(), event).reconfiguration is None, "nothing better is to be had"


def test_nodes_are_counted_as_they_are_listed() -> None:
    """Those that stay; without any, those whom no cloud takes; without any, all."""
    state = resting()

    def of(**changes: dict[str, object]) -> list[str]:
        nodes = tuple(replace(n, **changes.get(n.id, {})) for n in state.nodes)  # type: ignore[arg-type]
        now = replace(state, nodes=nodes)
        assert usable_number(now) == len(usable_nodes(now))
        return [node.id for node in usable_nodes(now)]

    told: dict[str, object] = {"notice_deadline_s": 9.0}
    back: dict[str, object] = {"released": True}
    assert of() == ["a", "b", "c", "d"]
    assert of(a=told, b=back) == ["c", "d"]
    assert of(a=told, b=back, c=back, d=told) == ["b", "c"]
    assert of(a=told, b=told, c=told, d=told) == ["a", "b", "c", "d"]


def test_without_shadows_a_node_with_two_stages_gives_one_to_the_first_that_comes() -> None:
    state = said(forming(1, 2, "off"), joined("a"), joined("b"))
    assert state.assignment is not None
    both = dict.fromkeys(state.grid.slots(), NodeId("a"))
    alone = replace(
        state, nodes=state.nodes[:1], assignment=state.assignment.replace(owners=both, shadows={})
    )
    after = transition(alone, joined("c"), now_s=1.0, policy=POLICY)
    assert after.state.preparing is not None
    assert "nodes for every stage of 1 x 2" in after.reason


def test_a_step_that_a_node_could_take_counts_where_the_norm_is_known() -> None:
    report = Report(
        node=NodeId("a"), holdings=(Holding(first=0, stop=2, step=3, reach=4),), norms=()
    )
    assert held_at(report, 3, None) == held_at(report, 3, 1.0) == {0, 1}
    assert held_at(report, 4, 1.0) == {0, 1}
    assert held_at(report, 4, None) == held_at(report, 5, 1.0) == held_at(report, 2, 1.0) == set()


def test_a_slow_pipeline_has_a_smaller_share_in_the_new_layout() -> None:
    state = said(forming(2, 2, "stash"), *(joined(n) for n in "abcd"))
    paces = tuple(
        Pace(node=NodeId(n), microbatch_s=s)
        for n, s in zip("abcd", (0.01, 0.01, 0.03, 0.01), strict=True)
    )
    state = said(state, PaceMeasured(reporter="fleet", era=state.era, paces=paces))
    assert state.reconfiguration is not None
    assert sorted(state.reconfiguration.shares) == [1, 3]
    wanted, since = state.reconfiguration.shares, state.reconfiguration.since
    ready = [BoundaryReady(node=NodeId(n), since=since, step=3) for n in "abcd"]
    held = [
        Quiesced(node=NodeId(n), since=since, holdings=holds(0, 4, 4), norms=()) for n in "abcd"
    ]
    state = said(state, *ready, *held)
    assert state.shares == wanted


@pytest.mark.parametrize("known", [True, False])
def test_a_layout_that_cannot_change_does_not(known: bool) -> None:
    """Without cuts, and before the first assignment, nobody is given back and nothing is shared
    out."""
    state = resting() if known else said(forming(2, 2, "stash"), joined("a"))
    policy = Policy() if known else POLICY
    for event in (
        NodesReleased(reporter="fleet", nodes=(NodeId("a"),), reason="they cost"),
        Reconsider(reporter="fleet", reason="x"),
        PaceMeasured(reporter="fleet", era=state.era, paces=()),
    ):
        after = transition(state, event, now_s=1.0, policy=policy)
        assert after.state is state
        assert "layout" in after.reason


def test_as_many_stay_as_are_wanted_or_a_whole_pipeline() -> None:
    state = resting()
    two = NodesReleased(reporter="fleet", nodes=(NodeId("c"), NodeId("d")), reason="they cost")
    assert said(state, replace(two, keep=3)) is state
    for event in (two, replace(two, keep=2)):
        after = said(state, event)
        assert [node.id for node in after.nodes if node.released] == ["c", "d"]
    three = replace(two, nodes=(NodeId("b"), *two.nodes))
    assert said(state, three) is state, "one node is no pipeline"


@pytest.mark.parametrize("reported", [True, False])
def test_what_is_lost_with_a_node_that_stops_is_not_intact(reported: bool) -> None:
    """It is, while all that a lost node held lies elsewhere as well."""
    state = said(resumed("off"), joined("c"), policy=SAVING)
    assert state.reconfiguration is not None
    assert state.reconfiguration.intact
    since = state.reconfiguration.since
    if reported:
        held = Quiesced(node=NodeId("b"), since=since, holdings=holds(0, 2, 4), norms=())
        state = said(state, held, policy=SAVING)
    state = said(state, lost("b"), policy=SAVING)
    assert state.reconfiguration is not None
    assert state.reconfiguration.intact is not reported


def test_who_has_a_shadow_hands_over_and_who_has_none_waits_for_nodes_that_can_take_all() -> None:
    told = NoticeReceived(node=NodeId("a"), deadline_s=99.0)
    shadowed = said(resting(), told)
    assert shadowed.reconfiguration is None
    assert [n.id for n in shadowed.nodes if n.status is NodeStatus.DRAINING] == ["a"]
    bare = said(forming(2, 2, "off"), *(joined(n) for n in "abcd"))
    assert said(bare, told).reconfiguration is not None, "three are enough for one pipeline"
    two = said(forming(1, 2, "off"), joined("a"), joined("b"), told)
    assert two.reconfiguration is None, "it goes on, since nobody could take its place"
    after = transition(two, joined("c"), now_s=1.0, policy=POLICY)
    assert after.state.reconfiguration is not None
    assert after.state.reconfiguration.planned
    assert "1 nodes with a notice can go" in after.reason


@pytest.mark.parametrize(
    ("better_s", "worth"), [(WORTH * 100, True), (WORTH * 100 + 0.1, False), (None, True)]
)
def test_a_larger_grid_is_taken_where_its_steps_are_enough_faster(
    better_s: float | None, worth: bool
) -> None:
    """Without the planner's figures, where it has more whole pipelines."""
    times = {(1, 2): 100.0, (2, 2): better_s} if better_s is not None else {}
    grids = tuple(GridTime(pipelines=p, stages=s, step_s=t) for (p, s), t in times.items())
    policy = replace(POLICY, grids=grids)
    state = said(forming(1, 2, "stash"), *(joined(n) for n in "abcd"), policy=policy)
    assert (state.preparing is not None) is worth


def test_a_run_that_waits_to_be_restored_says_from_what_it_goes_on() -> None:
    state = said(resumed("off"), lost("b"), policy=SAVING)
    assert state.reconfiguration is not None
    since = state.reconfiguration.since
    empty = Quiesced(node=NodeId("a"), since=since, holdings=(), norms=())
    state = said(state, empty, policy=SAVING)
    assert state.reconfiguration is not None
    assert (state.phase, state.reconfiguration.base) == (Phase.RESTORING, None)
    assert state.reconfiguration.checkpoint
    state = said(state, joined("c"), policy=SAVING)
    assert state.reconfiguration is not None
    assert (state.reconfiguration.base, state.reconfiguration.checkpoint) == (4, True)


@pytest.mark.parametrize(("redundancy", "base"), [("off", (4, True)), ("peer", (9, False))])
def test_without_redundancy_a_loss_leads_back_to_the_checkpoint(
    redundancy: str, base: tuple[int, bool]
) -> None:
    """Also where another pipeline has every layer: the mode says that nothing is taken from it."""
    state = said(forming(2, 2, redundancy), *(joined(n) for n in "abcd"), policy=SAVING)
    state = replace(state, checkpoints=(Checkpoint(step=4, era=1),))
    state = said(state, lost("a"), policy=SAVING)
    assert state.reconfiguration is not None
    assert not state.reconfiguration.intact
    since, parts = state.reconfiguration.since, {"b": (2, 4), "c": (0, 2), "d": (2, 4)}
    held = [
        Quiesced(node=NodeId(n), since=since, holdings=holds(*parts[n], 9), norms=()) for n in parts
    ]
    state = said(state, *held, policy=SAVING)
    assert state.reconfiguration is not None
    assert (state.reconfiguration.base, state.reconfiguration.checkpoint) == base
