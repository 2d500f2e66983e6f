"""An emergency: notices leave a stage without a node that stays, so its state must be stored in
time.

    a notice  ->  all train on, and between two steps each node checks whether another step would
    end too late  ->  the first one that finds so reports SaveDue  ->  all stop at a boundary  ->
    nodes with state that has no home store it (`keep`)  ->  all go on with the nodes that stay, or
    wait for nodes

Rules. (1) It is a function of the nodes that are there and of their notices. It is computed again
whenever any of these change, and is over when each stage has a home. (2) Training goes on for as
long as the state can still be stored. (3) What cannot be stored in time is not tried, and the
reason says so.
"""

import math
from dataclasses import replace

from bamboo.core.events import SaveDue
from bamboo.core.reconfiguration import begin_reconfiguration, void_member
from bamboo.core.rounds import answers
from bamboo.core.saving.keep import (
    MARGIN_S,
    cut_of,
    deadline_s,
    divide,
    fits_notice,
    held_by,
    homeless,
    needed_s,
    unfit_words,
)
from bamboo.core.state import Emergency, Phase, Policy, Reconfiguration, State
from bamboo.core.transition import Transition, changed, listed, stale
from bamboo.ids import NodeId

WHY = "notices leave a stage without a home"
RECOVERS = 3
"""Steps from the loss of an owner until all that it held is there again, and one for safety."""


def note_emergency(
    before: State, decided: Transition, policy: Policy, *, now_s: float
) -> Transition:
    """Note what `decided` leaves without a home, and add it to the reason."""
    state = decided.state
    if state is before or not (state.roll.leaving or state.emergency):
        return decided
    if not policy.keeps or state.assignment is None or state.phase is Phase.FINISHED:
        return decided
    reconfiguration = state.reconfiguration
    if (
        reconfiguration is not None
        and reconfiguration.base is None
        and not _steps_on(state, reconfiguration)
    ):
        return decided  # all nodes report what they hold soon, or have done so
    same = state.nodes is before.nodes and state.assignment is before.assignment
    if same and reconfiguration is before.reconfiguration:
        return decided
    known = state.emergency
    found, words = _find(state, policy, now_s=now_s)
    if found is not None and known is not None and found.by_s == known.by_s:
        if found.stages == known.stages and found.losses == known.losses:
            return decided
        found = replace(found, since=known.since, failed=known.failed)
    if found is None and known is None and not words:
        return decided
    after = state.having(emergency=found)
    if found is None and known is not None and not words:
        words = "every stage has a home again"
    return replace(decided, state=after, reason=f"{decided.reason}; {words}")


def hold_by_s(emergency: Emergency, *, now_s: float, step_s: float) -> float:
    """The store's time by which all must stand still. If an owner is taken just then, the time is
    before its loss: all have stopped then, so no node would recompute what only that owner has of
    its last step. Times that have passed do not count."""
    by_s = emergency.by_s
    for loss_s, before_s in emergency.losses:
        recovered_s = loss_s + RECOVERS * step_s + MARGIN_S
        if now_s < before_s and loss_s < by_s + MARGIN_S and recovered_s > by_s:
            by_s = before_s
    return by_s


def is_awaited(emergency: Emergency, *, now_s: float) -> bool:
    """Whether an owner is about to be taken before all that it owns could be stored. Its slots are
    then recovered first, and all stop after that."""
    before = (x for x in emergency.losses if x[0] < emergency.by_s + MARGIN_S)
    return any(before_s <= now_s < loss_s for loss_s, before_s in before)


