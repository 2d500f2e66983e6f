"""A node's part in the run: it applies decisions to the executor, between two operations.

Rule: the trainer decides nothing about membership. Decisions come from the log, each with the state
after it (`apply`); effects addressed to this node are performed once; and what happens here is
reported as events and records through `Outbox`, which never blocks.
"""

import time
from collections.abc import Sequence
from operator import add

from bamboo.config.resolve import batch_shape
from bamboo.config.tree import JobConfig
from bamboo.core.effects import (
    OTHERS,
    AgreeBoundary,
    CompleteCheckpoint,
    Drain,
    Effect,
    End,
    Fence,
    GoOn,
    HoldForStop,
    Promote,
    Quiesce,
    QuiesceAfter,
    Resend,
    Start,
    Stay,
    StopAt,
)
from bamboo.core.events import StopReady
from bamboo.core.keep import shards_of
from bamboo.core.state import NodeStatus, Phase, State
from bamboo.ids import NodeId
from bamboo.planner.step.figures import gap_budgets
from bamboo.planner.step.layout import Costs, Layout
from bamboo.runtime.device.devices import per_stage
from bamboo.runtime.node.at_work import NodeAtWork
from bamboo.runtime.state.decision import Decided, Goodbye
from bamboo.runtime.step.executor import Completed, Interrupted
from bamboo.runtime.step.slot_run import Recovery
from bamboo.runtime.step.takeover import declare_safe, resend, tell_what_was_reduced
from bamboo.schedule.one_f_one_b import one_f_one_b
from bamboo.topology.assignment import Assignment
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import stage_modes
from bamboo.topology.virtual_nodes import blocks


class Trainer(NodeAtWork):
    """Trains this node's slots until the run ends, this node has left, or it is fenced."""

    _goodbye: Goodbye | None = None

    # ------------------------------------------------------------------ from other threads

    def tell(self, decided: Decided) -> None:
        """Hand over a decision; called by the thread that follows the log."""
        self._inbound.append(decided)
        self._transport.wake()

    # ------------------------------------------------------------------ the life of a node

    def run(self) -> Goodbye:
        """Train to the end. The first decision must be on its way (`tell`)."""
        while self._goodbye is None:
            if not (self.executor.owned or self.executor.shadowed or self._inbound):
                self.rest(0.05)
                continue
            result = self.executor.run(linger=self.finish.said)
            if isinstance(result, Completed):
                self.say_finished()
            else:
                self._attend(result)
        return self._goodbye

    def rest(self, timeout_s: float) -> None:
        """Take in messages while there is nothing to train."""
        self.mailbox.collect(timeout_s)
        self._background()
        self.reconfiguration.serve()

    def _attend(self, interrupted: Interrupted) -> None:
        while self._inbound and self._goodbye is None:
            self._apply(self._inbound.popleft())
        if interrupted.cause == "non-finite":
            assert interrupted.run is not None
            self._fault_reports.report_non_finite(interrupted.run)
        elif interrupted.cause == "stalled" and not self.log_watch.excuses(interrupted.cursor):
            words = f"node {self._me} made no progress at {interrupted.cursor}"
            self._fault_reports.stalled(words, era=self._era)

    def say_finished(self) -> None:
        """The last step is taken: write the final state of what is owned here, and report it."""
        if self._fault_reports.faulted or self.replicas_differ():
            self.mailbox.collect(0.05)
            return
        for run in self.executor.owned.values():
            if run.recovery is not None:
                # Its victim had only the final state left to write.
                self.end_recovery(run, run.recovery)
        self._records.memory(self.executor, self.mailbox, self.device)
        self.finish.say()

    # ------------------------------------------------------------------ decisions

    def _apply(self, decided: Decided) -> None:
        state = decided.state
        me = state.node(self._me)
        if me is not None and not me.status.live:
            self._goodbye = Goodbye.FENCED if me.status is NodeStatus.GONE else Goodbye.LEFT
            return
        if state.phase is Phase.FINISHED:
            # Also for a node that no End is addressed to, because it came too late to be a member.
            self._goodbye = Goodbye.ENDED
            return
        self._era = state.era
        self._sync_change.read(state)
        if state.evaluated is not None:
            self.executor.note_evaluated(state.evaluated.step)
            self.mailbox.forget_evaluation(state.evaluated.step)
        self._boundaries.save_watch.read(decided)
        if state.reconfiguration is None and self._checkpoints is not None:
            self._checkpoints.known([made.step for made in state.checkpoints], state.era)
        if state.reconfiguration is not None:
            self._stop_for(state)
        elif state.assignment is not None:
            self._reassign(state)
        self.finish.read(state)
        for effect in decided.effects:
            if effect.to in (self._me, OTHERS):
                self._perform(effect, decided)

    def _stop_for(self, state: State) -> None:
        """A reconfiguration is under way: all nodes hear each other, and slots have no roles."""
        self.reconfiguration.reach_base(state)
        self.mailbox.connect(state)
        self.transfers.stop(state)
        self._boundaries.forget()
        self._stopping = False
        self.finish.take_back()
        self.reconfiguration.sync(state)
        self._replicas.forget()
        self.set_hold()

    def _reassign(self, state: State) -> None:
        assignment = state.assignment
        assert assignment is not None
        self.mailbox.assign(assignment, state.participants())
        self.mailbox.connect(state)
        self.reconfiguration.sync(state)
        # Also without a GoOn to perform: for a standby, or a node that joined after it.
        self.transfers.builder = self.reconfiguration.layout.builder
        self.device.lay_out(self.reconfiguration.layout.builder.strategy.placement.cut)
        for slot in [s for s in self.executor.owned if assignment.owner(s) != self._me]:
            # Moved at a step boundary: the roles are exchanged and the state is the same.
            run = self.executor.owned[slot]
            run.owner = False
            run.recovery = None
            self.executor.adopt(run)
            self.finish.take_back()
        self.transfers.sync(state)
        self._boundaries.move(state.moves, self.transfers.awaited())
        declare_safe(self.mailbox, self._me, self.executor.owned, self.executor.shadowed)

    def _perform(self, effect: Effect, decided: Decided) -> None:
        match effect:  # effects for the fleet are not for a node
            case Start():
                self._start()
            case AgreeBoundary(since=since):
                self.reconfiguration.agree(since, self.executor.begun_step)
            case QuiesceAfter(since=since, step=step):
                self.reconfiguration.stop_after(since, step)
            case Quiesce(since=since):
                self.reconfiguration.stop(since)
            case GoOn():
                self.executor.fill_gaps({})
                self.reconfiguration.finish()
                for run in self.executor.owned.values():
                    self.at_boundary(run)
                self._records.promoted()
            case CompleteCheckpoint(step=step, era=era):
                if self._checkpoints is not None:
                    self._checkpoints.complete(step, era, shards_of(decided.state, era))
            case Promote(slot=slot, victim=victim):
                self._promote(slot, victim, decided)
            case Resend(slot=slot, owner=owner) if owner != self._me:
                resend(self.mailbox, self.executor.owned, slot)
            case Drain():
                self._boundaries.drain()
            case Stay():
                self._boundaries.stay()
            case HoldForStop():
                self._stopping = True
                self._outbox.event(StopReady(node=self._me, step=self.executor.begun_step))
            case StopAt(step=step):
                self.executor.end_after(step)
                self._stopping = False
            case Fence():
                self._goodbye = Goodbye.FENCED
            case End():
                self._goodbye = Goodbye.ENDED
        self.set_hold()

    def _start(self) -> None:
        assignment = self.mailbox.assignment
        for slot in assignment.owned_by(self._me):
            self.executor.adopt(self.reconfiguration.layout.builder.build(slot, owner=True))
        for slot in assignment.shadowed_by(self._me):
            self.executor.adopt(self.reconfiguration.layout.builder.build(slot, owner=False))
        cut = self.reconfiguration.layout.builder.strategy.placement.cut
        self.executor.fill_gaps(gap_budget_of(self._job, assignment, self._me, cut))

    def _promote(self, slot: Slot, victim: str, decided: Decided) -> None:
        run = self.executor.release(slot)
        assert run is not None, f"no replica of {slot} is here"
        while self.mailbox.has(slot, "ship", run.step):
            # A reduced gradient that has come already is used and never computed again.
            self.executor.operations.step_replica(run, run.replica_step)
        self.executor.fill_gaps({})
        run.owner = True
        run.beside = bool(self.executor.owned)
        failover = next((f for f in decided.state.failovers if f.slot == slot), None)
        run.recovery = Recovery(
            victim=victim,
            planned=failover is not None and failover.planned,
            seen_s=min(self.gone_seen_s.get(victim, decided.read_s), decided.read_s),
            decided_s=decided.read_s,
            promoted_s=time.monotonic(),
            version=run.step,
            hit_step=max([run.step, *(r.step for r in self.executor.owned.values())]),
            already_computed=len(run.pending),
        )
        self.executor.adopt(run)
        # A victim was at most one step ahead of its shadow; an owner that hands over has begun no
        # step.
        self._preemptions.spent(slot, run.step - 1 if run.recovery.planned else run.step + 1)
        resend(self.mailbox, self.executor.owned, slot)
        tell_what_was_reduced(self.mailbox, run)
        self.mailbox.declare_safe(slot, run.step)
        self.at_boundary(run)
        self._records.promoted()
        self.finish.take_back()


