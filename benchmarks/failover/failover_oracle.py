"""The best goodput that a system with a replica of each stage could have. Pure.

Rule: the planner's own dry run plays it, operation by operation, with the figures of the device and
nothing else. The oracle notices a loss in the same instant, decides and sends in no time, and has a
standby in the lost node's place when the hit step commits. It cannot recover the operations that
the lost node had done in that step: the shadow repeats them, in addition to its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bamboo.planner.step.figures import gap_budgets, plan_run, step_time_s
from bamboo.planner.step.hit_step import hit_run
from bamboo.planner.step.layout import Costs, layout_of
from bamboo.topology.grid import Grid

CALM_STEPS = 3
"""Steps before the hit one, so that it is a step like any other."""
PHASES = 48
"""Instants of the hit step, evenly spread, whose mean is the mean over all instants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Figures of the virtual device, in seconds for each stage."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    microbatches: int
    mode: str = "stash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A step in which a stage is lost, averaged over all instants of it."""

    extra_s: float
    """How much longer than a calm step it is, on average."""
    to_commit_s: float
    """From the loss to its commit, on average."""
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """The oracle of one device."""

    step_s: float
    hits: tuple[Hit, ...]
    """By stage."""
    merged_s: tuple[float, ...]
    """By lost stage: a whole step while its shadow owns it too."""

    def goodput(self, stages: Sequence[int], *, for_s: float) -> float:
        """The useful share of the time when these stages are lost within so many seconds."""
        return 1.0 - sum(self.hits[stage].extra_s for stage in stages) / for_s


def oracle(device: Device, *, phases: int = PHASES) -> Oracle:
    """Play every stage's loss at so many instants of a step."""
    stages = len(device.forward_s)
    layout = layout_of(
        Grid(pipelines=1, stages=stages), microbatches=(device.microbatches,), mode=device.mode
    )
    costs = Costs.of(stages, forward_s=device.forward_s, backward_s=device.backward_s)
    steps = CALM_STEPS + 3
    calm = plan_run(layout, costs, steps=steps)
    budgets = gap_budgets(layout, costs) if device.mode == "gap" else None
    start_ns, end_ns = calm.commit_ns[CALM_STEPS - 1], calm.commit_ns[CALM_STEPS]
    hits, merged = [], []
    for owner in layout.assignment.owners:
        played = []
        for phase in range(phases):
            at_ns = start_ns + round((phase + 0.5) / phases * (end_ns - start_ns))
            run = hit_run(layout, costs, victim=owner, at_ns=at_ns, steps=steps, budgets=budgets)
            played.append((at_ns, run.commit_ns))
        to_commit = [(commits[CALM_STEPS] - at_ns) / 1e9 for at_ns, commits in played]
        hits.append(
            Hit(
                extra_s=fmean((c[CALM_STEPS] - end_ns) / 1e9 for _, c in played),
                to_commit_s=fmean(to_commit),
                longest_s=max(to_commit),
            )
        )
        last = played[-1][1]
        merged.append((last[-1] - last[-2]) / 1e9)
    return Oracle(step_s=step_time_s(calm), hits=tuple(hits), merged_s=tuple(merged))
