"""What a launched run looks like so far: a frozen value, folded from decisions, metrics and leases.

Pure: the launcher feeds it, the views draw it, and the same folds rebuild it from files in tests. A
metric may come twice, when an owner reported a step and died and its successor reports it again.
The first counts, since both carry the same bits. A restore takes steps back. They count again once
they are repeated, whether decisions or metrics are read first.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bamboo.core import events
from bamboo.core.state import Node, Outcome, Phase, State
from bamboo.ids import NodeId
from bamboo.runs.pause import pause_parts_s
from bamboo.runs.reconfigured import Reconfigured, reconfigured_by
from bamboo.telemetry.records import EvaluationRecord
from bamboo.topology.assignment import Assignment
from bamboo.topology.slots import Slot
from bamboo.value import per_usd_spent

OPERATIONS = ("F", "B", "FR", "BR")
"""Forward, backward, and both as redundant operations for the neighbour's stage."""
RATE_WINDOW = 10
"""Number of steps that tokens per second are averaged over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWork:
    """What a node reported in its last beat."""

    step: int = 0
    operations: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(OPERATIONS, 0))
    tensor_bytes: int = 0
    overruns: int = 0
    """Operations of a virtual device that took longer than its figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """A node that was lost or handed over, and what that cost."""

    at_s: float
    node: NodeId
    zone: str
    slots: tuple[Slot, ...]
    planned: bool
    sentence: str
    """The decision's own reason."""
    successors: tuple[NodeId, ...] = ()
    """The nodes that have its slots now, where the decision on its loss names them."""
    step: int | None = None
    already_computed: int | None = None
    recomputed: int | None = None
    seen_pause_s: float | None = None
    """From the first observed disconnect to the slot's first operation on its successor."""
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """The parts of the pause, in order: disconnect (where the killer noted the time), decision,
    promotion, first operation."""

    @property
    def pause_s(self) -> float | None:
        """From the kill, where its time is known, to the slot's first operation on its successor,
        the disconnect included. None: there is no such operation yet."""
        return sum(self.parts_s.values()) if self.parts_s else self.seen_pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A finished step."""

    steps: int
    """Number of finished steps, this one included."""
    at_s: float
    """Unix time; 0 where it is no longer known."""
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the model measures beside its loss, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An evaluation of the state after `step` steps."""

    step: int
    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNow:
    """Where the trace is that a run is played on."""

    name: str
    time_scale: float
    restart_s: float | None
    max_nodes: int
    nodes: int
    """How many the run may have now."""
    played_s: float
    """Seconds of the trace since training began."""
    length_s: float
    """Seconds of the trace from there to its end."""
    preemptions: int
    """Ordered so far because the trace lost a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run, as far as it has come."""

    run: str
    steps: int
    """Number of steps that the job asks for."""
    tokens_per_step: int
    """0 where the data are no text."""
    state: State
    started_at_s: float
    now_s: float
    samples_per_step: int = 0
    unit: str = "token"
    """What is counted, in the singular."""
    step: int = 0
    """Finished steps as reported, without those that a restore took back."""
    first_loss: float | None = None
    recent: tuple[Reported, ...] = ()
    """The last RATE_WINDOW + 1 of the steps that count."""
    evaluation: Evaluation | None = None
    """The newest one; a restore takes none back, since doing it again gives the same numbers."""
    gone_on: tuple[tuple[float, int], ...] = ()
    """(Unix time, step) at which all nodes continued in a new layout. Later steps that were
    finished before that time do not count."""
    usd: float = 0.0
    """Cost of instances."""
    modelled: bool = True
    """Whether these dollars are not charged by a cloud."""
    beside_usd: float = 0.0
    """Overheads, modelled."""
    reserve_usd: float = 0.0
    """What a stop in order would add."""
    crossed_bytes: int = 0
    """Bytes of replicas that crossed a zone border."""
    work: Mapping[NodeId, NodeWork] = field(default_factory=dict)
    preemptions: tuple[Preemption, ...] = ()
    reconfigured: tuple[Reconfigured, ...] = ()
    """Completed reconfigurations."""
    stood_since_s: float | None = None
    """When all nodes stopped for the reconfiguration that is under way."""
    trace: TraceNow | None = None
    ending: str = ""
    """The reason of the decision that ended the run. Nodes that leave later do not change it."""

    @property
    def sentence(self) -> str:
        """Why the run is in its present state."""
        return self.ending or self.state.sentence

    def at(self, *, now_s: float, usd: float) -> "Progress":
        """The same progress at another time and with another bill."""
        return replace(self, now_s=now_s, usd=usd)

    @property
    def loss(self) -> float | None:
        """Loss of the last step that counts; None before the first, and where a restore has taken
        back all steps that are remembered."""
        return self.recent[-1].loss if self.recent else None

    @property
    def metrics(self) -> Mapping[str, float]:
        """Of the same step."""
        return self.recent[-1].metrics if self.recent else {}

    @property
    def mean_loss_of_last_10(self) -> float | None:
        losses = [reported.loss for reported in self.recent[-10:]]
        return sum(losses) / len(losses) if losses else None

    @property
    def steps_done(self) -> int:
        """The steps that the run has completed: those that its members finished together, where it
        ended so, whatever was reported; otherwise the steps that count."""
        state, last = self.state, self.last_step
        if state.outcome is Outcome.DONE and state.stop_at_step is None:
            return self.steps
        owners = set() if state.assignment is None else set(state.assignment.owners)
        return self.step if last is None or owners - set(state.finished) else last

    @property
    def last_step(self) -> int | None:
        """The step that all nodes were to stop after, in a finished run; the first is 1."""
        state = self.state
        return state.stop_at_step + 1 if self.finished and state.stop_at_step is not None else None

    @property
    def tokens(self) -> int:
        return self.steps_done * self.tokens_per_step

    @property
    def tokens_per_s(self) -> float:
        """Over the last RATE_WINDOW steps; 0 before the second step that this launcher saw."""
        return self._rate_of(self.tokens_per_step)

    @property
    def samples_per_s(self) -> float:
        """Over the same steps."""
        return self._rate_of(self.samples_per_step)

    def _rate_of(self, per_step: int) -> float:
        seen = [reported.at_s for reported in self.recent if reported.at_s > 0]
        if len(seen) < 2 or seen[-1] <= seen[0]:
            return 0.0
        passed_s = seen[-1] - seen[0]
        return per_step * (len(seen) - 1) / passed_s

    @property
    def tokens_per_usd(self) -> float:
        """All tokens so far over all dollars so far; 0 while nothing was spent."""
        return per_usd_spent(self.tokens, self.usd)

    @property
    def samples_per_usd(self) -> float:
        """The same of samples."""
        return per_usd_spent(self.steps_done * self.samples_per_step, self.usd)

    @property
    def remaining_s(self) -> float | None:
        """Time to the last step at the present rate; None while there is no rate."""
        steps_per_s = self._rate_of(1)
        return (self.steps - self.step) / steps_per_s if steps_per_s > 0 else None

    @property
    def outcome(self) -> Outcome | None:
        return self.state.outcome

    @property
    def finished(self) -> bool:
        return self.state.phase is Phase.FINISHED


