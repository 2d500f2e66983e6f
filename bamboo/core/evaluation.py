"""Notes that an evaluation is done, so that all begin the next step, and whether it ends the run.

Rule: the numbers of an evaluation follow from the state before its step, whatever is lost. So the
step at which evaluations end a run is one that a calm run ends at, too: the one before which the
last of them took place, even where all have yet to come back to it.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from bamboo.core.effects import Effect, StopAt
from bamboo.core.events import EvaluationDone
from bamboo.core.state import Evaluated, Outcome, Policy, State
from bamboo.core.transition import Transition, changed, live_members, stale
from bamboo.errors import CoreMisuse


def note_evaluation(state: State, event: EvaluationDone, policy: Policy) -> Transition:
    """Note the evaluation before a step. The first report of it counts."""
    before, node = state.evaluated, state.node(event.node)
    due = policy.eval_every and event.step > 0 and event.step % policy.eval_every == 0
    if node is None or state.assignment is None or not due:
        raise CoreMisuse(f"{event!r}: there is no evaluation that this node could have done")
    if not node.status.live:
        return stale(state, f"{event.node} is away: its report does not count")
    if before is not None and event.step <= before.step:
        return stale(state, f"the evaluation after step {event.step} was noted already")
    noted = state.having(evaluated=_with(before, event.step, event.value, policy))
    reason = f"evaluated after step {event.step}"
    stopped, effects = stop_after_evaluations(noted, policy)
    if stopped is noted:
        return changed(noted, (), reason)
    return changed(stopped, effects, f"{reason}: {stopped.stop_reason}")


def _with(before: Evaluated | None, step: int, value: float | None, policy: Policy) -> Evaluated:
    best = None if before is None else before.best
    if value is not None and (
        best is None or (value > best if policy.eval_higher else value < best)
    ):
        return Evaluated(step=step, best=value, best_step=step)
    if before is None:
        return Evaluated(step=step, worse=1)
    return replace(before, step=step, worse=before.worse + 1)


def stop_after_evaluations(state: State, policy: Policy) -> tuple[State, tuple[Effect, ...]]:
    """Let the run end as done before the step of the newest evaluation, if so many in a row were no
    better; the state itself, and no effects, if not. While all stop for a new layout nobody is told
    yet. Another stop that is under way is replaced: it would end the run at the same step."""
    found = state.evaluated
    if found is None or not 0 < policy.eval_patience <= found.worse:
        return state, ()
    if found.step == policy.steps or state.stop_outcome is Outcome.DONE:
        return state, ()
    times = "1 evaluation was" if found.worse == 1 else f"{found.worse} evaluations were"
    best = "" if found.best is None else f" than that after step {found.best_step}"
    stopped = state.having(
        stop_reason=f"{times} no better{best}",
        stop_outcome=Outcome.DONE,
        stop_at_step=found.step - 1,
    )
    if state.reconfiguration is not None:
        return stopped, ()
    members = live_members(stopped)
    return stopped, tuple(StopAt(to=node.id, step=found.step - 1) for node in members)


def after_evaluations(state: State, found: Iterable[tuple[int, float]], policy: Policy) -> State:
    """The first state of a run that goes on, with the evaluations of its parts before: the step of
    each and its value, in the order of the steps."""
    evaluated: Evaluated | None = None
    for step, value in found:
        evaluated = _with(evaluated, step, finite(value), policy)
    return stop_after_evaluations(state.having(evaluated=evaluated), policy)[0]


def finite(value: float) -> float | None:
    """The value as an event carries it."""
    return value if math.isfinite(value) else None
