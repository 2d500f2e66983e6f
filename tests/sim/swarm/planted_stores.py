"""Bugs planted in what is stored: checkpoints, and what notices leave without a home."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from bamboo.core import machine, reconfiguration, saving
from bamboo.core.effects import CompleteCheckpoint
from bamboo.core.events import CheckpointFailed
from bamboo.core.state import Policy, State
from bamboo.core.transition import Transition, live_members


def part_missing() -> AbstractContextManager[Any]:
    """A checkpoint is completed with one part less."""

    def order(decided: Transition) -> Transition:
        state = decided.state
        members = sorted(node.id for node in live_members(state))
        if state.reconfiguration is not None or not members or not state.saving:
            return decided
        effects, out = [], []
        for one in state.saving:
            if len(one.stages) >= state.grid.stages - 1 and one.committer not in members:
                one = replace(one, committer=members[0])
                step = one.step
                effects.append(CompleteCheckpoint(to=members[0], step=step, era=state.era))
            out.append(one)
        after = replace(state, saving=tuple(out))
        orders = (*decided.effects, *effects)
        return replace(decided, state=after, effects=orders) if effects else decided

    return patch.object(machine, "order_completion", order)


def part_of_another_layout() -> AbstractContextManager[Any]:
    """A part counts whatever layout it was written in."""
    return patch.object(saving, "_void", lambda state, node, era: None)


def a_failed_checkpoint_takes_another_along() -> AbstractContextManager[Any]:
    """When a checkpoint cannot be written, the newest complete one is forgotten, too."""
    real = saving.give_up

    def give_up(state: State, event: CheckpointFailed, policy: Policy) -> Transition:
        decided = real(state, event, policy)
        if decided.state is state:
            return decided
        return replace(
            decided, state=replace(decided.state, checkpoints=decided.state.checkpoints[:-1])
        )

    return patch.object(machine, "give_up", give_up)


def nothing_kept() -> AbstractContextManager[Any]:
    """All hold in time, and store nothing."""
    return patch.object(reconfiguration, "begin_keep", lambda *given, **how: None)


def kept_by_who_goes_first() -> AbstractContextManager[Any]:
    """What has no home is stored when the last moment of the wrong node has come."""
    real = saving.divide

    def divide(*given: Any) -> Any:
        plan = real(*given)
        late_s = 0.0 if plan is None else 4.0
        return plan and replace(plan, by_s=plan.by_s + late_s, latest_s=plan.latest_s + late_s)

    return patch.multiple(saving, divide=divide, _losses=lambda *given: ())


def a_writer_lost() -> AbstractContextManager[Any]:
    """What a node that is gone was to store counts as stored."""
    real = reconfiguration.without

    def without(state: State, node: Any, policy: Policy) -> Any:
        keep = real(state, node, policy)
        known = None if state.reconfiguration is None else state.reconfiguration.keep
        return keep or (known and replace(known, stored=tuple(range(len(known.parts)))))

    return patch.object(reconfiguration, "without", without)
