"""Bamboo in a simulated world: `core.transition` decides, and honest members carry out its effects.

    the world's nodes  ->  events  ->  core.transition  ->  state and effects  ->  what members do
    and how long it takes  ->  events

Rule: nothing is decided here. Members answer like those of the runtime, after the times in
`Pauses`; between two decisions the progress is linear. A checkpoint is reported to the core when a
reconfiguration begins: the newest one that is complete then, because it would have superseded those
before it.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

from bamboo.core.effects import Drain, Effect, GoOn, TerminateInstance
from bamboo.core.events import (
    CaughtUp,
    CheckpointDone,
    EvaluationDone,
    Event,
    HandedOver,
    NodeJoined,
    NoticeReceived,
    PeerLost,
)
from bamboo.core.layout import nodes_wanted
from bamboo.core.liveness.patience import Patience, parked
from bamboo.core.machine import transition
from bamboo.core.state import Failover, NodeStatus, Phase, Policy, State
from bamboo.core.straggler import kept_beyond
from bamboo.core.together import transitions
from bamboo.core.transition import Transition
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.planner.fleet.autoscale import Resize
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.kernel import Entry
from bamboo.sim.members import Pauses, Run, layout_of, step_in_hand
from bamboo.sim.progress import NEARLY
from bamboo.sim.reconfiguration import Reconfigurations
from bamboo.sim.replicas import Replicas
from bamboo.sim.sizing import Sizing
from bamboo.sim.world import END, FAILOVER, HAND_OVER, RECONFIGURATION, World

T = TypeVar("T")
LAUNCHER = "launcher"
_NOBODY_SAYS = ((f" (says {LAUNCHER})", ""), (f"{LAUNCHER} saw its connection end", "it was taken"))
"""Phrases of the core that name a reporter, and those for a world that has no reporter."""


class Ours:
    """One run in one world. `patience_s`, `park_s`: as the `[cluster]` keys of a job; `surplus_s`:
    time for which a node beyond what the run can use is kept, by default for ever; `sizing` makes
    the object that chooses the run's size, if the size is not fixed."""

    def __init__(
        self,
        world: World,
        workload: WorkloadFigures,
        times: StepTimes,
        *,
        state: State,
        policy: Policy,
        standbys: int,
        patience_s: float,
        park_s: float,
        surplus_s: float = math.inf,
        pauses: Pauses | None = None,
        sizing: Callable[[Run], Sizing] | None = None,
    ) -> None:
        self.world = world
        self.workload = workload
        self._times = times
        self.state = state
        self.policy = policy
        self._standbys = standbys
        self._patience = Patience(patience_s=patience_s, park_s=park_s)
        self._patience_entry: Entry | None = None
        self._surplus_s = surplus_s
        self._surplus_entry: Entry | None = None
        self._idle_since_s: dict[NodeId, float] = {}
        self._least = min(len(cut) - 1 for cut in policy.cuts)
        self.pauses = pauses or Pauses()
        self._replicas = Replicas(self)
        self._reconfigurations = Reconfigurations(self)
        self._sizing = None if sizing is None else sizing(self)
        self.transitions = 0
        if policy.eval_every:
            world.boundaries.when(policy.eval_every, self._evaluated)

    # ---------------------------------------------------------------- reports of the world

    @property
    def resizes(self) -> tuple[Resize, ...]:
        """The resizes that the run chose."""
        return () if self._sizing is None else tuple(self._sizing.resizes)

    def wanted(self) -> int:
        if self._sizing is not None:
            return self._sizing.nodes
        beyond = kept_beyond(self.state)
        most = self.policy.pipelines * self.policy.stages + self._standbys
        if math.isinf(self._surplus_s):
            return most + beyond
        available = min(most, max(self.world.capacity, self._least))
        return nodes_wanted(available, self.policy, standbys=self._standbys) + beyond

    def spare(self) -> NodeId | None:
        """The newest node without a slot, if it has had none for `surplus_s`."""
        if self._sizing is not None:
            return None  # the scaler asks the run to give nodes back
        now_s = self.world.kernel.now_s
        idle = {n.id for n in self.state.roll.aside if n.status is NodeStatus.READY}
        self._idle_since_s = {n: self._idle_since_s.get(n, now_s) for n in idle}
        for node in sorted(idle, reverse=True):
            if now_s - self._idle_since_s[node] >= self._surplus_s:
                return node
        if idle and self._surplus_entry is None:
            self._surplus_entry = self.world.kernel.after(self._surplus_s, self._look_again)
        return None

    def _look_again(self) -> None:
        self._surplus_entry = None
        self.world.look()

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        self.say(NodeJoined(node=node, instance=InstanceId(node), zone=zone, endpoint="sim", pid=0))

    def noticed(self, node: NodeId, deadline_s: float) -> None:
        self.say(NoticeReceived(node=node, deadline_s=deadline_s))

    def lost(self, node: NodeId) -> None:
        found = self.state.node(node)
        if found is None or not found.status.live:
            return  # it had handed over before
        works = self.state.assignment is not None and self.state.assignment.owned_by(node)
        if works and self.state.reconfiguration is None:
            self.world.progress.pause(self.pauses.detect_s)
        self.world.kernel.after(
            self.pauses.detect_s,
            lambda: self.say(PeerLost(node=node, reporter=LAUNCHER, cause="disconnect")),
        )

    # ---------------------------------------------------------------- decisions

    def _decide(self, event: Event) -> Transition:
        self.transitions += 1
        return transition(self.state, event, now_s=self.world.kernel.now_s, policy=self.policy)

    def say(self, event: Event) -> None:
        before = self.state
        decided = self._decide(event)
        if decided.state is before:
            return
        reconfiguration, newest = decided.state.reconfiguration, 0
        if reconfiguration is not None and before.reconfiguration is None:
            newest = _newest_checkpoint(self)
        late = reconfiguration is not None and (
            reconfiguration.base is not None or not decided.state.roll.live
        )
        if newest and late:
            # The base is already decided, or no live node is left to report the checkpoint: the
            # report came before this event.
            before = self.state = self._completed(newest)
            decided, newest = self._decide(event), 0
        self.state = decided.state
        if newest:
            self.state = self._completed(newest)
        self._follow(before, decided)

    def say_all(self, events: Sequence[Event]) -> None:
        before = self.state
        self.transitions += len(events)
        now_s = self.world.kernel.now_s
        decided = transitions(before, events, now_s=now_s, policy=self.policy)
        if decided.state is not before:
            self.state = decided.state
            self._follow(before, decided)

    def _follow(self, before: State, decided: Transition) -> None:
        """Handle what is new in the state, then the effects."""
        after = self.state
        if self._sizing is not None:
            self._sizing.decided()
        if after.phase is Phase.FINISHED:
            self.world.progress.stand()
            if before.phase is not Phase.FINISHED:
                self.world.happened(END, _plain(decided.reason))
                self.world.end(_plain(decided.reason))
            return
        if _is_an_answer(before, decided):
            return
        self._replicas.begin(
            _new(after.transfers, before.transfers), _new(after.moves, before.moves)
        )
        if after.preparing is not before.preparing:
            self._replicas.feed(before.preparing, after.preparing)
        for failover in _new(after.failovers, before.failovers):
            self._take_over(failover)
        replaced = after.assignment is not before.assignment
        # A decision may end a reconfiguration and begin the next: all train until it stops them.
        ended = GoOn in map(type, decided.effects)
        ended = ended or (after.reconfiguration is None and before.reconfiguration is not None)
        if ended or (replaced and after.reconfiguration is None):
            self._set_pace()
        if after.reconfiguration is not None:
            self._reconfigurations.follow(before, ended=ended)
        if ended:
            self.world.happened(RECONFIGURATION, _plain(decided.reason))
        self._perform(decided.effects)
        if replaced or after.phase is not before.phase:
            self.world.note(said=_plain(decided.reason))
        self._be_patient()
        if after.nodes is not before.nodes:
            self.world.look()

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case TerminateInstance():
                    self.world.release(NodeId(effect.instance))
                case Drain():
                    self.world.boundaries.when_next(partial(self._hand_over, effect.to))
        self._reconfigurations.obey(effects)

    def _hand_over(self, node: NodeId) -> None:
        self.say(HandedOver(node=node, step=step_in_hand(self)))

    def _set_pace(self) -> None:
        assignment, shares = self.state.assignment, layout_of(self.state, self.policy).shares
        if assignment is not None:
            zones = self.state.roll.zones
            self.world.crosses(self._times.crossing_bytes(assignment, shares, zones))
            self.world.progress.run(self._times.of(assignment, shares, zones))

    # ---------------------------------------------------------------- failover

    def _take_over(self, failover: Failover) -> None:
        """The successor continues. After a loss it repeats the victim's work of this step."""
        world, pauses = self.world, self.pauses
        if failover.planned:
            world.happened(HAND_OVER)
            world.progress.delay(pauses.move_s, of=failover.slot.pipeline)
            again_s = pauses.move_s
        else:
            world.happened(FAILOVER)
            again_s = _done_again_s(self, self._times, failover)
            world.progress.delay(again_s, of=failover.slot.pipeline)
        world.kernel.after(again_s, lambda: self._caught_up(failover))

    def _caught_up(self, failover: Failover) -> None:
        if failover not in self.state.failovers:
            return
        self.say(
            CaughtUp(
                node=failover.successor,
                slot=failover.slot,
                step=step_in_hand(self),
                recomputed=0,
                already_computed=0,
                pause_s=self.pauses.detect_s,
            )
        )

    # ---------------------------------------------------------------- checkpoints, patience

    def _completed(self, step: int) -> State:
        """The state after a member has reported the checkpoint complete, which is valid also while
        all nodes stop. Reports of its shards are not needed."""
        state = self.state
        node = min(state.roll.live, default=None)
        if node is None:
            return state
        return self._decide(CheckpointDone(node=node, step=step, era=state.era)).state

    def _evaluated(self) -> None:
        """An evaluation is done; its time is part of the pace. Each is better than the one before,
        because no plan can know whether one would end the run."""
        step = self.world.progress.whole // self.policy.eval_every * self.policy.eval_every
        value = float(step if self.policy.eval_higher else -step)
        if self.state.assignment is not None and (node := min(self.state.roll.live, default=None)):
            self.say(EvaluationDone(node=node, step=step, value=value, seconds=0.0))
        self.world.boundaries.when(step + self.policy.eval_every, self._evaluated)

    def _be_patient(self) -> None:
        """Look again when the wait for nodes reaches its limit."""
        kernel, state = self.world.kernel, self.state
        kernel.cancel(self._patience_entry)
        self._patience_entry = None
        event = self._patience.due(state, now_s=kernel.now_s)
        if event is not None:
            self._patience.said(event, state)
            kernel.after(0.0, lambda: self.say(event))
            return
        at_s = self._patience.due_at_s(state)
        if at_s is not None:
            at_s = max(at_s, kernel.now_s + self.pauses.answer_s)
            self._patience_entry = kernel.at(at_s, self._be_patient)


