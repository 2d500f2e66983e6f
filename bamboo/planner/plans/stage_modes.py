"""A redundancy mode for each stage, if that is worth more than the best one for all.

Rule: a stage's shadow computes ahead if its node has the memory for it, and recomputes otherwise.
`ranking` gives the value of such a mixture, and it is taken only if it can be told from one mode
for all (`ranking.SAME`). All modes that compute ahead need the same memory, so memory leaves one
choice per stage. Other mixtures are not searched: `gap` already fits each stage's own waits.
`benchmarks.mode_per_stage` values all of them for comparison.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bamboo.planner.layers.memory import memory_report
from bamboo.planner.plans.candidates import Choice, Room
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.ranking import SAME, Candidate, Judge, Played
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.topology.strategy import BARE_MODES, REPLICA_MODES, redundancy_of

STASH, *AHEAD = REPLICA_MODES


def by_stage(
    workload: WorkloadFigures,
    taken: Candidate,
    room: Room,
    hazard: Hazard,
    *,
    standbys: int,
    cut: Sequence[int] = (),
    played: Played | None = None,
) -> Candidate:
    """`taken`, which has one mode for all stages, or the same grid with modes by stage if those
    are worth more by more than SAME. With a `cut`, only mixtures that fit with it count. Mixtures
    are made of the modes of `room`."""
    if taken.choice.mode in BARE_MODES or not taken.losses.survived_per_hour:
        return taken
    judge = Judge(workload, room, hazard, spread=taken.spread, standbys=standbys, played=played)
    found = [
        replace(judge.with_losses(judge.calm(choice)), spread=taken.spread)
        for choice in mixtures(judge, taken.choice, room)
        if not cut or choice.cut == tuple(cut)
    ]
    best = max(found, key=lambda one: one.value, default=taken)
    return best if best.value > taken.value * (1 + SAME) else taken


def mixtures(judge: Judge, choice: Choice, room: Room) -> Iterator[Choice]:
    """On the grid of `choice`: each mode that computes ahead, on the stages whose shadow's node has
    the memory for it with the cut of `stash`, and `stash` on all other stages."""
    grid, candidates = choice.grid, judge.candidates
    stash = candidates.choice(grid, STASH, choice.microbatch)
    if stash is None or STASH not in room.modes:
        return
    work = candidates.work(choice.microbatch, stash.saving)
    for mode in AHEAD:
        if mode not in room.modes:
            continue
        memory = memory_report(work.layers, cut=stash.cut, grid=grid, shape=work.shape, mode=mode)
        fits = [node.total <= room.memory_bytes for node in memory]
        # The node of a stage is the shadow of the next one.
        modes = [mode if fits[stage - 1] else STASH for stage in range(grid.stages)]
        mixed = candidates.choice(grid, redundancy_of(modes), choice.microbatch)
        if mixed is not None and len(set(modes)) > 1:
            yield mixed
