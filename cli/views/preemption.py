"""A preemption as one line: who went, why the run goes on, what it cost."""

from cli.progress import Preemption
from cli.views.quantities import count, milliseconds


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
