"""`bamboo verify --decisions`: every decision of a run, made again and compared.

Rule: only the events and times of the log are trusted. States, effects and reasons are recomputed
by `transition` from the first state on, and any difference is named.
"""

from dataclasses import dataclass

from bamboo.coord.codec import (
    Begin,
    Committed,
    decode_entry,
    decode_state,
    encode_effects,
    state_hash,
)
from bamboo.core.invariants import check, check_cause, check_step
from bamboo.core.machine import transition
from bamboo.core.state import Policy, State
from bamboo.errors import CoreMisuse
from bamboo.ports import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionReport:
    """`decisions` were recomputed and are equal; `first_difference` is a sentence, or None."""

    decisions: int
    last_version: int
    first_version: int
    """Version of the log's first state: 0 unless the store was refilled."""
    first_difference: str | None

    @property
    def equal(self) -> bool:
        return self.first_difference is None


def verify_decisions(store: Store) -> DecisionReport:
    """Recompute the whole log, then compare the last state with the stored document.

    Raises StoreUnavailable, InputError (no such run), and UnreadableRecord for an entry that this
    program cannot read. A live run is verified up to the entries that were there at the beginning.
    """
    snapshot = store.read()
    state: State | None = None
    policy = Policy()
    first = 0
    seen = -1
    while seen < snapshot.version:
        found = store.entries(after_version=seen, timeout_s=0.0)
        for stored in found:
            if stored.version > snapshot.version:
                break
            entry = decode_entry(stored.body)
            if isinstance(entry, Begin) and state is None and entry.state.version:
                first, seen = stored.version, stored.version - 1
            if stored.version != seen + 1:
                return _differs(first, seen, f"version {seen + 1} is not in the log")
            if isinstance(entry, Begin):
                difference = None
                if state is not None:
                    difference = "the run begins a second time"
                elif entry.state.version != stored.version:
                    difference = f"it begins with a state of version {entry.state.version}"
                state, policy = entry.state, entry.policy
            elif state is None:
                difference = "the log does not begin with the run's first state"
            else:
                state, difference = _recompute(state, entry, policy)
            if difference is not None:
                return _differs(first, seen, f"version {stored.version}: {difference}")
            seen = stored.version
        if not found:
            return _differs(first, seen, f"version {seen + 1} is not in the log")
    if state is None or decode_state(snapshot.state) != state:
        return _differs(first, seen, "the stored state is not the one that the log leads to")
    return DecisionReport(
        decisions=seen - first, last_version=seen, first_version=first, first_difference=None
    )


def _recompute(state: State, entry: Committed, policy: Policy) -> tuple[State, str | None]:
    """The next state, and what differs from the entry, if anything does."""
    try:
        step = transition(state, entry.event, now_s=entry.now_s, policy=policy)
    except CoreMisuse as error:
        return state, f"the event {entry.event} cannot be decided: {error}"
    if step.state is state:
        return state, f"the event {entry.event} changes nothing: {step.reason}"
    if state_hash(step.state) != entry.state_hash:
        return step.state, f"the state has hash {state_hash(step.state)}, not {entry.state_hash}"
    if step.reason != entry.reason:
        return step.state, f"the reason is {step.reason!r}, not {entry.reason!r}"
    if step.effects != entry.effects:
        ours, theirs = encode_effects(step.effects), encode_effects(entry.effects)
        return step.state, f"the effects are {ours}, not {theirs}"
    wrong = check(step.state) + check_step(state, step.state)
    wrong += check_cause(state, entry.event, step.state)
    return step.state, wrong[0] if wrong else None


def _differs(first: int, equal_up_to: int, difference: str) -> DecisionReport:
    return DecisionReport(
        decisions=max(0, equal_up_to - first),
        last_version=equal_up_to,
        first_version=first,
        first_difference=difference,
    )
