"""Decides when a checkpoint is complete, and when state must be stored before notices take it.

A checkpoint: all stages are stored, then one member writes the manifest.

An emergency: notices leave a stage without a node that stays, so its state must be stored in time.

    a notice  ->  all train on, and between two steps each node checks whether another step would
    end too late  ->  the first one that finds so reports SaveDue  ->  all stop at a boundary  ->
    nodes with state that has no home store it (`keep`)  ->  all go on with the nodes that stay, or
    wait for nodes

Rules of a checkpoint. (1) A shard counts only in the era in which it was written, and never from a
node that is gone. (2) A checkpoint that fails ends nothing: training goes on, and the next one is
tried. (3) The member that was told to complete a checkpoint is replaced when it goes. (4) A
checkpoint that becomes complete during a reconfiguration counts until the base is decided, since it
may be the base.

Rules of an emergency. (1) It is a function of the nodes that are there and of their notices. It is
computed again whenever any of these change, and is over when each stage has a home. (2) Training
goes on for as long as the state can still be stored. (3) What cannot be stored in time is not
tried, and the reason says so.
"""

import math
from dataclasses import replace

from bamboo.core.effects import CompleteCheckpoint, Effect
from bamboo.core.events import (
    CheckpointDamaged,
    CheckpointDone,
    CheckpointFailed,
    SaveDue,
    ShardSaved,
)
from bamboo.core.keep import (
    MARGIN_S,
    committer,
    cut_of,
    deadline_s,
    divide,
    fits_notice,
    held_by,
    homeless,
    left_words,
    needed_s,
    unfit_words,
    without,
)
from bamboo.core.reconfiguration import begin_reconfiguration, void_member
from bamboo.core.rounds import answers
from bamboo.core.state import (
    Checkpoint,
    Emergency,
    Keep,
    Phase,
    Policy,
    Reconfiguration,
    Saving,
    State,
)
from bamboo.core.transition import Transition, away, changed, listed, live_members, stale
from bamboo.ids import NodeId

KEPT = 8
"""How many complete checkpoints the state names. The nodes that write them decide which to
delete."""
BEGUN = 4
"""How many of the newest unfinished checkpoints the state names. One is not enough, since a node
that stores slowly is at an earlier one than the others."""


def save_shard(state: State, event: ShardSaved) -> Transition:
    """Note that a stage's shard is stored."""
    if (keep := _keep_of(state, event)) is not None:
        return _save_part(state, event, keep)
    if (why := _void(state, event.node, event.era)) is not None:
        return stale(state, why)
    if any(done.step >= event.step for done in state.checkpoints):
        return stale(state, f"there is a checkpoint of step {event.step} or a later one")
    known = next((s for s in state.saving if s.step == event.step), None)
    saving = known or Saving(step=event.step, stages=())
    if event.stage in saving.stages:
        return stale(state, f"stage {event.stage} of step {event.step} is stored already")
    noted = replace(saving, stages=tuple(sorted((*saving.stages, event.stage))))
    begun = sorted((*(s for s in state.saving if s is not known), noted), key=lambda s: s.step)
    kept = begun[-BEGUN:]
    if noted not in kept:
        return stale(state, f"{BEGUN} later ones than that of step {event.step} are in the making")
    after = replace(state, saving=tuple(kept))
    reason = f"stage {event.stage} as it was before step {event.step} is stored"
    reason += f": {len(noted.stages)} of {state.grid.stages}"
    for let_go in begun[:-BEGUN]:
        reason += (
            f"; the checkpoint of step {let_go.step} is given up, {BEGUN} later ones are begun"
        )
    return changed(after, (), reason)


def order_completion(decided: Transition) -> Transition:
    """Tell a member to complete each checkpoint that has all shards, unless a live member was
    told."""
    state = decided.state
    if state.reconfiguration is not None:
        return _order_keep(decided, state.reconfiguration)
    if state.phase is Phase.FINISHED:
        return decided
    whole = [saving for saving in state.saving if len(saving.stages) == state.grid.stages]
    if not whole:
        return decided
    members = {node.id for node in live_members(state)}
    effects: list[Effect] = []
    out = []
    for saving in state.saving:
        if saving in whole and saving.committer not in members and members:
            saving = replace(saving, committer=min(members))
            effects.append(
                CompleteCheckpoint(to=min(members), step=saving.step, era=state.era),
            )
        out.append(saving)
    if not effects:
        return decided
    after = replace(state, saving=tuple(out))
    return replace(decided, state=after, effects=(*decided.effects, *effects))


def complete(state: State, event: CheckpointDone) -> Transition:
    """Note a complete checkpoint, which can be restored from now on; also while all stop."""
    reconfiguration = state.reconfiguration
    if (keep := _keep_of(state, event)) is not None and reconfiguration is not None:
        made = Checkpoint(step=keep.step, era=keep.era)
        after = _with_checkpoint(state, made).having(
            reconfiguration=replace(reconfiguration, keep=None)
        )
        return changed(after, (), f"the state before step {keep.step} is stored, nothing is lost")
    undecided = (
        state
        if reconfiguration is None or reconfiguration.base is not None
        else replace(state, reconfiguration=None)
    )
    if (why := _void(undecided, event.node, event.era)) is not None:
        return stale(state, why)
    if any(done.step == event.step for done in state.checkpoints):
        return stale(state, f"the checkpoint of step {event.step} is complete already")
    after = _with_checkpoint(state, Checkpoint(step=event.step, era=event.era))
    reason = f"the checkpoint of step {event.step} is complete"
    left = [str(s.step) for s in state.saving if s.step < event.step]
    return changed(after, (), f"{reason}; {', '.join(left)} never was" if left else reason)