def with_step(
    progress: Progress,
    *,
    step: int,
    loss: float,
    at_s: float,
    metrics: Mapping[str, float] | None = None,
) -> Progress:
    """Step number `step` (the first is 1) is finished. A repeated record changes nothing, nor does
    a late one of a step that was taken back."""
    first = loss if progress.first_loss is None else progress.first_loss
    progress = replace(progress, first_loss=first)
    taken_back = any(at_s <= since_s and step > base for since_s, base in progress.gone_on)
    if taken_back or not progress.step < step <= (progress.last_step or step):
        return progress
    reported = Reported(steps=step, at_s=at_s, loss=loss, metrics=metrics or {})
    return replace(progress, step=step, recent=(*progress.recent, reported)[-(RATE_WINDOW + 1) :])


def _without_taken_back(progress: Progress, base: int, *, since_s: float) -> Progress:
    """All continued from `base` at `since_s`: later steps finished before then are undone."""
    kept = tuple(one for one in progress.recent if one.steps <= base or one.at_s > since_s)
    newer = bool(kept) and kept[-1].at_s > since_s
    return replace(
        progress,
        step=progress.step if newer else min(progress.step, base),
        recent=kept,
    )


def with_decision(
    progress: Progress, after: State, *, event: events.Event, reason: str, at_s: float
) -> Progress:
    """One committed transition: the new state, and the preemption that it reports, if any."""
    before = progress.state
    preemptions = progress.preemptions
    match event:
        case (
            events.PeerLost()
            | events.HandedOver()
            | events.NodeFailed(scope=events.FaultScope.NODE | events.FaultScope.DEVICE)
        ):
            node = before.node(event.node)
            if node is not None and node.status.live and before.assignment is not None:
                preemptions = (
                    *preemptions,
                    Preemption(
                        at_s=at_s,
                        node=node.id,
                        zone=node.zone,
                        slots=before.assignment.owned_by(node.id),
                        planned=isinstance(event, events.HandedOver),
                        sentence=reason,
                        successors=tuple(
                            sorted({f.successor for f in after.failovers if f.victim == node.id})
                        ),
                    ),
                )
        case events.CaughtUp():
            victim = next((f.victim for f in before.failovers if f.slot == event.slot), None)
            preemptions = tuple(
                _caught_up(p, event) if p.node == victim else p for p in preemptions
            )
        case _:
            pass
    began_s = progress.stood_since_s if before.reconfiguration is not None else at_s
    began_s = at_s if began_s is None else began_s
    later = [one.steps for one in progress.recent if one.at_s > at_s]  # read before this decision
    finished = min(later) - 1 if later else progress.step
    done = reconfigured_by(before, after, event, began_s=began_s, at_s=at_s, finished=finished)
    ended = after.phase is Phase.FINISHED and before.phase is not Phase.FINISHED
    if done is not None:
        progress = replace(progress, gone_on=(*progress.gone_on, (at_s, done.step)))
        progress = _without_taken_back(progress, done.step, since_s=at_s)
    if ended and after.stop_at_step is not None:
        # These steps were finished once. Nodes that continued before a restore report them.
        progress = _without_taken_back(progress, after.stop_at_step + 1, since_s=math.inf)
    return replace(
        progress,
        state=after,
        preemptions=preemptions,
        reconfigured=progress.reconfigured if done is None else (*progress.reconfigured, done),
        stood_since_s=None if after.reconfiguration is None else began_s,
        ending=reason if ended else progress.ending,
    )


