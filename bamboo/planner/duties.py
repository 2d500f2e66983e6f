"""What each instance of a run is there for, and since when, derived from the decisions.

    decisions, finished steps  ->  Roster  ->  DutyChange, DutyChange, ...  ->  planner.attribution

Rule: the duties follow from the decisions and from the times of steps alone, so the launcher and a
later reader of the decisions agree. An instance of which nothing is known yet is booting.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bamboo.core import events
from bamboo.core.liveness.patience import parked
from bamboo.core.state import Node, NodeStatus, Outcome, Phase, State
from bamboo.ids import InstanceId
from bamboo.topology.assignment import Assignment

_NOTHING_LEFT = (Outcome.UNRECOVERABLE, Outcome.PARKED, Outcome.FAULT)
"""Ends of a run that leave no state but the newest checkpoint."""


class Duty(StrEnum):
    """steps: owns slots of a run that trains · shadow: keeps replicas and owns nothing · recovery:
    a failover, a reconfiguration or a restore delays it, or it is being made a replica · standby:
    waits for a slot · booting, forming, parked: waits for a node, for the others, for capacity ·
    leaving: its node is gone, has left, or the run is over, and it has not been ended yet."""

    STEPS = "steps"
    SHADOW = "shadow"
    RECOVERY = "recovery"
    STANDBY = "standby"
    BOOTING = "booting"
    FORMING = "forming"
    PARKED = "parked"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """An instance takes another duty."""

    instance: InstanceId
    duty: Duty


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The time of instances in steps between these times was not that of steps that count."""

    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DutyChange:
    """From `at_s` on these instances have another duty."""

    number: int
    """Counts from 0 in each part of a run, so that a missing one shows."""
    at_s: float
    changed: tuple[Taken, ...]
    lost: tuple[InstanceId, ...] = ()
    """Instances whose loss this answers. The others waited from the end of those on."""
    again: Span | None = None
    """Work in steps that is lost, and is done again."""
    crossed_bytes: int = 0
    """Bytes of a new replica that crossed the border of a zone."""
    evaluated: Span | None = None
    """When an evaluation took place that ended here."""


def duties_of(state: State) -> dict[InstanceId, Duty]:
    """The duty of every instance that ever had a node."""
    if state.phase is Phase.FINISHED:
        return {node.instance: Duty.LEAVING for node in state.nodes}
    waiting = parked(state)
    hit = _hit_pipelines(state)
    receivers = {transfer.receiver for transfer in state.transfers}
    found: dict[InstanceId, Duty] = {}
    for node in state.nodes:
        if not node.status.live:
            found.setdefault(node.instance, Duty.LEAVING)
        elif state.assignment is None or state.phase is Phase.FORMING:
            found[node.instance] = Duty.FORMING
        elif waiting:
            found[node.instance] = Duty.PARKED
        else:
            found[node.instance] = _duty(state, state.assignment, node, hit, node.id in receivers)
    return found


def _duty(
    state: State, assignment: Assignment, node: Node, hit: frozenset[int], receives: bool
) -> Duty:
    owned = assignment.owned_by(node.id)
    placed = bool(owned) or assignment.roles.has(node.id)
    reconfiguration = state.reconfiguration
    if reconfiguration is not None:
        stands = not reconfiguration.planned or reconfiguration.base is not None
        stands = stands or any(report.node == node.id for report in reconfiguration.reports)
        if stands:
            return Duty.RECOVERY if placed else Duty.STANDBY
    if any(slot.pipeline in hit for slot in owned):
        return Duty.RECOVERY
    if owned:
        return Duty.STEPS
    if receives:
        return Duty.RECOVERY
    return Duty.SHADOW if placed and node.status is not NodeStatus.READY else Duty.STANDBY


