"""A preemption as one line: which node was lost, why the run goes on, what it cost."""

from bamboo.quantities import count, milliseconds
from bamboo.runs.node_names import short_names
from bamboo.runs.progress import Preemption, Progress


def preemption_line(preemption: Preemption) -> str:
    """`preemption in us-east-1a: node i-0a.0 (stage 2) is gone: …; the neighbour had already …`."""
    kind = "notice kept" if preemption.planned else "preemption"
    return f"{kind} in {preemption.zone}: {preemption.sentence}{_cost(preemption)}"


def _cost(preemption: Preemption) -> str:
    if preemption.already_computed is None or preemption.recomputed is None:
        return ""
    if preemption.planned:
        return "; nothing was computed again" + _pause(preemption)
    done = count(preemption.already_computed, "microbatch", "microbatches")
    text = f"; the neighbour had already computed {done}, recomputed {preemption.recomputed}"
    return text + _pause(preemption)


def _pause(preemption: Preemption) -> str:
    if preemption.pause_s is None:
        return ""
    parts = ", ".join(f"{name} {milliseconds(s)}" for name, s in preemption.parts_s.items())
    return f"; pause {milliseconds(preemption.pause_s)}" + (f" ({parts})" if parts else "")


def short_preemption_line(preemption: Preemption, progress: Progress) -> str:
    """One line: which node was lost in which step, which goes on, how long it took, what was
    redone."""
    names = short_names([node.id for node in progress.state.nodes])
    who, zone = names.get(preemption.node, preemption.node), preemption.zone
    several = progress.state.grid.pipelines > 1
    slots = ", ".join(str(slot) if several else str(slot.stage) for slot in preemption.slots)
    held = f"{'slot' if several else 'stage'} {slots}, {zone}" if slots else zone
    step = "" if preemption.step is None else f"step {preemption.step}: "
    heirs = " and ".join(names.get(node, node) for node in preemption.successors)
    if preemption.planned:
        return f"{step}{who} ({held}) left after a notice, {heirs or 'others'} went on"
    if preemption.pause_s is None:
        notice = " after a notice" if noticed(preemption, progress) else ""
        then = f"{heirs} took over" if heirs else _without_heirs(preemption, progress)
        return f"{step}{who} ({held}) lost{notice}, {then}"
    paused = milliseconds(preemption.pause_s)
    return f"{step}{who} ({held}) lost, {heirs} went on in {paused}, redid {preemption.recomputed}"


def noticed(preemption: Preemption, progress: Progress) -> bool:
    """Whether the cloud gave notice before it took the node."""
    node = progress.state.node(preemption.node)
    return preemption.planned or (node is not None and node.notice_deadline_s is not None)


def _without_heirs(preemption: Preemption, progress: Progress) -> str:
    """What the run did where no live node continued with what the lost node held."""
    if not preemption.slots:
        return "which held no stage"
    later = (one for one in progress.reconfigured if one.at_s >= preemption.at_s)
    if (reconfigured := next(later, None)) is not None:
        if not reconfigured.steps_again:
            return f"all went on from step {reconfigured.step}"
        return f"all went back {count(reconfigured.steps_again, 'step')}, to {reconfigured.step}"
    return "nobody went on" if progress.finished else "all wait for nodes"
