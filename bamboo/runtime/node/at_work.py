"""A node at work: it runs its slots, and sees to what follows each of their operations and steps.

Rule: no decision is read here. What the executor reports (`Listener`) is acknowledged, recorded,
sent and stored; a slot that was taken over is watched until it has caught up.
"""

import time
from collections import deque
from typing import Any

from bamboo.coord.strategies import Strategies
from bamboo.ids import NodeId
from bamboo.ports import Transport
from bamboo.runtime.node.faults import FaultReports, LogWatch
from bamboo.runtime.node.finish import Finish, KeepStage
from bamboo.runtime.node.preempt import Preemptions
from bamboo.runtime.node.reconfiguration import NodeReconfiguration
from bamboo.runtime.node.records import Records, ReplicaCheck, acknowledged, progress_of
from bamboo.runtime.node.sync_change import SyncChange
from bamboo.runtime.state.boundary import Boundaries
from bamboo.runtime.state.checkpoints import Checkpoints
from bamboo.runtime.state.decision import Decided
from bamboo.runtime.state.transfer import Transfers
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.losses import Losses
from bamboo.runtime.step.operations import Operations
from bamboo.runtime.step.slot_run import Recovery, Reduced, SlotRun
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.wire.messages import Mailbox
from bamboo.runtime.wire.outbox import Outbox


class NodeAtWork:
    """The parts of one node, and what follows its steps. Belongs to the trainer's thread."""

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
        strategies: Strategies | None = None,
    ) -> None:
        job = builder.job
        self._me = me
        self._job = job
        self._transport = transport
        self._outbox = outbox
        self._preemptions = preemptions
        self.device = builder.device
        self.device.woken_by(transport.wake)
        self.mailbox = mailbox = Mailbox(transport, me, self.device)
        self.executor = executor = self._executor_for(builder)
        self.log_watch = LogWatch(job.cluster.step_timeout_s)
        self._records = Records(
            me=me, builder=builder, outbox=outbox, store_away=self.log_watch.away
        )
        self._replicas = ReplicaCheck(wanted=job.cluster.check_replicas)
        self._inbound: deque[Decided] = deque()
        """Decisions that were read and are not applied yet, oldest first."""
        self.transfers = Transfers(
            me=me, mailbox=mailbox, executor=executor, builder=builder, outbox=outbox
        )
        executor.ask(
            attention=lambda: bool(self._inbound),
            background=self._background,
            settled=self._settled if job.cluster.check_replicas else None,
        )
        self._sync_change = SyncChange(
            me=me,
            builder=builder,
            executor=executor,
            transfers=self.transfers,
            outbox=outbox,
            strategies=strategies,
        )
        self._boundaries = Boundaries(me=me, executor=executor, mailbox=mailbox, outbox=outbox)
        self._checkpoints = checkpoints
        self._era = 0
        self._stopping = False
        self.gone_seen_s: dict[str, float] = {}  # a peer's connection ended then (monotonic)
        self._fault_reports = FaultReports(
            me=me,
            executor=executor,
            mailbox=mailbox,
            outbox=outbox,
            told=self.set_hold,
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

    def _executor_for(self, builder: SlotBuilder) -> Executor:
        job = builder.job
        operations = Operations(
            mailbox=self.mailbox,
            device=self.device,
            optimizer=builder.optimizer,
            listener=self,
            redundancy=job.cluster.redundancy,
            clip_norm=job.train.clip_norm,
        )
        return Executor(
            mailbox=self.mailbox,
            operations=operations,
            listener=self,
            redundancy=job.cluster.redundancy,
            last_step=job.train.steps - 1,
            stall_s=job.cluster.step_timeout_s,
        )

    def _settled(self) -> bool:
        return acknowledged(self.mailbox, self.executor)

    def saw_gone(self, node: str, at_s: float) -> None:
        """Note when this node saw a peer's connection end, for the parts of a pause."""
        self.gone_seen_s.setdefault(node, at_s)

    def progress(self) -> dict[str, Any]:
        """The payload of the node's lease: step, counts of operations, bytes of tensors."""
        return progress_of(self.executor, self.mailbox, self.device)

    # ------------------------------------------------------------------ between two operations

    def _background(self) -> bool:
        self.transfers.pump()
        self.reconfiguration.pump()
        self.end_recoveries()
        self._boundaries.serve()
        self.set_hold()
        return self.transfers.prefetch.can_follow

    def set_hold(self) -> None:
        """Set whether slots may begin a step: none does while any of these holds."""
        ending = self._boundaries.holding or self._stopping or self._fault_reports.faulted
        self.executor.hold_steps(ending or self.reconfiguration.holding)

    # ------------------------------------------------------------------ after an operation

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
            self.at_boundary(run)
        else:
            self.transfers.followed(run)
        self.end_recoveries()
        self.replicas_differ()  # before their hashes are forgotten
        self.mailbox.prune(self.transfers.replicas_from())
        for other in (*self.executor.owned.values(), *self.executor.shadowed.values()):
            other.forget(self.mailbox.safe_step)

    def at_boundary(self, run: SlotRun) -> None:
        """An owned slot stands between two steps: send its state and store it where wanted. It is
        not stored once all nodes stop, because the step may be one of the old cut in the era of the
        new one."""
        self.transfers.boundary(run)
        if self._checkpoints is not None and not self.executor.frozen:
            left_s = self._boundaries.save_watch.left_s()
            self._checkpoints.boundary(run, self._era, left_s=left_s)

    def replicas_differ(self) -> bool:
        if (difference := self._replicas.difference(self.mailbox)) is not None:
            self._fault_reports.fail(difference)
        return difference is not None

    def end_recoveries(self) -> None:
        """A slot has caught up when no node can ask any more for what only its victim had."""
        for run in self.executor.owned.values():
            recovery = run.recovery
            beyond = recovery is not None and run.step > recovery.hit_step
            if recovery and beyond and self.mailbox.safe_step >= recovery.version:
                self.end_recovery(run, recovery)

    def end_recovery(self, run: SlotRun, recovery: Recovery) -> None:
        recovery.first_operation_s = recovery.first_operation_s or time.monotonic()
        self._records.caught_up(run, recovery)
        run.recovery = None

    def first_operation(self, run: SlotRun) -> None:
        """Note the time at which the pause ends."""
        assert run.recovery is not None
        run.recovery.first_operation_s = time.monotonic()

    def evaluated(self, run: SlotRun, sums: Losses) -> None:
        """Record and report it; all go on once the decision on it is read."""
        self._records.evaluated(run, sums)

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
            self._records.densities(run)
        if run.owner:
            self._preemptions.at(phase, run.slot, run.step, microbatch)

    def idle(self) -> None:
        """Go on with what waits until no operation is ready, and check for a stall or fault."""
        self.reconfiguration.serve()
        self._fault_reports.idle()
