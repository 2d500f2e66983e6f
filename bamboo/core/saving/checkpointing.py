"""Decides when a checkpoint is complete: all stages are stored, then one member writes the
manifest.

In an emergency (`emergency`) all nodes stand still meanwhile, and `keep` decides which node stores
what.

Rules. (1) A shard counts only in the era in which it was written, and never from a node that is
gone. (2) A checkpoint that fails ends nothing: training goes on, and the next one is tried. (3) The
member that was told to complete a checkpoint is replaced when it goes. (4) A checkpoint that
becomes complete during a reconfiguration counts until the base is decided, since it may be the
base.
"""

from dataclasses import replace

from bamboo.core.effects import CompleteCheckpoint, Effect
from bamboo.core.events import (
    CheckpointDamaged,
    CheckpointDone,
    CheckpointFailed,
    ShardSaved,
)
from bamboo.core.reconfiguration import begin_reconfiguration, void_member
from bamboo.core.saving.keep import committer, left_words, without
from bamboo.core.state import Checkpoint, Keep, Phase, Policy, Reconfiguration, Saving, State
from bamboo.core.transition import Transition, away, changed, live_members, stale
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
