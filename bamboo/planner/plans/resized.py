"""The same plan in other microbatches: the time of a step, and the memory of a node.

Rule: batch, virtual nodes, grid, redundancy and spread stay, so each sample is used in the same
place. The order of sums changes, and so do the numbers. A plan never changes the size by itself:
this tells the user what to consider before the first launch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from bamboo.planner.plans.candidates import MOST_FORWARDS, Room, microbatches_of
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.ranking import SAME, Candidate, Judge
from bamboo.planner.profiles.workload import WorkloadFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """A plan in microbatches of another size, beside the plan in the job's own."""

    microbatch: int
    """Samples."""
    step_s: float
    faster: float
    """Relative increase of samples per second over the plan as it is; below 0: a decrease."""
    most_bytes: int
    """Bytes of its fullest node."""
    less_bytes: int
    """Bytes saved against the fullest node of the plan as it is; below 0: more are needed."""


def resized(
    workload: WorkloadFigures,
    taken: Candidate,
    room: Room,
    hazard: Hazard,
    *,
    told: Callable[[int, int], None] | None = None,
) -> tuple[Resized, ...]:
    """Every other size that fits into the memory of `room`, fastest first. `workload` is the job as
    written. `room.operation_s` keeps small microbatches from seeming free. `told` is called with
    (sizes timed, of all)."""
    grid, mode = taken.choice.grid, taken.choice.mode
    own = taken.choice.microbatch
    forwards = -(-workload.batch // grid.pipelines) * grid.stages
    sizes = [x for x in microbatches_of(workload) if x != own and forwards / x <= MOST_FORWARDS]
    here = replace(room, grids=(grid,), modes=(mode,), microbatches=(own, *sizes))
    judge = Judge(workload, here, hazard, spread=taken.spread, standbys=taken.nodes - grid.size)
    found = []
    for number, size in enumerate(sizes, start=1):
        choice = judge.candidates.choice(grid, mode, size)
        if told is not None:
            told(number, len(sizes))
        if choice is None:
            continue
        step_s = judge.calm(choice).step_s
        found.append(
            Resized(
                microbatch=size,
                step_s=step_s,
                faster=taken.step_s / step_s - 1,
                most_bytes=choice.most_bytes,
                less_bytes=taken.choice.most_bytes - choice.most_bytes,
            )
        )
    return tuple(sorted(found, key=lambda one: (one.step_s, one.most_bytes)))


def worth_a_word(found: tuple[Resized, ...]) -> Resized | None:
    """The fastest size, if its gain exceeds the accuracy of the times."""
    return found[0] if found and found[0].faster > SAME else None


def least_operation_s(workload: WorkloadFigures, *, given: bool) -> float:
    """The least time of a forward or backward of a layer, however few samples it has. If times are
    `given`, as on the virtual device, they are the same for any size; otherwise the shortest
    measured operation is taken as the limit."""
    every = (*workload.forward_s, *workload.backward_s)
    return max(every) if given else min(every)