def _caught_up(preemption: Preemption, event: events.CaughtUp) -> Preemption:
    """A node that owned several slots catches up several times: counts add, pauses overlap."""
    return replace(
        preemption,
        step=event.step,
        already_computed=(preemption.already_computed or 0) + event.already_computed,
        recomputed=(preemption.recomputed or 0) + event.recomputed,
        seen_pause_s=max(preemption.seen_pause_s or 0.0, event.pause_s),
    )


def with_metric(progress: Progress, record: Mapping[str, Any]) -> Progress:
    """Take in a record of the metrics stream, by its `kind`. A kind of a later version changes
    nothing.

    step: {step (the first is 0), loss, metrics?, t_s} · evaluation: `EvaluationRecord.of` ·
    failover: {victim, seen_s, decided_s, promoted_s, first_operation_s} ·
    memory: {node, peak_tensor_bytes, peak_stash_bytes, ops}.
    """
    match record.get("kind"):
        case "step":
            return with_step(
                progress,
                step=int(record["step"]) + 1,
                loss=float(record["loss"]),
                at_s=float(record["t_s"]),
                metrics={name: float(x) for name, x in record.get("metrics", {}).items()},
            )
        case "evaluation":
            return with_evaluation(progress, EvaluationRecord.of(record, time="t_s"))
        case "failover":
            victim = str(record.get("victim", ""))
            return _with_pause_parts(progress, victim, pause_parts_s(record))
        case "memory":
            peak = int(record["peak_tensor_bytes"])
            beat = {
                "tensor_bytes": peak,
                "ops": record.get("ops", {}),
                "overruns": record.get("overruns", 0),
            }
            return with_beat(progress, NodeId(str(record["node"])), beat)
        case _:
            return progress