def save_due(state: State, event: SaveDue) -> Transition:
    """Let all nodes stop, at a boundary or where they are, and store what has no home."""
    if (why := void_member(state, event.node)) is not None:
        return stale(state, why)
    emergency, reconfiguration = state.emergency, state.reconfiguration
    if emergency is None or emergency.since != event.since or emergency.failed:
        return stale(state, "that has a home again, or was tried without success")
    stops = state.stop_reason is not None and not event.at_once  # else its last step takes too long
    if reconfiguration is None and (stops or state.finished):
        return stale(state, "the run is ending, and all that it holds is stored then")
    if reconfiguration is not None and reconfiguration.base is None:
        if reconfiguration.keep is not None or (
            reconfiguration.save and not (event.at_once and reconfiguration.planned)
        ):
            return stale(state, "that is being done already")
        if not (event.at_once and reconfiguration.planned):
            after = state.having(reconfiguration=replace(reconfiguration, save=True))
            return changed(after, (), f"{WHY}: what has none is stored before all go on")
    # Also during a failover: what it lacks may be lost with several nodes and never come.
    planned = reconfiguration is None and not event.at_once
    after, orders = begin_reconfiguration(
        state,
        why=WHY,
        planned=planned,
        forced=reconfiguration is not None and reconfiguration.forced,
        intact=reconfiguration is None or reconfiguration.intact,
        ahead=None if reconfiguration is None else reconfiguration.ahead,
        save=True,
    )
    where = "hold at the next boundary" if planned else "stop where they are"
    return changed(after, orders, f"{WHY}: all {where}, and keep its state")


def _find(state: State, policy: Policy, *, now_s: float) -> tuple[Emergency | None, str]:
    """Find what has no home and can be stored; also returns words for what is new."""
    held = held_by(state, policy)
    layers = homeless(held, state)
    if not layers or _is_stored(state, policy):
        return None, ""
    cut = cut_of(state, policy)
    stages = tuple(s for s in range(len(cut) - 1) if not layers.isdisjoint(range(*cut[s : s + 2])))
    names = listed([f"stage {stage}" for stage in stages])
    whose = f"all nodes that hold {names} will be taken"
    if not fits_notice(policy, cut):
        return None, f"{whose}, and {unfit_words(policy, cut)}, as the plan says"
    plan = divide(held, state, policy)
    if plan is None or math.isinf(plan.by_s):
        return None, ""
    first_s = _first_loss_s(state)
    if min(plan.latest_s, first_s) <= now_s:
        return None, f"{whose}, too soon to store anything"
    by_s = min(plan.by_s, first_s - MARGIN_S)
    losses = _losses(state, policy)
    found = Emergency(since=state.version + 1, by_s=by_s, stages=stages, losses=losses)
    in_s = max(0.0, by_s - now_s)
    return found, f"{whose}: within {in_s:.1f} s all hold at a boundary and keep the state"


def _first_loss_s(state: State) -> float:
    """When the first owner is taken whose loss no other node mends; in mode `off` that is any
    owner."""
    if state.redundancy != "off" or state.assignment is None:
        return math.inf
    return min(deadline_s(state, node) for node in set(state.assignment.owners))


def _steps_on(state: State, reconfiguration: Reconfiguration) -> bool:
    """Whether a step is being finished first, which may take longer than there is time."""
    waiting = answers(reconfiguration.reports).silent(reconfiguration.asked, state.roll.live)
    return reconfiguration.planned and reconfiguration.keep is None and bool(waiting)


def _losses(state: State, policy: Policy) -> tuple[tuple[float, float], ...]:
    """When each owner will be taken, the last one first, and by when all must stand still so that
    it can store all that it owns."""
    if state.assignment is None:
        return ()
    cut = cut_of(state, policy)
    owned: dict[NodeId, int] = {}
    for slot, node in zip(state.assignment.grid.slots(), state.assignment.owners, strict=True):
        count = sum(policy.layer_bytes[slice(*cut[slot.stage : slot.stage + 2])])
        owned[node] = owned.get(node, 0) + count
    times_s = ((deadline_s(state, node), needed_s(count, policy)) for node, count in owned.items())
    return tuple(sorted(((x, x - before) for x, before in times_s if x < math.inf), reverse=True))


def _is_stored(state: State, policy: Policy) -> bool:
    """Whether the step from which all are about to go on is stored, or the last step of the run
    is."""
    base = None if state.reconfiguration is None else state.reconfiguration.base
    stored = {made.step for made in state.checkpoints}
    return base in stored or (policy.steps > 0 and policy.steps in stored)
