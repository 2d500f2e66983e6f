"""What a node records of its work: losses, failovers, memory, and the check of replicas.

Rule: records never steer the training, with one exception that the user asks for: replicas that
differ end the run.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bamboo.config.check_eval import LOSS
from bamboo.core.evaluation import finite
from bamboo.core.events import CaughtUp, EvaluationDone
from bamboo.ids import NodeId
from bamboo.models import mean_metrics
from bamboo.runtime.device.devices import Device
from bamboo.runtime.step.executor import Executor
from bamboo.runtime.step.losses import Losses
from bamboo.runtime.step.norm import mean_loss
from bamboo.runtime.step.rows import densities
from bamboo.runtime.step.slot_run import Recovery, Reduced, SlotRun
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.wire.frames import to_buffer
from bamboo.runtime.wire.messages import Mailbox
from bamboo.runtime.wire.outbox import Outbox, urgent_first
from bamboo.telemetry.samples import used
from bamboo.topology.slots import Slot

LOSSES_KEPT = 64
"""Loss records that a shadow of the last stage keeps: a victim may have been lost before it
reported them."""
LOSSES_KEPT_AWAY = 100_000
"""The limit during an outage of the store, after which their owner reports them all."""
FORGOTTEN_A_STEP = 2
DENSITY_STEPS = 20
"""One pass over the gradient in so many steps: a part of a thousand of the optimizer's work."""
LEAST_ELEMENTS = 1 << 14
"""Fewer elements of a matrix are not worth a choice."""


class Records:
    """The records of one node."""

    def __init__(
        self,
        *,
        me: NodeId,
        builder: SlotBuilder,
        outbox: Outbox,
        store_away: Callable[[], bool] = lambda: False,
    ) -> None:
        self._me = me
        self._outbox = outbox
        self._store_away = store_away
        self._data = builder.dataset
        self._evaluated_on = builder.evaluated
        self._stop_metric = builder.job.eval.stop.metric or LOSS
        self._losses: dict[int, dict[str, Any]] = {}

    def stepped(self, run: SlotRun, done: Reduced, factor: float) -> None:
        """Record the loss of the step just taken, if this slot is where the loss is known."""
        if run.slot.stage != run.plan.grid.stages - 1:
            return
        step = run.step - 1
        count = self._data.count(step)
        loss = mean_loss([done.losses[m] for m in sorted(done.losses)], count)
        record = {
            "kind": "step",
            "step": step,
            "loss": loss,
            "loss_hex": loss.hex(),
            "count": count,
            "unit": self._data.unit,
            **_metrics(done.losses.metrics),
            "gradient_norm": math.sqrt(done.total_square),
            "clip_factor": factor,
            "used": used(done.losses, lambda m: self._data.sample_indices(step, m)),
            "t_s": time.time(),
        }
        self._losses[step] = record
        self._forget()
        if run.owner and run.slot.pipeline == 0:
            self._outbox.metric(record)

    def densities(self, run: SlotRun) -> None:
        """Record, every DENSITY_STEPS steps, the density of the gradient's large matrices: the
        share of their rows that have anything. `run` is about to step with its whole gradient."""
        if run.slot.pipeline or run.step % DENSITY_STEPS:
            return
        named = zip(run.plan.names, run.exchange.gradient, strict=True)
        large = {n: x for n, x in named if x.dim() > 1 and x.numel() >= LEAST_ELEMENTS}
        if large:
            found = zip(large, densities(list(large.values())), strict=True)
            self._outbox.metric({"kind": "density", "step": run.step, "density": dict(found)})

    def evaluated(self, run: SlotRun, sums: Losses) -> None:
        """Record the evaluation before the step of `run`, then report that it is done."""
        data, wanted = self._evaluated_on, self._stop_metric
        assert data is not None, "a slot evaluates only where there are data for it"
        loss = mean_loss([sums[m] for m in sorted(sums)], data.count)
        measured, seconds = _metrics(sums.metrics), time.monotonic() - run.entered_s
        self._outbox.metric(
            {
                "kind": "evaluation",
                "step": run.step,
                "loss": loss,
                "loss_hex": loss.hex(),
                "count": data.count,
                "unit": data.unit,
                **measured,
                "seconds": seconds,
                "t_s": time.time(),
            }
        )
        value = measured.get("metrics", {}).get(wanted, math.nan) if wanted != LOSS else loss
        self._outbox.event(
            EvaluationDone(node=self._me, step=run.step, value=finite(value), seconds=seconds)
        )

    def _forget(self) -> None:
        """Drop the oldest losses, but keep them until their owner can have reported them after an
        outage of the store."""
        kept = LOSSES_KEPT_AWAY if self._store_away() else LOSSES_KEPT
        for _ in range(min(FORGOTTEN_A_STEP, len(self._losses) - kept)):
            del self._losses[next(iter(self._losses))]

    def promoted(self) -> None:
        """Report again losses that a victim may not have reported; readers take the first of
        each."""
        for record in urgent_first(self._losses.values()):
            self._outbox.metric(record)

    def caught_up(self, run: SlotRun, recovery: Recovery) -> None:
        """Record a failover and the parts of its pause, in monotonic seconds of this host."""
        pause_s = recovery.first_operation_s - recovery.seen_s
        self._outbox.metric(
            {
                "kind": "failover",
                "slot": str(run.slot),
                "victim": recovery.victim,
                "successor": str(self._me),
                "planned": recovery.planned,
                "step": recovery.hit_step,
                "already_computed": recovery.already_computed,
                "recomputed": recovery.recomputed,
                "seen_s": recovery.seen_s,
                "decided_s": recovery.decided_s,
                "promoted_s": recovery.promoted_s,
                "first_operation_s": recovery.first_operation_s,
                "pause_s": pause_s,
                "t_s": time.time(),
            }
        )
        self._outbox.event(
            CaughtUp(
                node=self._me,
                slot=run.slot,
                step=recovery.hit_step,
                recomputed=recovery.recomputed,
                already_computed=recovery.already_computed,
                pause_s=pause_s,
            )
        )

    def memory(self, executor: Executor, mailbox: Mailbox, device: Device) -> None:
        """Record how many operations were done, the peak bytes of tensors, the bytes sent, and what
        the device did."""
        self._outbox.metric(
            {
                "kind": "memory",
                "node": str(self._me),
                "ops": dict(executor.operations.counts),
                "peak_stash_bytes": mailbox.peak_stash_bytes,
                "sent_bytes": dict(mailbox.sent_bytes),
                "peak_tensor_bytes": peak_tensor_bytes(executor, mailbox),
                "device_bytes": device.memory(),
                "overruns": device.overruns,
                "busy_s": dict(device.busy_s),
            }
        )