def _done_again_s(run: Run, times: StepTimes, failover: Failover) -> float:
    """How long the successor repeats the work of the victim in this step."""
    assert run.state.assignment is not None, "who takes over is assigned"
    layout, work = layout_of(run.state, run.policy), run.workload
    stage, shares = failover.slot.stage, layout.shares
    count = shares[failover.slot.pipeline] * work.shape.microbatches
    part = run.world.progress.steps - step_in_hand(run)
    forward, backward = (
        work.sums(each_s, layout.cut)[stage] for each_s in (work.forward_s, work.back_s)
    )
    # The shadow's work in advance, as the planner counts it.
    ahead = times.calm_ahead(run.state.assignment.grid, shares)[stage]
    again = forward * (1 - ahead[0]) + backward * (1 - ahead[1])
    return max(0.0, part) * count * again


def _newest_checkpoint(run: Run) -> int:
    """The step of the newest complete checkpoint, or 0 if the core knows of it."""
    every = run.policy.checkpoint_every
    state = run.state
    if not every or state.assignment is None:
        return 0
    rate = run.workload.store_bytes_per_s
    largest = _largest_bytes(run.workload, layout_of(state, run.policy).cut) if rate else 0
    progress, now_s = run.world.progress, run.world.kernel.now_s
    written = progress.was(now_s - largest / rate) if rate else progress.steps
    step = int((min(written, progress.steps) + NEARLY) // every * every)
    return step if step > max((done.step for done in state.checkpoints), default=0) else 0


def _largest_bytes(workload: WorkloadFigures, cut: Sequence[int]) -> int:
    """State bytes of the largest stage."""
    return max(workload.state_bytes(range(first, stop)) for first, stop in pairwise(cut))


def _plain(reason: str) -> str:
    for words, instead in _NOBODY_SAYS:
        reason = reason.replace(words, instead)
    return reason


def _is_an_answer(before: State, decided: Transition) -> bool:
    """Whether the only change is one more answer while others are still awaited."""
    after = decided.state
    if after.reconfiguration is None or before.reconfiguration is None or decided.effects:
        return False
    same = (after.reconfiguration.since, after.reconfiguration.base) == (
        before.reconfiguration.since,
        before.reconfiguration.base,
    )
    return same and after.nodes is before.nodes and not parked(after)


def _new(after: Sequence[T], before: Sequence[T]) -> list[T]:
    """New items in their own order, because that of a set differs between processes."""
    if after is before:
        return []
    known = set(before)
    return [one for one in after if one not in known]
