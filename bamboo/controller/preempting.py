"""Taking away the instance that owns a stage of a live run."""

from bamboo.config.check import DAY_S
from bamboo.coord.follow import Follower
from bamboo.core.transition import name_slots
from bamboo.errors import InputError
from bamboo.runs.live import live_store
from bamboo.runs.run_folder import RunFolder
from bamboo.sites import opened
from bamboo.topology.slots import Slot


def preempt(folder: RunFolder, slot: Slot, *, notice_s: float) -> str:
    """Take the instance whose node owns this slot, `notice_s` seconds after a notice; 0: without
    one. Returns a sentence that says which. Raises InputError where nobody owns it, or the run does
    not live."""
    if not 0 <= notice_s <= DAY_S:
        raise InputError(
            f"--notice {notice_s:g} is no notice; give 0 for none, or seconds, at most {DAY_S:,}"
        )
    with live_store(folder) as store:
        follower = Follower()
        follower.catch_up(store)
    state = follower.state
    if state is None or state.assignment is None:
        raise InputError(f"run {folder.id} is still forming; wait until its nodes have slots")
    if slot not in state.grid.slots():
        raise InputError(
            f"run {folder.id} has no stage {slot.stage} in a pipeline {slot.pipeline}: take "
            f"--pipeline {numbers(state.grid.pipelines)} and --stage {numbers(state.grid.stages)}"
        )
    node = state.node(state.assignment.owner(slot))
    if node is None or not node.status.live:
        raise InputError(
            f"nobody owns stage {slot.stage} of pipeline {slot.pipeline}: {state.sentence}"
        )
    opened.site_of(folder).preempt(node.instance, notice_s=notice_s, cause="by hand")
    owned = name_slots(state, state.assignment.owned_by(node.id))
    how = f"with {notice_s:g} s notice" if notice_s else "without notice"
    return f"{node.instance} ({node.zone}, {owned}) is taken {how}"


def numbers(count: int) -> str:
    """`0 to 3` of four."""
    return "0" if count == 1 else f"0 to {count - 1}"