def _metrics(by_microbatch: Mapping[int, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """{"metrics": {name: value}} of a step; {} where nothing is measured."""
    told = mean_metrics(by_microbatch[m] for m in sorted(by_microbatch))
    return {"metrics": told} if told else {}


def peak_tensor_bytes(executor: Executor, mailbox: Mailbox) -> int:
    """An upper bound of the bytes of tensors that were held at once: parameters, moments and
    gradients of all slots, each slot's graphs in flight at its own peak, and the stash at its
    peak; without the rest of a layer that is computed again."""
    runs = (*executor.owned.values(), *executor.shadowed.values())
    state = sum(
        run.stage.parameter_bytes() + sum(x.nbytes for x in run.tensors().values()) for run in runs
    )
    graphs = sum(run.peak_graphs * run.graph_bytes for run in runs)
    return state + graphs + mailbox.peak_stash_bytes


def progress_of(executor: Executor, mailbox: Mailbox, device: Device) -> dict[str, Any]:
    """The payload of a node's lease: turns of the trainer, step, counts of operations, bytes of
    tensors, and the seconds that all forwards and backwards of owned slots took. It is called by
    another thread than the one that trains, which may take or give away a slot meanwhile."""
    owned = tuple(executor.owned.values())
    return {
        "turns": mailbox.turns,
        "step": max((run.step for run in owned), default=0),
        "ops": dict(executor.operations.counts),
        "tensor_bytes": peak_tensor_bytes(executor, mailbox),
        "busy_s": device.busy_s.get("F", 0.0) + device.busy_s.get("B", 0.0),
    }


def acknowledged(mailbox: Mailbox, executor: Executor) -> bool:
    """Whether the shadow of every slot that this node owns stands where the slot stands."""
    shadow, safe = mailbox.assignment.shadow, mailbox.safe
    return all(shadow(s) is None or safe[s] >= run.step for s, run in executor.owned.items())


class ReplicaCheck:
    """Compares owner and shadow after every step, when the job asks for it."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._own: dict[tuple[Slot, int], str] = {}

    def stepped(self, run: SlotRun) -> dict[str, str]:
        """Note the hash of an owner; for a shadow, return what its acknowledgement carries."""
        if not self._wanted:
            return {}
        digest = run_hash(run)
        if run.owner:
            self._own[(run.slot, run.step)] = digest
            return {}
        return {"hash": digest}

    def forget(self) -> None:
        """Drop all hashes: in a new layout a slot means other layers, and steps are done again."""
        self._own.clear()

    def difference(self, mailbox: Mailbox) -> str | None:
        """A sentence about the first replica that differs, or None; drops hashes of safe steps."""
        for key, theirs in mailbox.replica_hashes.items():
            ours = self._own.get(key)
            if ours is not None and ours != theirs:
                slot, step = key
                return (
                    f"the replica of stage {slot.stage} (pipeline {slot.pipeline}) differs from "
                    f"its owner after step {step - 1}: {theirs[:12]} is not {ours[:12]}"
                )
        for key in [k for k in self._own if k[1] < mailbox.safe_step]:
            del self._own[key]
        return None


def run_hash(run: SlotRun) -> str:
    """SHA-256 over all of its state, in order."""
    digest = hashlib.sha256()
    for name, tensor in run.tensors().items():
        digest.update(name.encode())
        digest.update(to_buffer(tensor.cpu()).data)
    return digest.hexdigest()