def gap_budget_of(
    job: JobConfig, assignment: Assignment, node: NodeId, cut: Sequence[int]
) -> dict[int, int]:
    """Cursor of the node's owned slot -> redundant forwards of the slot that it shadows, in mode
    `gap`, predicted by a dry run.

    On the virtual device the durations are its figures. Elsewhere the stages' durations are not
    known before the first step; there the dry run assumes equal stages and a backward of twice a
    forward, in which case the answer depends on this ratio alone.
    """
    shadowed, grid = assignment.shadowed_by(node), assignment.grid
    modes = stage_modes(job.cluster.redundancy, grid.stages)
    if len(shadowed) != 1 or modes[shadowed[0].stage] != "gap":
        return {}
    batch = batch_shape(job)
    programs = tuple(
        one_f_one_b(grid.stages, len(batch.microbatches_of(block)))
        for block in blocks(batch.virtual_nodes, grid.pipelines)
    )
    virtual = job.cluster.device == "virtual"
    forward = job.cluster.virtual_forward_ms if virtual else (1.0,)
    backward = job.cluster.virtual_backward_ms if virtual else (2.0,)
    if job.cluster.recomputes:
        forward, backward = (per_stage(figures, grid.stages) for figures in (forward, backward))
        last = cut[-1] - cut[-2]  # its last layer is the model's, which is not computed again
        again = (*forward[:-1], forward[-1] * (last - 1) / last)
        backward = tuple(map(add, again, backward))
    costs = Costs.of(
        grid.stages,
        forward_s=tuple(f / 1e3 for f in forward),
        backward_s=tuple(b / 1e3 for b in backward),
    )
    layout = Layout(assignment=assignment, programs=programs, mode="gap")
    return dict(gap_budgets(layout, costs).get(shadowed[0], {}))
