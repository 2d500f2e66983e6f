"""Random histories of a run whose layout may change: what a decision may use is what honest nodes
hold, by an account of its own; and once faults stop the run trains again, or has said why not.

The world here is a set of nodes with the step before which each holds each layer. A node that stops
says so truly; in a new layout it then has what it was given. Checkers: the base is the newest step
that all layers are to be had for; nothing is read from a checkpoint while all are alive; a run ends
unrecoverable only if some layer is nowhere; whatever is sent is what its receiver lacked.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bamboo.core.effects import GoOn
from bamboo.core.events import (
    CheckpointDamaged,
    CheckpointDone,
    CheckpointFailed,
    Event,
    FaultScope,
    NodesReleased,
    NoticeReceived,
    Pace,
    PaceMeasured,
    Reconsider,
    ShardSaved,
    Speed,
    SpeedsMeasured,
    StopRequested,
    StrategyProposed,
    StrategyReady,
)
from bamboo.core.invariants import check, check_cause, check_step
from bamboo.core.machine import transition
from bamboo.core.reconfiguration import checkpoints_of
from bamboo.core.state import NodeStatus, Outcome, Phase, Policy, State, initial_state
from bamboo.core.transition import live_members
from bamboo.ids import run_id
from bamboo.topology.grid import Grid
from tests.core.build import afresh, failed, joined, lost
from tests.core.honest import LAYERS, Honest
from tests.core.plain_aim import aims_plainly

CUTS = tuple(tuple(s * LAYERS // n for s in range(n + 1)) for n in range(1, 6))
draw = st.integers(0, 40)
seldom = st.integers(0, 9).map(lambda drawn: drawn == 9)


class World(Honest, RuleBasedStateMachine):
    """`held[node][layer]` is the step before which a live node has the layer."""

    now_s = 0.0
    nodes = 0

    @initialize(
        pipelines=st.integers(1, 3),
        stages=st.integers(1, 5),
        redundancy=st.sampled_from(["stash", "stash", "peer", "off"]),
        every=st.sampled_from([0, 3]),
        spread=st.sampled_from(["one", "neighbours"]),
    )
    def begin(self, pipelines: int, stages: int, redundancy: str, every: int, spread: str) -> None:
        least = min(2, stages)
        if stages == 1 and redundancy == "stash":
            redundancy = "peer"  # there is no neighbour to keep a replica
        self.policy = Policy(
            cuts=tuple(cut for cut in CUTS if least < len(cut) <= stages + 1),
            virtual_nodes=4,
            pipelines=3,
            stages=stages,
            checkpoint_every=every,
            spread=spread,
        )
        grid = Grid(pipelines=pipelines, stages=stages)
        self.state = initial_state(run=run_id("test"), grid=grid, redundancy=redundancy)
        self.held, self.fed = {}, {}
        self.lost_some = False
        """Whether anything that a node held went with it since all began, or went on, last."""
        self.stored: dict[int, set[int]] = {}
        for _ in range(grid.size):
            self.join()

    # ---------------------------------------------------------------- the world

    def say(self, event: Event) -> None:
        self.now_s += 0.25
        before = self.state
        decided = transition(before, event, now_s=self.now_s, policy=self.policy)
        after = decided.state
        assert decided.reason
        assert decided == afresh(before, event, self.now_s, self.policy)
        assert check(after) == []
        assert check_step(before, after) == []
        assert check_cause(before, event, after) == []
        self.state = after
        if after.preparing is not None or (
            after.reconfiguration is None and before.reconfiguration is None
        ):
            self.fed = {}
        self.forget_the_dead()
        if before.assignment is None and after.assignment is not None:
            self.give_all(0)
        if before.reconfiguration is None or before.reconfiguration.base is None:
            self.check_base(after)
        if any(isinstance(effect, GoOn) for effect in decided.effects):
            assert before.reconfiguration is not None
            self.step = before.reconfiguration.base
            self.check_all_held()
            roles = {node.id for node in live_members(after)}
            self.held = {node: held for node, held in self.held.items() if node in roles}
            self.lost_some = False

    def forget_the_dead(self) -> None:
        """And what others have given away: whoever shadows a slot no more drops its replica."""
        live = {node.id for node in self.state.live_nodes()}
        alone = {node: held.keys() - self.fed.get(node, set()) for node, held in self.held.items()}
        self.lost_some |= any(alone[node] for node in self.held.keys() - live)
        self.held = {node: held for node, held in self.held.items() if node in live}
        if self.state.assignment is not None and self.state.reconfiguration is None:
            for node, held in self.held.items():
                self.held[node] = {x: held[x] for x in held.keys() & self.wants(node)}

    def give_all(self, step: int) -> None:
        """Everybody who works has what he is to have as it is before `step`."""
        for node in live_members(self.state):
            self.held[node.id] = dict.fromkeys(self.wants(node.id), step)

    def newest(self) -> tuple[int, bool] | None:
        """By the account: the newest step to go on from, and whether live nodes have all of it."""
        counted = self.held.values()
        if self.state.redundancy == "off" and self.lost_some:
            counted = ()
        steps = {step for held in counted for step in held.values()}
        kept = {done.step for done in checkpoints_of(self.state, self.policy)}
        for step in sorted(steps | kept, reverse=True):
            live = {layer for held in counted for layer in held if held[layer] == step}
            if len(live) == LAYERS:
                return step, True
            if step in kept:
                return step, False
        return None

    def check_base(self, after: State) -> None:
        """A base that was decided just now is the best there is."""
        if after.outcome is Outcome.UNRECOVERABLE:
            assert self.some_layer_is_nowhere()
        if after.reconfiguration is None or after.reconfiguration.base is None:
            return
        found = self.newest()
        assert found is not None
        assert (after.reconfiguration.base, not after.reconfiguration.checkpoint) == found

    def some_layer_is_nowhere(self) -> bool:
        if self.policy.checkpoint_every:
            return False
        if self.state.redundancy == "off":
            return True
        return len({layer for held in self.held.values() for layer in held}) < LAYERS

    def check_all_held(self) -> None:
        for node in live_members(self.state):
            assert all(self.held[node.id].get(x) == self.step for x in self.wants(node.id))

    def take_steps(self, number: int) -> None:
        self.step += number
        self.give_all_that_is_joined()

    def give_all_that_is_joined(self) -> None:
        for node in live_members(self.state):
            self.held[node.id] = dict.fromkeys(self.wants(node.id), self.step)

    # ---------------------------------------------------------------- what happens

    @precondition(lambda self: self.nodes < 30)
    @rule()
    def join(self) -> None:
        self.nodes += 1
        self.say(joined(f"n{self.nodes:02}.1", f"z{self.nodes % 2}"))

    @precondition(lambda self: self.state.phase in (Phase.RUNNING, Phase.DEGRADED))
    @rule(number=st.integers(1, 3))
    def train(self, number: int) -> None:
        self.take_steps(number)

    @precondition(lambda self: self.state.phase in (Phase.RUNNING, Phase.DEGRADED))
    @rule(hash=st.sampled_from("abc"), answer=st.sampled_from([0, 1, 99, 99]))
    def propose(self, hash: str, answer: int) -> None:
        """All answer, or only some: then whatever comes next comes in between."""
        self.say(StrategyProposed(reporter="launcher", hash=hash, why="a trial"))
        proposal = self.state.proposal
        for node in sorted(self.state.participants())[:answer] if proposal else ():
            since, at = proposal.since if proposal else 0, self.step
            self.say(StrategyReady(node=node, since=since, begun=at, oldest=max(0, at - 1)))

    @precondition(lambda self: len(self.living()) > 1)
    @rule(index=draw, number=st.integers(1, 3), given_back=st.sampled_from([False, False, True]))
    def lose(self, index: int, number: int, given_back: bool) -> None:
        victims = tuple(self.living()[index % len(self.living()) :][:number])
        released = NodesReleased(reporter="fleet", nodes=victims, reason="they cost")
        for event in [released] if given_back else [lost(v, "fleet", "exit") for v in victims]:
            self.say(event)

    @precondition(lambda self: len(self.living()) > 1)
    @rule(index=draw, scope=st.sampled_from(FaultScope), now=seldom)
    def fail(self, index: int, scope: FaultScope, now: bool) -> None:
        """One that was about to join, or a node for itself alone."""
        if now:
            alone = FaultScope.NODE if scope is FaultScope.RUN else scope
            self.say(failed(self.living()[index % len(self.living())], alone))
        else:
            self.nodes += 1
            self.say(failed(f"n{self.nodes:02}.1", scope))

    @precondition(lambda self: self.living())
    @rule(index=draw, now=seldom)
    def notice(self, index: int, now: bool) -> None:
        if now:
            node = self.living()[index % len(self.living())]
            self.say(NoticeReceived(node=node, deadline_s=self.now_s + 120))

    @rule(reason=st.sampled_from(["no node came", "it may pay"]))
    def reconsider(self, reason: str) -> None:
        self.say(Reconsider(reporter="fleet", reason=reason))

    @precondition(lambda self: self.state.assignment is not None)
    @rule(slow=draw, times=st.sampled_from([1.0, 2.0, 3.0]))
    def measure(self, slow: int, times: float) -> None:
        members = [node.id for node in live_members(self.state)]
        paces = tuple(
            Pace(node=node, microbatch_s=0.01 * (times if i == slow % len(members) else 1.0))
            for i, node in enumerate(members)
        )
        self.say(PaceMeasured(reporter="fleet", era=self.state.era, paces=paces))

    @rule(outcome=st.sampled_from([Outcome.STOPPED, Outcome.BUDGET]), now=seldom)
    def stop(self, outcome: Outcome, now: bool) -> None:
        """The run ends in order, or as it was asked to when it waits for nodes."""
        if now:
            self.say(StopRequested(reason="enough", outcome=outcome))

    @precondition(lambda self: self.state.assignment is not None)
    @rule(slow=draw, share=st.sampled_from([0.5, 0.7, 1.0]), times=st.integers(1, 4))
    def measure_speeds(self, slow: int, share: float, times: int) -> None:
        members = [node.id for node in live_members(self.state)]
        speeds = tuple(
            Speed(node=node, speed=share if i == slow % len(members) else 1.0)
            for i, node in enumerate(members)
        )
        for _ in range(times):
            self.say(SpeedsMeasured(reporter="fleet", era=self.state.era, speeds=speeds))

    @rule(number=st.integers(1, 6))
    def answer(self, number: int) -> None:
        """So many honest members do what they were asked to."""
        for _ in range(number):
            if (event := self.next_honest()) is None:
                return
            self.say(event)

    @precondition(lambda self: self.policy.checkpoint_every and live_members(self.state))
    @rule(good=st.integers(0, 3), index=draw)
    def save(self, good: int, index: int) -> None:
        """A checkpoint is made, or a part of it, or it fails."""
        step, era = self.step, self.state.era
        for stage in range(self.state.grid.stages - (good == 1)):
            node = self.living()[0]
            self.say(ShardSaved(node=node, step=step, era=era, stage=stage))
        committer = next((s.committer for s in self.state.saving if s.step == step), None)
        if committer is not None and good > 1:
            self.say(CheckpointDone(node=committer, step=step, era=era))
        elif good == 0:
            self.say(CheckpointFailed(node=self.living()[0], step=step, era=era, reason="full"))

    @precondition(lambda self: self.state.checkpoints and self.living())
    @rule(index=draw, now=seldom)
    def damage(self, index: int, now: bool) -> None:
        if now:
            done = self.state.checkpoints[index % len(self.state.checkpoints)]
            node = self.living()[index % len(self.living())]
            self.say(CheckpointDamaged(node=node, step=done.step, reason="torn"))

    @invariant()
    def it_aims_plainly(self) -> None:
        if self.state.reconfiguration is None and self.state.phase is not Phase.FINISHED:
            assert aims_plainly(self.state, apart=self.policy.apart)

    @invariant()
    def every_slot_is_held(self) -> None:
        """While it trains, whoever owns or shadows a slot has its layers."""
        if self.state.phase is Phase.RUNNING and self.state.reconfiguration is None:
            self.check_all_held()

    def teardown(self) -> None:
        """Faults stop and nodes come: the run trains on all its stages, or is over."""
        if not hasattr(self, "held"):
            return
        for _ in range(400):
            if self.state.phase is Phase.FINISHED:
                ends = {Outcome.UNRECOVERABLE, self.state.stop_outcome}
                of_devices = "failed at this stage, too" in self.state.sentence
                assert self.state.outcome in ends or of_devices, self.state.sentence
                return
            if (event := self.next_honest()) is not None:
                self.say(event)
            elif any(n.status is NodeStatus.DRAINING for n in self.state.nodes):
                node = next(n for n in self.state.nodes if n.status is NodeStatus.DRAINING)
                self.say(lost(node.id, "fleet", "exit"))
            elif len(self.living()) < 3 * self.policy.stages:
                self.join()
            elif self.state.phase is Phase.RUNNING:
                assert self.state.grid.stages == self.policy.stages
                return
            else:
                raise AssertionError(f"nothing goes on: {self.state.sentence}")
        raise AssertionError(f"it does not come to rest: {self.state.sentence}")


@pytest.mark.timeout(300)
class TestWorld(World.TestCase):
    settings = settings(max_examples=30, stateful_step_count=40)


@pytest.mark.full
@pytest.mark.timeout(600)
class TestManyWorlds(World.TestCase):
    settings = settings(max_examples=200, stateful_step_count=40)