def with_evaluation(progress: Progress, record: EvaluationRecord) -> Progress:
    """Take in an evaluation. One that is reported again, or late, changes nothing."""
    if progress.evaluation is not None and progress.evaluation.step >= record.step:
        return progress
    newest = Evaluation(
        step=record.step, loss=record.loss, metrics=record.metrics, seconds=record.seconds
    )
    return replace(progress, evaluation=newest)


def _with_pause_parts(progress: Progress, victim: str, parts_s: Mapping[str, float]) -> Progress:
    return replace(
        progress,
        preemptions=tuple(
            replace(p, parts_s=max(p.parts_s, parts_s, key=lambda parts: sum(parts.values())))
            if p.node == victim
            else p
            for p in progress.preemptions
        ),
    )


def with_beat(progress: Progress, node: NodeId, payload: Mapping[str, Any]) -> Progress:
    """Take in a lease's payload: counts grow and peaks stay, so a late one changes nothing."""
    old = progress.work.get(node, NodeWork())
    counts = payload.get("ops", {})
    new = NodeWork(
        step=max(old.step, int(payload.get("step", 0))),
        operations={
            op: max(int(counts.get(op, 0)), old.operations.get(op, 0)) for op in OPERATIONS
        },
        tensor_bytes=max(old.tensor_bytes, int(payload.get("tensor_bytes", 0))),
        overruns=max(old.overruns, int(payload.get("overruns", 0))),
    )
    return replace(progress, work={**progress.work, node: new})


def node_rows(progress: Progress) -> list[dict[str, Any]]:
    """Every node that ever joined, as `status --json` shows it: live ones first, by slot."""
    assignment = progress.state.assignment

    def slots(node: Node, of: Callable[[Assignment, NodeId], tuple[Slot, ...]]) -> tuple[Slot, ...]:
        return of(assignment, node.id) if assignment else ()

    def place(node: Node) -> tuple[bool, bool, tuple[Slot, ...], str]:
        owns = slots(node, Assignment.owned_by)
        return not node.status.live, not owns, owns, node.id

    return [
        {
            "id": node.id,
            "instance": node.instance,
            "pid": node.pid,
            "zone": node.zone,
            "status": node.status.value,
            "owns": [str(s) for s in slots(node, Assignment.owned_by)],
            "shadows": [str(s) for s in slots(node, Assignment.shadowed_by)],
            "operations": dict(progress.work.get(node.id, NodeWork()).operations),
            "tensor_bytes": progress.work.get(node.id, NodeWork()).tensor_bytes,
            "overruns": progress.work.get(node.id, NodeWork()).overruns,
        }
        for node in sorted(progress.state.nodes, key=place)
    ]


def status_body(progress: Progress) -> dict[str, Any]:
    """The value of `bamboo status --json`. Figures of tokens are null where the data are no
    text."""
    state, text = progress.state, progress.tokens_per_step > 0
    return {
        "run": progress.run,
        "phase": state.phase.value,
        "outcome": state.outcome.value if state.outcome else None,
        "sentence": progress.sentence,
        "generation": state.generation,
        "version": state.version,
        "step": progress.steps_done,
        "steps": progress.steps,
        "loss": progress.loss,
        "unit": progress.unit,
        "metrics": dict(progress.metrics),
        "evaluation": None if progress.evaluation is None else asdict(progress.evaluation),
        "tokens_per_s": progress.tokens_per_s if text else None,
        "usd": progress.usd,
        "tokens_per_usd": progress.tokens_per_usd if text else None,
        "samples_per_s": progress.samples_per_s,
        "samples_per_usd": progress.samples_per_usd,
        "preemptions": len(progress.preemptions),
        "nodes": node_rows(progress),
    }
