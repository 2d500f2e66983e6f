"""A node's part in the run: it applies decisions to the executor, between two operations.

Rule: the trainer decides nothing about membership. Decisions come from the log, each with the state
after it (`apply`); effects addressed to this node are performed once; and what happens here is
reported as events and records through `Outbox`, which never blocks.
"""

import time
from typing import Any

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
from bamboo.core.saving.keep import shards_of
from bamboo.core.state import NodeStatus, Phase, State
from bamboo.ids import NodeId
from bamboo.ports import Transport
from bamboo.runtime.node.faults import FaultReports
from bamboo.runtime.node.finish import Finish, KeepStage
from bamboo.runtime.node.log_watch import LogWatch
from bamboo.runtime.node.preempt import Preemptions
from bamboo.runtime.node.reconfiguration import NodeReconfiguration
from bamboo.runtime.node.records import Records, ReplicaCheck, acknowledged, progress_of
from bamboo.runtime.state.boundary import Boundaries
from bamboo.runtime.state.checkpoints import Checkpoints
from bamboo.runtime.state.decision import Decided, Goodbye
from bamboo.runtime.state.inbound import Inbound
from bamboo.runtime.state.transfer import Transfers
from bamboo.runtime.step.executor import Completed, Executor, Interrupted
from bamboo.runtime.step.gap_budget import gap_budget_of
from bamboo.runtime.step.operations import Operations
from bamboo.runtime.step.slot_run import Recovery, Reduced, SlotRun
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.step.takeover import declare_safe, resend, tell_what_was_reduced
from bamboo.runtime.wire.messages import Mailbox
from bamboo.runtime.wire.outbox import Outbox
from bamboo.topology.slots import Slot


