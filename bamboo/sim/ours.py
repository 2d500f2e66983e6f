"""Bamboo in a simulated world: `core.transition` decides, honest members do what they are told.

    the world's nodes  ->  events  ->  core.transition  ->  state and effects  ->  what members do
    and how long it takes  ->  events

Rule: nothing is decided here. Members answer as the runtime's do, after times that `Pauses` states;
what lies between two decisions is one straight piece of progress. A checkpoint is told to the core
when all is to be laid out anew, the newest that is complete then: those before it would have been
superseded.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from bamboo.core.effects import (
    AgreeBoundary,
    Drain,
    Effect,
    Quiesce,
    QuiesceAfter,
    TerminateInstance,
)
from bamboo.core.events import (
    BoundaryReady,
    CaughtUp,
    CheckpointDone,
    Event,
    HandedOver,
    LayoutBuilt,
    NodeJoined,
    NoticeReceived,
    PeerLost,
    Quiesced,
    ReplicaJoined,
    ShardSaved,
    Yielded,
)
from bamboo.core.machine import transition
from bamboo.core.patience import Patience
from bamboo.core.place import nodes_wanted
from bamboo.core.policy import Policy
from bamboo.core.state import Failover, Move, NodeStatus, Phase, Reform, State, Transfer
from bamboo.core.transition import Transition
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.planner.step_time import StepTimes
from bamboo.planner.workload import Workload
from bamboo.sim.holdings import Holdings
from bamboo.sim.kernel import Entry
from bamboo.sim.world import END, FAILOVER, HAND_OVER, RECONFIGURATION, RESTORE, World
from bamboo.topology.model_layout import ModelLayout, equal_shares
from bamboo.topology.slots import Slot

T = TypeVar("T")
LAUNCHER = "launcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """What members need beyond the work itself. The defaults are rounded from this project's own
    benchmarks on one machine, where they were measured."""

    detect_s: float = 0.05
    """From a loss to the decision."""
    answer_s: float = 0.02
    """From a decision to what is said to it."""
    move_s: float = 0.05
    """A slot changes hands at a boundary."""
    reform_s: float = 0.5
    """A reconfiguration, beside what is sent."""
    restore_s: float = 1.0
    """To find and check a checkpoint, beside what is read."""


class Ours:
    """One run in one world. `patience_s`, `park_s`: as the `[cluster]` keys of a job; `surplus_s`:
    so long a node beyond what the run can use is kept, for ever by default."""

    def __init__(
        self,
        world: World,
        workload: Workload,
        times: StepTimes,
        *,
        state: State,
        policy: Policy,
        standbys: int,
        patience_s: float,
        park_s: float,
        surplus_s: float = math.inf,
        pauses: Pauses | None = None,
    ) -> None:
        self._world, self._workload, self._times = world, workload, times
        self.state, self._policy = state, policy
        self._standbys = standbys
        self._patience = Patience(patience_s=patience_s, park_s=park_s)
        self._patience_entry: Entry | None = None
        self._surplus_s = surplus_s
        self._surplus_entry: Entry | None = None
        self._idle_since_s: dict[NodeId, float] = {}
        self._least = min(len(cut) - 1 for cut in policy.cuts)
        self._pauses = pauses or Pauses()
        self._boundaries = world.boundaries
        self._link_free_s: dict[NodeId, float] = {}
        self._holdings = Holdings()
        self.transitions = 0

    # ---------------------------------------------------------------- the world speaks

    def wanted(self) -> int:
        nodes, roll = self.state.nodes, self.state.roll
        advised = sum(nodes[roll.places[node]].advised for node in roll.live)
        most = self._policy.pipelines * self._policy.stages + self._standbys
        if math.isinf(self._surplus_s):
            return most + advised
        available = min(most, max(self._world.capacity, self._least))
        return nodes_wanted(available, self._policy, standbys=self._standbys) + advised

    def spare(self) -> NodeId | None:
        """Of those without a slot the newest one, once it has had none for long enough."""
        now_s = self._world.kernel.now_s
        idle = {n.id for n in self.state.roll.aside if n.status is NodeStatus.READY}
        self._idle_since_s = {n: self._idle_since_s.get(n, now_s) for n in idle}
        for node in sorted(idle, reverse=True):
            if now_s - self._idle_since_s[node] >= self._surplus_s:
                return node
        if idle and self._surplus_entry is None:
            self._surplus_entry = self._world.kernel.after(self._surplus_s, self._look_again)
        return None

    def _look_again(self) -> None:
        self._surplus_entry = None
        self._world.look()

    def joined(self, node: NodeId, zone: ZoneId) -> None:
        self._say(
            NodeJoined(node=node, instance=InstanceId(node), zone=zone, endpoint="sim", pid=0)
        )

    def noticed(self, node: NodeId, deadline_s: float) -> None:
        self._say(NoticeReceived(node=node, deadline_s=deadline_s))

    def lost(self, node: NodeId) -> None:
        found = self.state.node(node)
        if found is None or not found.status.live:
            return  # it handed over before
        works = self.state.assignment is not None and self.state.assignment.owned_by(node)
        if works and self.state.reform is None:
            self._world.progress.delay(self._pauses.detect_s)
        self._world.kernel.after(
            self._pauses.detect_s,
            lambda: self._say(PeerLost(node=node, reporter=LAUNCHER, cause="disconnect")),
        )

    # ---------------------------------------------------------------- decisions

    def _decide(self, event: Event) -> Transition:
        self.transitions += 1
        return transition(self.state, event, now_s=self._world.kernel.now_s, policy=self._policy)

    def _say(self, event: Event) -> None:
        before = self.state
        decided = self._decide(event)
        if decided.state.reform is not None and before.reform is None and self._save():
            before = self.state
            decided = self._decide(event)
        if decided.state is before:
            return
        self.state = decided.state
        self._follow(before, decided)

    def _follow(self, before: State, decided: Transition) -> None:
        """See to what is new in the state, then to the effects."""
        after = self.state
        if after.phase is Phase.FINISHED:
            self._world.progress.stand()
            if before.phase is not Phase.FINISHED:
                self._world.happened(END, decided.reason)
                self._world.end(decided.reason)
            return
        for transfer in _new(after.transfers, before.transfers):
            self._boundaries.when_next(partial(self._copy, transfer))
        for move in _new(after.moves, before.moves):
            self._boundaries.when_next(partial(self._yield, move))
        for failover in _new(after.failovers, before.failovers):
            self._take_over(failover)
        if after.reform is None and (
            after.assignment is not before.assignment or before.reform is not None
        ):
            self._set_pace()
        if after.reform is None and before.reform is not None:
            self._world.happened(RECONFIGURATION, decided.reason)
        if after.reform is not None:
            self._follow_reform(before)
        for effect in decided.effects:
            self._perform(effect)
        if after.phase is not before.phase or after.assignment is not before.assignment:
            self._world.note(said=decided.reason)
        self._be_patient()
        self._world.look()

    def _perform(self, effect: Effect) -> None:
        pauses, kernel = self._pauses, self._world.kernel
        match effect:
            case TerminateInstance():
                self._world.release(NodeId(effect.instance))
            case Drain():
                self._boundaries.when_next(
                    lambda: self._say(HandedOver(node=effect.to, step=self._at()))
                )
            case AgreeBoundary():
                kernel.after(
                    pauses.answer_s,
                    lambda: self._say(
                        BoundaryReady(node=effect.to, since=effect.since, step=self._at())
                    ),
                )
            case QuiesceAfter():
                self._boundaries.when(
                    effect.step + 1, lambda: self._quiesce(effect.to, effect.since)
                )
            case Quiesce():
                kernel.after(pauses.answer_s, lambda: self._quiesce(effect.to, effect.since))

    def _at(self) -> int:
        """The step in hand."""
        return self._world.progress.whole

    def _layout(self) -> ModelLayout:
        return _layout(self.state, self._policy)

    def _set_pace(self) -> None:
        assignment = self.state.assignment
        if assignment is not None:
            self._world.progress.run(self._times.of(assignment, self._layout().shares))

    # ---------------------------------------------------------------- failover

    def _take_over(self, failover: Failover) -> None:
        """The successor goes on. Unplanned: it does again what the victim had done in this step."""
        world, pauses = self._world, self._pauses
        if failover.planned:
            world.happened(HAND_OVER)
            world.progress.delay(pauses.move_s)
            again_s = pauses.move_s
        else:
            world.happened(FAILOVER)
            again_s = self._done_again_s(failover)
            world.progress.delay(again_s)
        world.kernel.after(again_s, lambda: self._caught_up(failover))

    def _done_again_s(self, failover: Failover) -> float:
        layout = self._layout()
        cut, stage = layout.cut, failover.slot.stage
        count = layout.shares[failover.slot.pipeline] * self._workload.shape.microbatches
        part = self._world.progress.steps - self._at()
        work = self._workload
        again = work.sums(work.backward_s, cut)[stage]
        if self.state.redundancy not in ("eager", "full"):
            again += work.sums(work.forward_s, cut)[stage]
        return max(0.0, part) * count * again

    def _caught_up(self, failover: Failover) -> None:
        if failover not in self.state.failovers:
            return
        self._say(
            CaughtUp(
                node=failover.successor,
                slot=failover.slot,
                step=self._at(),
                recomputed=0,
                already_computed=0,
                pause_s=self._pauses.detect_s,
            )
        )

    # ---------------------------------------------------------------- replicas and moves

    def _copy(self, transfer: Transfer) -> None:
        """At a boundary the source copies its state, and sends it behind the training."""
        if transfer not in self.state.transfers:
            return
        size = self._workload.state_bytes(self._layout().layers_of(transfer.slot))
        rate = self._workload.state_bytes_per_s
        ends = (transfer.source, transfer.receiver)
        now_s = self._world.kernel.now_s
        free_s = max(now_s, *(self._link_free_s.get(node, 0.0) for node in ends))
        done_s = free_s + (size / rate if rate else 0.0)
        self._link_free_s |= dict.fromkeys(ends, done_s)

        joins = partial(self._join_replica, transfer, size)
        self._world.kernel.at(done_s, lambda: self._boundaries.when_next(joins))

    def _join_replica(self, transfer: Transfer, size: int) -> None:
        if transfer not in self.state.transfers:
            return
        self._say(
            ReplicaJoined(
                node=transfer.source,
                slot=transfer.slot,
                receiver=transfer.receiver,
                since=transfer.since,
                step=self._at(),
                bytes=size,
            )
        )

    def _yield(self, move: Move) -> None:
        if move not in self.state.moves:
            return
        self._say(Yielded(node=move.source, slot=move.slot, since=move.since, step=self._at()))

    # ---------------------------------------------------------------- reconfiguration

    def _follow_reform(self, before: State) -> None:
        """Stop where that is asked for; let all be built once it is decided what."""
        reform, known = self.state.reform, before.reform
        assert reform is not None
        if known is None:
            self._holdings.begin(_layout(before, self._policy), before.assignment)
        new = known is None or known.since != reform.since
        if new and not reform.planned:
            self._world.progress.stand()
            self._world.progress.back_to(self._at())
        if reform.base is not None and (new or known is None or known.base is None):
            self._build(reform)

    def _quiesce(self, node: NodeId, since: int) -> None:
        reform = self.state.reform
        if reform is None or reform.since != since:
            return
        self._world.progress.stand()
        holdings = self._holdings.of(node, step=self._at())
        self._say(Quiesced(node=node, since=since, holdings=holdings, norms=()))

    def _build(self, reform: Reform) -> None:
        """Everybody gets what he lacks, at the same time; the slowest one is waited for."""
        world, work, pauses = self._world, self._workload, self._pauses
        assignment, base = self.state.assignment, reform.base
        assert assignment is not None
        assert base is not None
        layout = self._layout()
        world.progress.back_to(base)
        if reform.checkpoint:
            world.happened(RESTORE)
        rate = work.store_bytes_per_s if reform.checkpoint else work.state_bytes_per_s
        wants: dict[NodeId, frozenset[int]] = {}
        sizes: dict[NodeId, int] = {}
        for slot in assignment.grid.slots():
            for node in (assignment.owner(slot), assignment.shadow(slot)):
                if node is not None:
                    layers = frozenset(layout.layers_of(slot))
                    wants[node] = wants.get(node, frozenset()) | layers
        for node, wanted in wants.items():
            lacking = self._holdings.lacking(node, wanted, step=base)
            sizes[node] = work.state_bytes(sorted(lacking))
        took_s = pauses.restore_s if reform.checkpoint else pauses.reform_s
        took_s += max(sizes.values()) / rate if rate else 0.0

        def built() -> None:
            for node in sorted(wants):
                now = self.state.reform
                if now is None or now.since != reform.since:
                    return
                self._holdings.built(node, wants[node], step=base)
                self._say(LayoutBuilt(node=node, since=reform.since, bytes=sizes[node]))

        world.kernel.after(took_s, built)

    # ---------------------------------------------------------------- checkpoints, patience

    def _save(self) -> bool:
        """Tell of the newest checkpoint that is complete by now; whether there is a new one."""
        every, state = self._policy.checkpoint_every, self.state
        step_s = self._world.progress.step_s
        if not every or state.assignment is None or state.reform is not None:
            return False
        rate = self._workload.store_bytes_per_s
        largest = max(
            self._workload.state_bytes(self._layout().layers_of(Slot(pipeline=0, stage=stage)))
            for stage in range(state.grid.stages)
        )
        behind = 0.0 if not rate or math.isinf(step_s) else largest / rate / step_s
        step = int((self._world.progress.steps - behind) // every * every)
        if step <= max((done.step for done in state.checkpoints), default=0):
            return False
        owners = [state.assignment.owner(s) for s in state.grid.pipeline(0)]
        for stage, node in enumerate(owners):
            self._tell(ShardSaved(node=node, step=step, era=state.era, stage=stage))
        saving = next((s for s in self.state.saving if s.step == step), None)
        if saving is None or saving.committer is None:
            return False
        self._tell(CheckpointDone(node=saving.committer, step=step, era=state.era))
        return True

    def _tell(self, event: Event) -> None:
        """Say what changes neither who trains nor how."""
        self.state = self._decide(event).state

    def _be_patient(self) -> None:
        """Look again when waiting for nodes will have been long enough."""
        kernel, state = self._world.kernel, self.state
        kernel.cancel(self._patience_entry)
        self._patience_entry = None
        event = self._patience.due(state, now_s=kernel.now_s)
        if event is not None:
            self._patience.said(event, state)
            kernel.after(0.0, lambda: self._say(event))
            return
        at_s = self._patience.due_at_s(state)
        if at_s is not None:
            at_s = max(at_s, kernel.now_s + self._pauses.answer_s)
            self._patience_entry = kernel.at(at_s, self._be_patient)


def _new(after: Sequence[T], before: Sequence[T]) -> list[T]:
    """In the order in which they stand: that of a set differs from process to process."""
    known = set(before)
    return [one for one in after if one not in known]


def _layout(state: State, policy: Policy) -> ModelLayout:
    return ModelLayout(
        grid=state.grid,
        cut=state.cut or policy.cut_for(state.grid.stages),
        shares=state.shares or equal_shares(policy.virtual_nodes, state.grid.pipelines),
    )