def _hit_pipelines(state: State) -> frozenset[int]:
    """Pipelines in which a lost slot is being recomputed. A hand-over delays no node."""
    return frozenset(f.slot.pipeline for f in state.failovers if not f.planned)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A change as it was decided; the repeated work is known once the times of steps are."""

    at_s: float
    changed: tuple[Taken, ...]
    lost: tuple[InstanceId, ...] = ()
    base: int | None = None
    """The step from which all continue, if work beyond it is done again."""
    until_s: float = 0.0
    went_on_s: float = 0.0
    """When the run last continued, from that step or an earlier one; 0: never."""
    crossed_bytes: int = 0
    evaluated_s: float = 0.0


class Roster:
    """Folds one part of a run. It takes decisions in order, and steps in any order; `changes` gives
    the result."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._duties: dict[InstanceId, Duty] = {}
        self._reached: dict[int, set[float]] = {}
        self._stored: dict[int, set[float]] = {}
        self._went_on: list[tuple[int, float]] = []
        self._stood_since_s: float | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def stepped(self, steps: int, at_s: float) -> None:
        """`steps` steps were finished at `at_s`, as the node that took the last of them says."""
        self._reached.setdefault(steps, set()).add(at_s)

    def resumed(self, step: int, at_s: float, *, whole: bool = False) -> None:
        """This part continues from `step` of the parts before it. `whole`: they ended exactly
        there, so that none of their work is done again."""
        base = None if whole else step
        self._entries.append(_Entry(at_s=at_s, changed=(), base=base, until_s=at_s))
        self._went_on.append((step, at_s))

    def decided(self, before: State, after: State, event: events.Event, at_s: float) -> None:
        """A decision and the time at which it was made."""
        if self._entries:
            at_s = max(at_s, self._entries[-1].at_s)
        if isinstance(event, events.ShardSaved):
            self._stored.setdefault(event.step, set()).add(at_s)
        base, until_s = self._gone_on(before, after, at_s)
        duties = duties_of(after)
        changed = tuple(
            Taken(instance=instance, duty=duty)
            for instance, duty in duties.items()
            if self._duties.get(instance) is not duty
        )
        crossed = _crossed_bytes(after, event)
        noted = after.evaluated is not before.evaluated
        evaluated_s = event.seconds if isinstance(event, events.EvaluationDone) and noted else 0.0
        if changed or base is not None or crossed or evaluated_s:
            self._duties = duties
            entry = _Entry(
                at_s=at_s,
                changed=changed,
                lost=_lost(before, event),
                base=base,
                until_s=until_s,
                went_on_s=0.0 if base is None else self._went_on_s(base, before=at_s),
                crossed_bytes=crossed,
                evaluated_s=evaluated_s,
            )
            self._entries.append(entry)

    def _gone_on(self, before: State, after: State, at_s: float) -> tuple[int | None, float]:
        """The step from which all continue now, or from which they could continue after an end that
        leaves nothing else, and since when they waited; None if nothing was lost."""
        if after.outcome in _NOTHING_LEFT and before.outcome is None:
            newest = max((one.step for one in after.checkpoints), default=0)
            return newest, at_s if self._stood_since_s is None else self._stood_since_s
        if after.reconfiguration is not None:
            if not after.reconfiguration.planned and self._stood_since_s is None:
                self._stood_since_s = at_s
            return None, 0.0
        stood_since_s, self._stood_since_s = self._stood_since_s, None
        reconfiguration = before.reconfiguration
        if reconfiguration is None or reconfiguration.base is None or after.outcome is not None:
            return None, 0.0
        self.stepped(reconfiguration.base, at_s)
        self._went_on.append((reconfiguration.base, at_s))
        return (None, 0.0) if stood_since_s is None else (reconfiguration.base, stood_since_s)

    def _went_on_s(self, base: int, *, before: float) -> float:
        times_s = [at_s for step, at_s in self._went_on if step <= base and at_s < before]
        return max(times_s, default=0.0)

    def changes(self, *, after: int = 0) -> Sequence[DutyChange]:
        """All but the first `after` of them."""
        return [
            DutyChange(
                number=number,
                at_s=entry.at_s,
                changed=entry.changed,
                lost=entry.lost,
                again=self._again(entry),
                crossed_bytes=entry.crossed_bytes,
                evaluated=(
                    Span(since_s=entry.at_s - entry.evaluated_s, until_s=entry.at_s)
                    if entry.evaluated_s
                    else None
                ),
            )
            for number, entry in enumerate(self._entries[after:], start=after)
        ]

    def _again(self, entry: _Entry) -> Span | None:
        if entry.base is None:
            return None
        since_s = self._reached_at_s(entry.base, entry)
        if since_s is None or since_s >= entry.until_s:
            return None
        return Span(since_s=since_s, until_s=entry.until_s)

    def _reached_at_s(self, step: int, entry: _Entry) -> float | None:
        """When the run last stood before `step`. If the end of the step before it is unknown, this
        is when `step` was stored; None if that is unknown too."""

        def between(times_s: Iterable[float]) -> list[float]:
            return [at_s for at_s in times_s if entry.went_on_s <= at_s <= entry.until_s]

        if reached := between(self._reached.get(step, ())):
            return max(reached)
        if step == 0:
            return entry.went_on_s
        return min(between(self._stored.get(step, ())), default=None)


def _lost(before: State, event: events.Event) -> tuple[InstanceId, ...]:
    if not isinstance(event, events.PeerLost):
        return ()
    node = before.node(event.node)
    return (node.instance,) if node is not None and node.status.live else ()


def _crossed_bytes(state: State, event: events.Event) -> int:
    if not isinstance(event, events.ReplicaJoined):
        return 0
    zones = state.roll.zones
    return event.bytes if zones.get(event.node) != zones.get(event.receiver) else 0