class Trainer:
    """Trains this node's slots until the run ends, this node has left, or it is fenced."""

    def __init__(
        self,
        *,
        me: NodeId,
        builder: SlotBuilder,
        transport: Transport,
        outbox: Outbox,
        preemptions: Preemptions,
        keep_final: KeepStage | None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        job = builder.job
        self._me, self._job, self._transport = me, job, transport
        self._outbox, self._preemptions = outbox, preemptions
        self.device = builder.device
        self.device.woken_by(transport.wake)
        self.mailbox = mailbox = Mailbox(transport, me, self.device)
        self.executor = executor = Executor(
            mailbox=mailbox,
            operations=Operations(
                mailbox=mailbox,
                device=self.device,
                optimizer=builder.optimizer,
                listener=self,
                redundancy=job.cluster.redundancy,
                clip_norm=job.train.clip_norm,
            ),
            listener=self,
            redundancy=job.cluster.redundancy,
            last_step=job.train.steps - 1,
            stall_s=job.cluster.step_timeout_s,
        )
        self.log_watch = LogWatch(job.cluster.step_timeout_s)
        self._records = Records(
            me=me, builder=builder, outbox=outbox, store_away=self.log_watch.away
        )
        self._replicas = ReplicaCheck(wanted=job.cluster.check_replicas)
        if job.cluster.check_replicas:
            executor.settled = lambda: acknowledged(mailbox, executor)
        self._inbound = Inbound()
        executor.attention = lambda: bool(self._inbound)
        self.transfers = Transfers(
            me=me, mailbox=mailbox, executor=executor, builder=builder, outbox=outbox
        )
        executor.background = self._background
        self.device.meanwhile = lambda until_s: self.transfers.serve_until(until_s, self._inbound)
        self._boundaries = Boundaries(me=me, executor=executor, mailbox=mailbox, outbox=outbox)
        self._checkpoints, self._era, self._stopping = checkpoints, 0, False
        self.gone_seen_s: dict[str, float] = {}  # a peer's connection ended then (monotonic)
        self._fault_reports = FaultReports(
            me=me,
            executor=executor,
            mailbox=mailbox,
            outbox=outbox,
            told=self._set_hold,
            busy=lambda: bool(self._inbound),
            patience_s=job.cluster.step_timeout_s,
        )
        self.reconfiguration = NodeReconfiguration(
            me=me,
            mailbox=mailbox,
            executor=executor,
            builder=builder,
            outbox=outbox,
            vault=checkpoints,
            prefetch=self.transfers.prefetch,
        )
        self.reconfiguration.say_losses = self._records.promoted
        self.finish = Finish(me=me, executor=executor, outbox=outbox, keep=keep_final)
        self._goodbye: Goodbye | None = None

    # ------------------------------------------------------------------ from other threads

    def tell(self, decided: Decided) -> None:
        """Hand over a decision; called by the thread that follows the log."""
        self._inbound.append(decided)
        self._transport.wake()

    def saw_gone(self, node: str, at_s: float) -> None:
        """Note when this node saw a peer's connection end, for the parts of a pause."""
        self.gone_seen_s.setdefault(node, at_s)

    def progress(self) -> dict[str, Any]:
        """The payload of the node's lease: step, counts of operations, bytes of tensors."""
        return progress_of(self.executor, self.mailbox, self.device)

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

    def _background(self) -> bool:
        self.transfers.pump()
        self.reconfiguration.pump()
        self._end_recoveries()
        self._boundaries.serve()
        self._set_hold()
        return self.transfers.prefetch.can_follow

    def _attend(self, interrupted: Interrupted) -> None:
        while self._inbound and self._goodbye is None:
            self._apply(self._inbound.popleft())
        if interrupted.cause == "non-finite":
            assert interrupted.run is not None
            self._fault_reports.report_non_finite(interrupted.run)
        elif interrupted.cause == "stalled" and not self.log_watch.excuses(interrupted.cursor):
            words = f"node {self._me} made no progress at {interrupted.cursor}"
            self._fault_reports.stalled(words, era=self._era)

    def _set_hold(self) -> None:
        """Set whether slots may begin a step: none does while any of these holds."""
        ending = self._boundaries.holding or self._stopping or self._fault_reports.faulted
        self.executor.hold_steps(ending or self.reconfiguration.holding)

    def say_finished(self) -> None:
        """The last step is taken: write the final state of what is owned here, and report it."""
        if self._fault_reports.faulted or self._replicas_differ():
            self.mailbox.collect(0.05)
            return
        for run in self.executor.owned.values():
            if run.recovery is not None:
                # Its victim had only the final state left to write.
                self._end_recovery(run, run.recovery)
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
        self.mailbox.connect(state)
        self.transfers.stop(state)
        self._boundaries.forget()
        self._stopping = False
        self.finish.take_back()
        self.reconfiguration.sync(state)
        self._replicas.forget()
        self._set_hold()

    def _reassign(self, state: State) -> None:
        assignment = state.assignment
        assert assignment is not None
        self.mailbox.assign(assignment, state.participants())
        self.mailbox.connect(state)
        self.reconfiguration.sync(state)
        # Also without a GoOn to perform: for a standby, or a node that joined after it.
        self.transfers.builder = self.reconfiguration.builder
        self.device.lay_out(self.reconfiguration.builder.strategy.placement.cut)
        for slot in [s for s in self.executor.owned if assignment.owner(s) != self._me]:
            # Moved at a step boundary: the roles are exchanged and the state is the same.
            run = self.executor.owned[slot]
            run.owner, run.recovery = False, None
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
                self.executor.gap_budget = {}
                self.reconfiguration.finish()
                for run in self.executor.owned.values():
                    self._at_boundary(run)
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
        self._set_hold()

    def _start(self) -> None:
        assignment = self.mailbox.assignment
        for slot in assignment.owned_by(self._me):
            self.executor.adopt(self.reconfiguration.builder.build(slot, owner=True))
        for slot in assignment.shadowed_by(self._me):
            self.executor.adopt(self.reconfiguration.builder.build(slot, owner=False))
        self.executor.gap_budget = gap_budget_of(self._job, assignment, self._me)

    def _promote(self, slot: Slot, victim: str, decided: Decided) -> None:
        run = self.executor.shadowed[slot]
        while self.mailbox.has(slot, "ship", run.step):
            # A reduced gradient that has come already is used and never computed again.
            self.executor.operations.step_replica(run, run.replica_step)
        self.executor.gap_budget = {}
        run.owner = True
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
        self._at_boundary(run)
        self._records.promoted()
        self.finish.take_back()

    def stepped(self, run: SlotRun, done: Reduced, factor: float) -> None:
        """Acknowledge, record, and drop what no node can ask for any more."""
        meta = self._replicas.stepped(run)
        bare = self.mailbox.assignment.shadow(run.slot) is None and not self.mailbox.guarded(
            run.slot
        )
        if not run.owner or bare:
            self.mailbox.declare_safe(run.slot, run.step, meta)
        self._records.stepped(run, done, factor)
        self._boundaries.stepped(run, self.transfers.awaited())
        if run.owner:
            self._at_boundary(run)
        else:
            self.transfers.followed(run)
        self._end_recoveries()
        self._replicas_differ()  # before their hashes are forgotten
        self.mailbox.prune(self.transfers.replicas_from())
        for other in (*self.executor.owned.values(), *self.executor.shadowed.values()):
            other.forget(self.mailbox.safe_step)

    def _at_boundary(self, run: SlotRun) -> None:
        """An owned slot stands between two steps: send its state and store it where wanted. It is
        not stored once all nodes stop, because the step may be one of the old cut in the era of the
        new one."""
        self.transfers.boundary(run)
        if self._checkpoints is not None and not self.executor.frozen:
            left_s = self._boundaries.save_watch.left_s()
            self._checkpoints.boundary(run, self._era, left_s=left_s)

    def _replicas_differ(self) -> bool:
        if (difference := self._replicas.difference(self.mailbox)) is not None:
            self._fault_reports.fail(difference)
        return difference is not None

    def _end_recoveries(self) -> None:
        """A slot has caught up when no node can ask any more for what only its victim had."""
        for run in self.executor.owned.values():
            recovery = run.recovery
            beyond = recovery is not None and run.step > recovery.hit_step
            if recovery and beyond and self.mailbox.safe_step >= recovery.version:
                self._end_recovery(run, recovery)

    def _end_recovery(self, run: SlotRun, recovery: Recovery) -> None:
        recovery.first_operation_s = recovery.first_operation_s or time.monotonic()
        self._records.caught_up(run, recovery)
        run.recovery = None

    def first_operation(self, run: SlotRun) -> None:
        """Note the time at which the pause ends."""
        assert run.recovery is not None
        run.recovery.first_operation_s = time.monotonic()

    def more_to_ship(self, run: SlotRun) -> bool:
        """Whether another slot of this node and pipeline has yet to ship in the step of `run`."""
        here = (run.slot.pipeline, run.step)
        others = (x for x in self.executor.owned.values() if x is not run and not x.shipped)
        return any((other.slot.pipeline, other.step) == here for other in others)

    def at(self, phase: str, run: SlotRun, microbatch: int) -> None:
        """Tell prefetches and transfers about the gradient and the step, and carry out a listed
        preemption of the owner of a slot, once."""
        if phase == "exchange" and run.exchanged:
            self.transfers.prefetch.share(run)
        if phase == "ship":
            self.transfers.freeze(run)
        if run.owner:
            self._preemptions.at(phase, run.slot, run.step, microbatch)

    def idle(self) -> None:
        """Go on with what waits until no operation is ready, and check for a stall or fault."""
        self.reconfiguration.serve()
        self._fault_reports.idle()
