"""Each checker turns red on a history made bad by hand, and is silent on a good one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bamboo.core.effects import FLEET, CompleteCheckpoint, TerminateAll
from bamboo.core.events import (
    CaughtUp,
    CheckpointDamaged,
    CheckpointDone,
    Event,
    NodeFinished,
    PeerLost,
    Quiesced,
    Reconsider,
    RunFailed,
    ShardSaved,
    Stalled,
    StopRequested,
    StoreRefilled,
)
from bamboo.core.state import (
    Checkpoint,
    Fact,
    Failover,
    NodeStatus,
    Outcome,
    Phase,
    Reconfiguration,
    State,
    Transfer,
)
from bamboo.core.transition import Transition
from bamboo.ids import NodeId
from bamboo.topology.slots import Slot
from testbed.swarm.cluster import Cluster
from testbed.swarm.copies import Copy, Kept
from testbed.swarm.red import Red
from testbed.swarm.scenario import Scenario
from testbed.swarm.store import Entry

PLAIN = Scenario(stages=3, layers=3, checkpoint_every=4, heal_s=2.0, steps=40, step_s=0.2)
STAGE_0, STAGE_1 = Slot(pipeline=0, stage=0), Slot(pipeline=0, stage=1)
NOTHING = Reconsider(reporter="cli", reason="it may pay")


def trained(scenario: Scenario = PLAIN) -> Cluster:
    """A world after some seconds without faults."""
    world = Cluster(scenario)
    world.agenda.run(until_s=4.0, over=lambda: False)
    assert world.log.state.phase is Phase.RUNNING
    return world


def entry(
    world: Cluster,
    event: Event = NOTHING,
    *,
    author: str = "cli",
    before: State | None = None,
    effects: tuple[Any, ...] = (),
    **changes: Any,
) -> Entry:
    """A decision as the log would have it, with these changes of the state."""
    old = before or world.log.state
    new = replace(old, **({"version": old.version + 1, "sentence": "so it is"} | changes))
    return Entry(new.version, author, event, old, new, effects, "so it is")


SPARE = NodeId("i09.1")


def with_spare(state: State, status: NodeStatus, *, deadline_s: float | None = None) -> State:
    """The state with one node more, that owns nothing."""
    spare = replace(state.nodes[0], id=SPARE, status=status, notice_deadline_s=deadline_s)
    return replace(state, nodes=(*state.nodes, spare))


def owner(world: Cluster, slot: Slot) -> Any:
    assert world.log.state.assignment is not None
    member = world.member(world.log.state.assignment.owner(slot))
    assert member is not None
    return member


def reconfiguration(world: Cluster, **changes: Any) -> Reconfiguration:
    asked = tuple(node.id for node in world.log.state.nodes)
    given = {"since": 99, "why": "x", "planned": False, "intact": True, "asked": asked}
    return Reconfiguration(**(given | changes))


def anew(world: Cluster, base: int, *, checkpoint: bool = False) -> Entry:
    """All have stopped, and go on from `base`."""
    state = world.log.state
    before = replace(state, phase=Phase.RECONFIGURING, reconfiguration=reconfiguration(world))
    decided = reconfiguration(world, base=base, checkpoint=checkpoint)
    return entry(world, before=before, reconfiguration=decided, generation=state.generation + 1)


def account(world: Cluster, step: int) -> None:
    """Every node has said that it holds its stage as it is before `step`."""
    for stage, member in enumerate(world.members):
        kept = Kept(stopped=[(stage, stage + 1, step, step)])
        world.checkers.quiesced(member, 99, kept)


def ends(world: Cluster, event: Event, outcome: Outcome, **changes: Any) -> Entry:
    over: dict[str, Any] = {
        "phase": Phase.FINISHED,
        "outcome": outcome,
        "failovers": (),
        "reconfiguration": None,
    }
    over |= {"effects": (TerminateAll(to=FLEET),)}
    return entry(world, event, **(over | changes))


NO_CAPACITY = RunFailed(reporter="cli", outcome=Outcome.UNRECOVERABLE, reason="too few nodes came")
DONE = NodeFinished(node=NodeId("i00.1"), step=39)


def gone_speaks(world: Cluster) -> Entry:
    before = with_spare(world.log.state, NodeStatus.GONE)
    event = ShardSaved(node=NodeId("i01.1"), step=4, era=1, stage=1)
    return entry(world, event, author=SPARE, before=before)


def word_of_the_gone(world: Cluster) -> Entry:
    before = with_spare(world.log.state, NodeStatus.LEFT)
    event = Quiesced(node=SPARE, since=3, holdings=(), norms=())
    return entry(world, event, author="i01.1", before=before)


def caught_up_too_early(world: Cluster) -> Entry:
    member = owner(world, STAGE_0)
    member.owned[STAGE_0].hit = 3
    failover = Failover(
        slot=STAGE_0, victim=NodeId("x.1"), successor=member.node, decided_at_s=1.0, planned=True
    )
    state = replace(world.log.state, failovers=(failover,), phase=Phase.FAILING_OVER)
    event = CaughtUp(
        node=member.node, slot=STAGE_0, step=1, recomputed=0, already_computed=0, pause_s=0.0
    )
    return entry(world, event, before=state, failovers=(), phase=Phase.RUNNING)


def given_to_the_leaving(world: Cluster) -> Entry:
    before = with_spare(world.log.state, NodeStatus.READY, deadline_s=9.0)
    source = owner(world, STAGE_0).node
    sent = Transfer(slot=STAGE_0, source=source, receiver=SPARE, since=1)
    return entry(world, before=before, transfers=(sent,), generation=before.generation + 1)


LOG: list[tuple[str, Callable[[Cluster], Entry]]] = [
    ("invariants: version goes", lambda w: entry(w, version=99)),
    ("invariants: the phase is", lambda w: entry(w, phase=Phase.DEGRADED)),
    ("fenced: i09.1 is gone", gone_speaks),
    ("fenced: i09.1 is left", word_of_the_gone),
    ("generation: refilled", lambda w: entry(w, StoreRefilled(reporter="i01.1"))),
    ("caught up: the failover", caught_up_too_early),
    ("given: i09.1 has a notice", given_to_the_leaving),
    (
        "complete: .* without",
        lambda w: entry(w, effects=(CompleteCheckpoint(to=NodeId("i00.1"), step=8, era=1),)),
    ),
    (
        "complete: .* no manifest",
        lambda w: entry(w, checkpoints=(Checkpoint(step=99, era=1),)),
    ),
    ("base: .* 5, which nobody", lambda w: anew(w, 5)),
    ("base: .* 4, 6 could be had", lambda w: anew(w, 4, checkpoint=True)),
    ("restore: step 5", lambda w: anew(w, 5, checkpoint=True)),
    ("saved: step 6", lambda w: anew(w, 6, checkpoint=True)),
    ("outcome: .* nobody asked", lambda w: ends(w, NOTHING, Outcome.BUDGET)),
    ("outcome: a fault", lambda w: ends(w, NOTHING, Outcome.FAULT)),
    ("written: .* done, by", lambda w: ends(w, NOTHING, Outcome.DONE)),
    ("written: .* slot 0.0 stands", lambda w: ends(w, DONE, Outcome.DONE)),
    (
        "fleet: .* instances are kept",
        lambda w: ends(w, NO_CAPACITY, Outcome.UNRECOVERABLE, effects=()),
    ),
    ("given up: there are", lambda w: ends(w, NOTHING, Outcome.UNRECOVERABLE)),
]


@pytest.mark.parametrize(("said", "bad"), LOG, ids=[said for said, _ in LOG])
def test_a_bad_decision_is_red(said: str, bad: Callable[[Cluster], Entry]) -> None:
    world = trained()
    account(world, 6)
    world.vault.complete.add(6)
    if said.startswith(("base: .* 4", "saved")):
        four, six = Checkpoint(step=4, era=1), Checkpoint(step=6, era=1)
        world.vault.complete.add(4)
        kept = (four, six) if said.startswith("saved") else (four,)
        world.log.state = replace(world.log.state, checkpoints=kept)
        world.checkers._stored |= {made.step for made in kept}
    with pytest.raises(Red, match=said):
        world.checkers.committed(bad(world))


def test_good_decisions_are_not_red() -> None:
    world = trained()
    account(world, 6)
    world.checkers.committed(entry(world))
    world.checkers.committed(anew(world, 6))
    refilled = StoreRefilled(reporter="i01.1")
    world.checkers.committed(entry(world, refilled, generation=world.log.state.generation + 1))
    world.checkers.committed(ends(world, NO_CAPACITY, Outcome.UNRECOVERABLE))


def test_who_gives_up_what_live_nodes_hold_is_red() -> None:
    world = trained(replace(PLAIN, elastic=False))
    event = PeerLost(node=NodeId("x.1"), reporter="cli", cause="exit")
    with pytest.raises(Red, match="given up: live nodes"):
        world.checkers.committed(ends(world, event, Outcome.UNRECOVERABLE))


def test_a_node_that_computes_otherwise_is_red() -> None:
    world = trained()
    known = world.log.state.attested
    assert known is not None
    world.checkers.committed(entry(world))
    other = replace(known, numerics=(Fact(name="device", value="another"),))
    for attested in (other, None):
        with pytest.raises(Red, match=r"numerics: .* joined with"):
            world.checkers.committed(entry(world, attested=attested))
    world.members[0].numerics = other.numerics
    with pytest.raises(Red, match=r"numerics: i00\.1 joined with"):
        world.checkers.committed(entry(world))


def test_a_stop_that_is_not_heeded_is_red() -> None:
    world = trained()
    stop = StopRequested(reason="the budget is spent", outcome=Outcome.BUDGET)
    asked = entry(world, stop, stop_reason="x", stop_outcome=Outcome.BUDGET)
    world.checkers.committed(asked)
    world.agenda.now_s += 60.0
    with pytest.raises(Red, match="budget: asked to stop at 4 s"):
        world.checkers.committed(ends(world, DONE, Outcome.DONE, before=asked.state))


STOP = StopRequested(reason="the budget is spent", outcome=Outcome.BUDGET)


def test_a_stop_that_is_not_noted_is_red() -> None:
    world = trained()
    nothing = Transition(state=world.log.state, effects=(), reason="stale")
    with pytest.raises(Red, match=r"budget: .* is not noted"):
        world.checkers.stale("launcher", STOP, world.log.state, nothing)
    with pytest.raises(Red, match=r"budget: .* is not noted"):
        world.checkers.committed(entry(world, STOP))
    noted = replace(world.log.state, stop_reason="enough")
    world.checkers.stale("launcher", STOP, noted, replace(nothing, state=noted))


def test_a_stop_after_a_step_that_nobody_has_begun_is_red() -> None:
    world = trained()
    begun = max(member.begun_step() for member in world.members)
    asked: dict[str, Any] = {"stop_reason": "enough", "stop_outcome": Outcome.STOPPED}
    world.checkers.committed(entry(world, stop_at_step=begun, **asked))
    with pytest.raises(Red, match=r"budget: .* nobody has begun one after"):
        world.checkers.committed(entry(world, stop_at_step=begun + 1, **asked))


def test_a_checkpoint_that_the_core_forgot_still_counts() -> None:
    world = trained()
    world.vault.complete |= {4, 8}
    made = entry(world, CheckpointDone(node=NodeId("i00.1"), step=8, era=1), author="i00.1")
    world.checkers.committed(made)
    world.log.state = replace(world.log.state, checkpoints=(Checkpoint(step=4, era=1),))
    with pytest.raises(Red, match=r"base: .* 4, 8 could be had"):
        world.checkers.committed(anew(world, 4, checkpoint=True))
    damaged = CheckpointDamaged(node=NodeId("i00.1"), step=8, reason="torn")
    world.checkers.committed(entry(world, damaged, author="i00.1"))
    world.checkers._stored.add(4)
    world.checkers.committed(anew(world, 4, checkpoint=True))


def test_without_checkpoints_nothing_is_given_up_that_live_nodes_have() -> None:
    world = trained(replace(PLAIN, checkpoint_every=0))
    state = replace(
        world.log.state, phase=Phase.RECONFIGURING, reconfiguration=reconfiguration(world)
    )
    event = PeerLost(node=NodeId("x.1"), reporter="cli", cause="exit")
    bad = ends(world, event, Outcome.UNRECOVERABLE, before=state)
    world.checkers.committed(bad)
    account(world, 6)
    with pytest.raises(Red, match="given up: live nodes have all of a step"):
        world.checkers.committed(bad)


def test_effects_of_nothing_are_red() -> None:
    world = trained()
    order = CompleteCheckpoint(to=NodeId("i00.1"), step=4, era=1)
    nothing = Transition(state=world.log.state, effects=(order,), reason="stale")
    with pytest.raises(Red, match="stale"):
        world.checkers.stale("cli", NOTHING, world.log.state, nothing)


# ---------------------------------------------------------------- who acts, and steps


def acting(world: Cluster, step: int) -> tuple[Any, Copy]:
    member = owner(world, STAGE_0)
    copy = member.owned[STAGE_0]
    copy.step = step
    return member, copy


def test_two_who_act_under_one_generation_are_red() -> None:
    world = trained()
    member, copy = acting(world, world.plane.done)
    world.checkers.stepped(member, copy)
    other = owner(world, STAGE_1)
    with pytest.raises(Red, match=r"owner: .* as "):
        world.checkers.stepped(other, Copy(STAGE_0, 0, 1, copy.step))
    other.owned[STAGE_0] = Copy(STAGE_0, 0, 1, 1)
    world.plane.changed()
    with pytest.raises(Red, match=r"owner: .* own slot 0.0 under generation 1"):
        world.plane.rows  # noqa: B018


@pytest.mark.parametrize(
    ("by", "said"), [(3, "takes step"), (-4, "again"), (-1, "twice")], ids=["skip", "far", "twice"]
)
def test_steps_come_one_after_another(by: int, said: str) -> None:
    world = trained()
    assert world.plane.done > 4
    member, copy = acting(world, world.plane.done + by)
    if said == "again":  # by a successor, which acts under another generation
        world.checkers.fell_back(0)
        world.checkers._taken[(member.era, STAGE_0)] = world.plane.done
    with pytest.raises(Red, match=f"steps: .*{said}"):
        world.checkers.stepped(member, copy)


def test_a_step_beyond_the_agreed_one_is_red() -> None:
    world = trained()
    member, copy = acting(world, world.plane.rows[0].copy.step)
    world.log.state = member.view = replace(world.log.state, stop_at_step=copy.step - 1)
    with pytest.raises(Red, match="stop: "):
        world.checkers.stepped(member, copy)


def test_a_successor_needs_a_replica_that_others_can_serve() -> None:
    world = trained()
    member = owner(world, STAGE_0)
    with pytest.raises(Red, match=r"replica: .* has no replica"):
        world.checkers.promoted(member, STAGE_1, None)
    world.plane.pruned = 5
    with pytest.raises(Red, match=r"replica: .* nobody keeps"):
        world.checkers.promoted(member, STAGE_1, Copy(STAGE_1, 1, 2, 4))
    world.checkers.promoted(member, STAGE_1, Copy(STAGE_1, 1, 2, 5))


def test_an_instance_that_takes_part_is_not_ended() -> None:
    world = trained()
    with pytest.raises(Red, match="fleet: "):
        world.checkers.terminated(world.members[0])


def test_who_goes_on_has_all_that_it_is_to_have() -> None:
    world = trained()
    kept = Kept(stopped=[(0, 1, 6, 6)], fetched={(5, 1)})
    with pytest.raises(Red, match=r"built: .* lacks layers \[1\]"):
        world.checkers.goes_on(world.members[0], 6, {0, 1}, kept)


# ---------------------------------------------------------------- time goes by


def test_a_standstill_is_red_once_all_is_healed() -> None:
    world = trained()
    world.liveness.sweep()
    world.agenda.now_s += 30.0
    world.liveness.sweep()
    world.agenda.now_s += 60.0
    with pytest.raises(Red, match="standstill: nothing moves"):
        world.liveness.sweep()
    with pytest.raises(Red, match="standstill: the run is not over"):
        world.checkers.over(world.log.state)


def test_a_slot_that_stays_bare_is_red() -> None:
    world = trained()
    assignment = world.log.state.assignment
    assert assignment is not None
    bare = assignment.replace(owners={}, shadows={STAGE_0: None})
    world.log.state = replace(world.log.state, assignment=bare, phase=Phase.DEGRADED)
    world.liveness.sweep()
    world.agenda.now_s += 25.0
    with pytest.raises(Red, match="protection: "):
        world.liveness.sweep()


def test_a_fault_that_was_said_is_not_red() -> None:
    world = trained()
    world.checkers.stalls = 1
    event = Stalled(node=NodeId("i00.1"), era=1, step=3, reason="no message came")
    world.checkers.committed(ends(world, event, Outcome.FAULT))
    done = CheckpointDone(node=NodeId("i00.1"), step=4, era=1)
    world.checkers.committed(entry(world, done, author="i00.1"))
