"""Random histories of a run: every state is sound, nothing is lost while a copy lives, and once
faults stop the run always ends."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bamboo.coord.codec import decode_effects, decode_state, encode_effects, encode_state
from bamboo.core.effects import FLEET, OTHERS, Effect, End, TerminateAll
from bamboo.core.events import (
    CaughtUp,
    Event,
    FaultScope,
    HandedOver,
    NodeFinished,
    NodeLeft,
    NoticeReceived,
    RebalanceAdvised,
    ReplicaJoined,
    Speed,
    SpeedsMeasured,
    StopReady,
    StopRequested,
    StoreRefilled,
    StrategyProposed,
    StrategyReady,
    Yielded,
)
from bamboo.core.invariants import check, check_cause, check_step
from bamboo.core.state import NodeStatus, Outcome, Phase, State, Transfer
from bamboo.core.transition import live_members
from bamboo.ids import NodeId
from bamboo.topology.slots import Slot
from tests.core.build import afresh, apply, failed, forming, joined, lost
from tests.core.plain_aim import aims_plainly

STRANGER = NodeId("stranger.1")
anybody = st.integers(0, 30)
"""Resolved by `RunHistory.who`: mostly live nodes, sometimes those who went, or a stranger."""
seldom = st.integers(0, 7).map(lambda drawn: drawn == 7)


class Copies:
    """An account of its own of which live nodes hold which slot."""

    def __init__(self) -> None:
        self.holders: dict[Slot, set[NodeId]] = {}

    def follow(self, before: State, event: Event, after: State) -> None:
        if isinstance(event, ReplicaJoined) and after is not before:
            self.holders[event.slot] = {event.node, event.receiver}
        if before.assignment is None and after.assignment is not None:
            names = after.assignment
            for slot in after.grid.slots():
                pair = (names.owner(slot), names.shadow(slot))
                self.holders[slot] = {node for node in pair if node is not None}
        live = {node.id for node in after.live_nodes()}
        for holders in self.holders.values():
            holders &= live

    def all_live(self) -> bool:
        return all(self.holders.values())


class RunHistory(RuleBasedStateMachine):
    """Honest members say whatever they may say, in any order, late and twice included."""

    state: State
    now_s = 0.0

    @initialize(
        pipelines=st.integers(1, 2),
        stages=st.integers(1, 6),
        redundancy=st.sampled_from(["stash", "eager", "off"]),
        short=st.sampled_from([0, 0, 0, 2]),
    )
    def begin(self, pipelines: int, stages: int, redundancy: str, short: int) -> None:
        # A pipeline of one stage has no neighbour to keep a replica.
        self.state = forming(pipelines, stages, redundancy if stages > 1 else "off")
        self.copies = Copies()
        for index in range(self.state.grid.size - short):
            self.say(joined(f"n{index}.1", f"z{index % 2}"))

    def who(self, index: int) -> NodeId:
        live = [node.id for node in self.state.live_nodes()]
        away = [node.id for node in self.state.nodes if not node.status.live]
        choices = [*live, *live, *live, *away, STRANGER]
        return choices[index % len(choices)]

    def say(self, event: Event) -> tuple[Effect, ...]:
        self.now_s += 0.25
        before = self.state
        step = apply(before, event, self.now_s)
        assert step.reason
        assert check_step(before, step.state) == []
        assert check_cause(before, event, step.state) == []
        assert step == afresh(before, event, self.now_s)
        if step.state is before:
            assert step.effects == ()
        else:
            over = before.phase is Phase.FINISHED
            assert step.state.sentence == (before.sentence if over else step.reason)
            assert decode_effects(encode_effects(step.effects)) == step.effects
        addressees = {node.id for node in step.state.nodes} | {FLEET, OTHERS}
        assert all(effect.to in addressees for effect in step.effects)
        self.state = step.state
        self.copies.follow(before, event, step.state)
        return step.effects

    def members(self) -> list[NodeId]:
        return [node.id for node in live_members(self.state)]

    @rule(index=st.integers(0, 20), zone=st.sampled_from(["z1", "z2"]))
    def join(self, index: int, zone: str) -> None:
        self.say(joined(f"n{index}.1", zone))

    @rule(node=anybody, reporter=anybody, cause=st.sampled_from(["disconnect", "lease", "exit"]))
    def lose(self, node: int, reporter: int, cause: str) -> None:
        self.say(lost(self.who(node), self.who(reporter), cause))

    @rule(node=anybody, scope=st.sampled_from(FaultScope), now=seldom)
    def fail(self, node: int, scope: FaultScope, now: bool) -> None:
        """Mostly one that was about to join."""
        self.say(failed(self.who(node) if now else f"n{node}.1", scope))

    @rule(node=anybody, in_s=st.floats(-1, 120))
    def notice(self, node: int, in_s: float) -> None:
        self.say(NoticeReceived(node=self.who(node), deadline_s=self.now_s + in_s))

    @rule(node=anybody)
    def advise(self, node: int) -> None:
        self.say(RebalanceAdvised(node=self.who(node)))

    @rule(node=anybody, now=seldom)
    def leave(self, node: int, now: bool) -> None:
        if now:
            self.say(NodeLeft(node=self.who(node), reason="a signal"))

    @rule(index=st.integers(0, 20))
    def hand_over(self, index: int) -> None:
        told = [
            node.id
            for node in self.state.nodes
            if node.notice_deadline_s is not None and node.status is not NodeStatus.READY
        ]
        if told:
            self.say(HandedOver(node=told[index % len(told)], step=index))

    @precondition(lambda self: self.state.failovers)
    @rule(index=st.integers(0, 3))
    def catch_up(self, index: int) -> None:
        failover = self.state.failovers[index % len(self.state.failovers)]
        self.say(_caught_up(failover.successor, failover.slot))

    @precondition(lambda self: self.members())
    @rule(index=st.integers(0, 8), stage=st.integers(0, 3))
    def catch_up_of_nothing(self, index: int, stage: int) -> None:
        node = self.members()[index % len(self.members())]
        self.say(_caught_up(node, Slot(pipeline=0, stage=stage)))

    @precondition(lambda self: self.state.transfers)
    @rule(index=st.integers(0, 5), late=seldom)
    def join_replica(self, index: int, late: bool) -> None:
        event = _replica_joined(self.state.transfers[index % len(self.state.transfers)])
        self.say(event)
        if late:
            self.say(event)

    @precondition(lambda self: self.state.moves)
    @rule(index=st.integers(0, 5), late=seldom)
    def yield_slot(self, index: int, late: bool) -> None:
        move = self.state.moves[index % len(self.state.moves)]
        event = Yielded(node=move.source, slot=move.slot, since=move.since, step=4)
        self.say(event)
        if late:
            self.say(event)

    @rule(slow=anybody, rounds=st.integers(1, 3))
    def measure(self, slow: int, rounds: int) -> None:
        speeds = tuple(
            Speed(node=node, speed=0.5 if node == self.who(slow) else 1.0)
            for node in self.members()
        )
        for _ in range(rounds):
            self.say(SpeedsMeasured(reporter="launcher", era=self.state.era, speeds=speeds))

    @rule(index=anybody, now=seldom)
    def lose_store(self, index: int, now: bool) -> None:
        if now:
            self.say(StoreRefilled(reporter=self.who(index)))

    @rule(outcome=st.sampled_from([Outcome.STOPPED, Outcome.BUDGET]), now=seldom)
    def stop(self, outcome: Outcome, now: bool) -> None:
        if now:
            self.say(StopRequested(reason="enough", outcome=outcome))

    @precondition(lambda self: self.state.stop_reason is not None and self.members())
    @rule(index=st.integers(0, 8), step=st.integers(0, 3))
    def stop_ready(self, index: int, step: int) -> None:
        self.say(StopReady(node=self.members()[index % len(self.members())], step=step))

    @rule(hash=st.sampled_from("abc"))
    def propose(self, hash: str) -> None:
        self.say(StrategyProposed(reporter="launcher", hash=hash, why="a trial"))

    @precondition(lambda self: self.state.proposal is not None)
    @rule(index=anybody, begun=st.integers(-1, 20), refuses=seldom)
    def strategy_ready(self, index: int, begun: int, refuses: bool) -> None:
        """Most of those who are asked answer in a row."""
        proposal, asked = self.state.proposal, sorted(self.state.participants())
        assert proposal is not None
        for node in (self.who(index), *asked[: index % (2 * len(asked) + 1)]):
            if node != STRANGER:
                self.say(
                    StrategyReady(
                        node=node,
                        since=proposal.since,
                        begun=begun,
                        oldest=max(0, begun - index % 2),
                        refused="no" if refuses else "",
                    )
                )

    @precondition(lambda self: self.members())
    @rule(index=st.integers(0, 8))
    def finish(self, index: int) -> None:
        self.say(NodeFinished(node=self.members()[index % len(self.members())], step=9))

    @invariant()
    def sound(self) -> None:
        assert check(self.state) == []
        assert decode_state(encode_state(self.state)) == self.state

    @invariant()
    def it_aims_plainly(self) -> None:
        if self.state.assignment is not None and self.state.phase is not Phase.FINISHED:
            assert aims_plainly(self.state)

    @invariant()
    def lost_only_without_a_copy(self) -> None:
        if self.state.phase is not Phase.FINISHED:
            assert self.copies.all_live()
        if self.state.outcome is Outcome.UNRECOVERABLE:
            assert not self.copies.all_live()
            assert "no live node holds stage" in self.state.sentence

    def teardown(self) -> None:
        """Faults stop; everybody does what he is asked to do: then the run ends, always."""
        effects = _heal(self)
        assert self.state.phase is Phase.FINISHED
        assert self.state.outcome is not None
        if effects:
            told = {effect.to for effect in effects if isinstance(effect, End)}
            assert told == {node.id for node in self.state.live_nodes()}
            assert isinstance(effects[-1], TerminateAll)


def _heal(history: RunHistory) -> tuple[Effect, ...]:
    """Let honest members finish; the effects of the end, none when it had come already."""
    effects: tuple[Effect, ...] = ()
    fresh = iter(range(100))
    for _ in range(100):
        event = _next_honest(history.state, lambda: f"fresh{next(fresh)}.1")
        if event is None:
            return effects
        effects = history.say(event)
    raise AssertionError(f"the run does not end: {history.state.sentence}")


def _next_honest(state: State, fresh: Callable[[], str]) -> Event | None:
    if state.phase is Phase.FINISHED:
        return None
    if state.phase is Phase.FORMING:
        return joined(fresh())
    draining = [n.id for n in state.nodes if n.status is NodeStatus.DRAINING]
    if draining:
        return HandedOver(node=draining[0], step=9)
    if state.failovers:
        return _caught_up(state.failovers[0].successor, state.failovers[0].slot)
    members = [node.id for node in live_members(state)]
    if state.stop_reason is not None and state.stop_at_step is None:
        answered = [node for node, _ in state.stop_ready]
        return StopReady(node=next(n for n in members if n not in answered), step=8)
    assert state.assignment is not None
    owners = [node for node in members if state.assignment.owned_by(node)]
    return NodeFinished(node=next(n for n in owners if n not in state.finished), step=9)


def _replica_joined(transfer: Transfer) -> ReplicaJoined:
    return ReplicaJoined(
        node=transfer.source,
        slot=transfer.slot,
        receiver=transfer.receiver,
        since=transfer.since,
        step=4,
        bytes=1_200_000,
    )


def _caught_up(node: NodeId, slot: Slot) -> CaughtUp:
    return CaughtUp(node=node, slot=slot, step=3, recomputed=2, already_computed=1, pause_s=0.1)


@pytest.mark.timeout(300)
class TestRunHistory(RunHistory.TestCase):
    settings = settings(max_examples=40, stateful_step_count=40)


@pytest.mark.full
@pytest.mark.timeout(600)
class TestManyHistories(RunHistory.TestCase):
    settings = settings(max_examples=240, stateful_step_count=40)
