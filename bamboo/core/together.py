"""Decides the answers of many nodes at one time, with less work than one after the other.

In a reconfiguration every node answers three times, and only the last answer of a kind decides
anything. Rule: the others are noted together, and the last one is decided like any event. So state,
effects and reason are exactly those of deciding one answer after the other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from bamboo.core.effects import Effect
from bamboo.core.events import BoundaryReady, Event, LayoutBuilt, Quiesced
from bamboo.core.machine import transition
from bamboo.core.reconfiguration import report_of
from bamboo.core.rounds import Answers, answers
from bamboo.core.state import Built, Policy, Reconfiguration, State
from bamboo.core.transition import Transition
from bamboo.ids import NodeId


def transitions(
    state: State, events: Sequence[Event], *, now_s: float, policy: Policy
) -> Transition:
    """Decide `events`, which were reported at one time in this order.

    Returns all their effects, and the reason of the last event that changed anything, or of the
    last one if none did. Raises CoreMisuse as `transition` does.
    """
    before = state
    done = 0
    reason = ""
    effects: list[Effect] = []
    while done < len(events):
        state, noted = _note(state, events, done)
        decided = transition(state, events[done + noted], now_s=now_s, policy=policy)
        if decided.state is not state or state is before:
            reason = decided.reason
        state = decided.state
        effects += decided.effects
        done += noted + 1
    return Transition(state=state, effects=tuple(effects), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """The question that all nodes are asked now."""

    field: str
    given: Answers[Any]
    silent: frozenset[NodeId]
    """The nodes that have yet to answer. While there is more than one, an answer decides
    nothing."""
    answer: Callable[[Any], Any]


def _note(state: State, events: Sequence[Event], first: int) -> tuple[State, int]:
    """Note some of the events from `first` on; returns the state and how many were noted."""
    reconfiguration, kind = state.reconfiguration, type(events[first])
    if reconfiguration is None or (asked := _question(state, reconfiguration, kind)) is None:
        return state, 0
    left, live = set(asked.silent), state.roll.live
    heard = []
    for event in islice(events, first, None):
        if not isinstance(event, BoundaryReady | Quiesced | LayoutBuilt) or type(event) is not kind:
            break
        mine = event.since == reconfiguration.since and event.node in left and event.node in live
        if not mine or len(left) == 1:
            break
        left.remove(event.node)
        heard.append(asked.answer(event))
    heard = heard[:-1]
    if not heard:
        return state, 0
    noted: dict[str, Any] = {asked.field: asked.given.having(*heard)}
    reconfiguration = replace(reconfiguration, **noted)
    return state.having(version=state.version + len(heard), reconfiguration=reconfiguration), len(
        heard
    )


def _question(
    state: State, reconfiguration: Reconfiguration, kind: type[Event]
) -> _Question | None:
    """The question that an event of this kind answers, if only the last answer to it decides
    anything now; else None."""
    if kind is LayoutBuilt and reconfiguration.base is not None and state.assignment is not None:
        rebuilt = answers(reconfiguration.rebuilt)
        return _Question(
            field="rebuilt",
            given=rebuilt,
            silent=rebuilt.silent(state.assignment.members()),
            answer=lambda event: Built(node=event.node, bytes=event.bytes),
        )
    reports = answers(reconfiguration.reports)
    to_report = reports.silent(reconfiguration.asked, state.roll.live)
    if reconfiguration.base is not None or not to_report:
        return None
    if kind is Quiesced:
        return _Question(field="reports", given=reports, silent=to_report, answer=report_of)
    if kind is BoundaryReady and reconfiguration.boundary is None:
        ready = answers(reconfiguration.ready)
        return _Question(
            field="ready",
            given=ready,
            silent=ready.silent(reconfiguration.asked),
            answer=lambda event: (event.node, event.step),
        )
    return None