def give_up(state: State, event: CheckpointFailed, policy: Policy) -> Transition:
    """Give up a checkpoint that could not be written; training goes on."""
    if (keep := _keep_of(state, event)) is not None:
        return _part_failed(state, event, keep, policy)
    if (why := _void(state, event.node, event.era)) is not None:
        return stale(state, why)
    after = replace(state, saving=tuple(s for s in state.saving if s.step != event.step))
    reason = f"the checkpoint of step {event.step} failed, training goes on: {event.reason}"
    return changed(after, (), reason)


def reject(state: State, event: CheckpointDamaged) -> Transition:
    """Pass over a damaged checkpoint; if it was being restored, begin again with an older one."""
    if (why := void_member(state, event.node)) is not None:
        return stale(state, why)
    known = any(done.step == event.step for done in state.checkpoints)
    if not known:
        return stale(state, f"the checkpoint of step {event.step} is passed over already")
    left = tuple(done for done in state.checkpoints if done.step != event.step)
    after = replace(state, checkpoints=left)
    reason = f"the checkpoint of step {event.step} is passed over: {event.reason}"
    reconfiguration = state.reconfiguration
    if (
        reconfiguration is None
        or not reconfiguration.checkpoint
        or reconfiguration.base != event.step
    ):
        return changed(after, (), reason)
    again, orders = begin_reconfiguration(
        after,
        why=reconfiguration.why,
        planned=False,
        forced=reconfiguration.forced,
        intact=reconfiguration.intact,
    )
    return changed(again, orders, reason)


# ---------------------------------------------------------------- what is kept in an emergency


def _keep_of(state: State, event: ShardSaved | CheckpointDone | CheckpointFailed) -> Keep | None:
    """What is being stored while all stand still, if the event is about that and from a live
    node."""
    keep = None if state.reconfiguration is None else state.reconfiguration.keep
    if keep is None or (event.step, event.era) != (keep.step, keep.era):
        return None
    return keep if void_member(state, event.node) is None else None


def _save_part(state: State, event: ShardSaved, keep: Keep) -> Transition:
    if event.stage in keep.stored or event.stage >= len(keep.parts):
        return stale(state, f"part {event.stage} of step {event.step} is not waited for")
    noted = replace(keep, stored=tuple(sorted((*keep.stored, event.stage))))
    return changed(_keeping(state, noted), (), f"node {event.node} is done: {left_words(noted)}")


def _part_failed(state: State, event: CheckpointFailed, keep: Keep, policy: Policy) -> Transition:
    """Let another node store the part, or write the manifest; if none can, all go on without it."""
    reason = f"node {event.node} cannot store the state before step {keep.step}: {event.reason}"
    if keep.whole:
        if event.node != keep.committer:
            return stale(state, f"{reason}; it was not asked to")
        left = replace(keep, committer=None, unable=(*keep.unable, event.node))
        other = left if state.roll.live.difference(left.unable) else None
        if other is not None:
            return changed(_keeping(state, other), (), f"{reason}; another node does")
    else:
        other = without(state, event.node, policy)
    if other is not None and other.parts != keep.parts:
        return changed(_keeping(state, other), (), f"{reason}; another node does")
    if other is not None and event.node not in {part.node for part in keep.parts}:
        return stale(state, f"{reason}; it was not asked to")
    reconfiguration, emergency = state.reconfiguration, state.emergency
    assert reconfiguration is not None, "something is kept only while all stand still"
    after = state.having(
        reconfiguration=replace(reconfiguration, keep=None, save=False),
        emergency=None if emergency is None else replace(emergency, failed=True),
    )
    return changed(after, (), f"{reason}; what no node holds that stays will be lost")


def _order_keep(decided: Transition, reconfiguration: Reconfiguration) -> Transition:
    """Once all parts are stored, tell the node that lives longest to write the manifest."""
    state, keep = decided.state, reconfiguration.keep
    if keep is None or not keep.whole or keep.committer in state.roll.live:
        return decided
    to = committer(state, keep)
    if to is None:
        return decided
    order = CompleteCheckpoint(to=to, step=keep.step, era=keep.era)
    after = _keeping(state, replace(keep, committer=to))
    return replace(decided, state=after, effects=(*decided.effects, order))


def _keeping(state: State, keep: Keep) -> State:
    reconfiguration = state.reconfiguration
    assert reconfiguration is not None, "something is kept only while all stand still"
    return state.having(reconfiguration=replace(reconfiguration, keep=keep))


def _with_checkpoint(state: State, made: Checkpoint) -> State:
    kept = sorted((*state.checkpoints, made), key=lambda done: done.step)[-KEPT:]
    return state.having(
        checkpoints=tuple(kept), saving=tuple(s for s in state.saving if s.step > made.step)
    )


def _void(state: State, node: NodeId, era: int) -> str | None:
    found = state.node(node)
    if found is None or not found.status.live:
        return f"node {node} {'never joined' if found is None else away(found)}: it does not count"
    if era != state.era or state.reconfiguration is not None:
        return "the layout is another one by now"
    return None


# -------------------------------------------------------------------------------- an emergency


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
