"""A preemption as one line: who went, why the run goes on, what it cost."""

from cli.progress import Preemption
from cli.views.quantities import count, milliseconds


def preemption_line(preemption: Preemption) -> str:
    """`lost i-0a.0 (us-east-1a): <the decision's reason>; neighbour had computed 3 …`."""
    verb = "handed over" if preemption.planned else "lost"
    head = f"{verb} {preemption.node} ({preemption.zone})"
    if preemption.slots:
        head += f", owner of {', '.join(map(str, preemption.slots))}"
    return f"{head}: {preemption.sentence}{_cost(preemption)}"


def _cost(preemption: Preemption) -> str:
    if preemption.already_computed is None or preemption.recomputed is None:
        return ""
    done = count(preemption.already_computed, "microbatch", "microbatches")
    text = f"; the neighbour had already computed {done}, recomputed {preemption.recomputed}"
    if preemption.pause_s is not None:
        text += f"; pause {milliseconds(preemption.pause_s)}"
    if preemption.parts_s:
        parts = ", ".join(f"{name} {milliseconds(s)}" for name, s in preemption.parts_s.items())
        text += f" ({parts})"
    return text
