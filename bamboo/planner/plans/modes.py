"""Which redundancy a grid takes if the job leaves it open (`redundancy = "auto"`), and why.

Rule: the mode with the most samples per dollar by `ranking`, losses counted. Among modes whose
values cannot be told apart (`ranking.SAME`), the one with the least redundancy. A mode in which one
loss would end the run is taken only if nothing can be lost, or nothing else fits. If modes by stage
are worth more than one for all (`stage_modes`), they are taken. Where every node has the whole
model and may be taken, it is `peer`, which costs nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bamboo.planner.plans.candidates import Candidates, Room
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.ranking import Candidate, Played, against, least_redundant, ranked
from bamboo.planner.plans.stage_modes import by_stage
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.zones import Stakes
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import (
    REDUNDANCY_MODES,
    can_have,
    how_redundant,
    stage_modes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A mode for one grid, its plan, and the reason."""

    taken: Candidate
    why: str
    """One sentence."""


def choose_mode(
    workload: WorkloadFigures,
    grid: Grid,
    room: Room,
    hazard: Hazard,
    *,
    spread: str,
    standbys: int,
    cut: Sequence[int] = (),
    played: Played | None = None,
) -> Chosen:
    """The mode of a grid, in the job's own microbatches. `spread` may be `auto`. With a `cut` only
    modes that fit with it count, if any does. `room` gives a node's memory, and the other plans to
    search if no mode fits; `played` is as in `ranked`.

    Raises JobFitsNowhere with the nearest plans of the room, and InputError as `ranked` does.
    """
    candidates = Candidates(workload, room)
    fitting = [
        mode
        for mode in room.modes
        if can_have(mode, grid) and candidates.choice(grid, mode, workload.microbatch) is not None
    ]
    if grid.stages == 1 and hazard.stakes.preemptible and "peer" in fitting:
        fitting = ["peer"]
    if not fitting:
        candidates.asked(grid, min(room.modes, key=how_redundant))
    able = lasting_modes(hazard.stakes, workload, nodes=grid.size)
    lasting = [mode for mode in fitting if mode in able]
    here = replace(
        room,
        nodes=range(grid.size, grid.size + 1),
        grids=(grid,),
        microbatches=(workload.microbatch,),
        modes=tuple(lasting or fitting),
    )
    found = ranked(workload, here, hazard, spread=spread, standbys=standbys, played=played)
    found = tuple(one for one in found if not cut or one.choice.cut == tuple(cut)) or found
    taken = least_redundant(found, value=lambda one: one.value, mode=lambda one: one.choice.mode)
    wider = replace(here, modes=room.modes)
    mixed = by_stage(workload, taken, wider, hazard, standbys=standbys, cut=cut, played=played)
    if mixed is not taken:
        return Chosen(taken=mixed, why=_why_mixed(mixed, taken, hazard))
    others = [one for one in found if one is not taken]
    left_out = [mode for mode in fitting if lasting and mode not in lasting]
    return Chosen(taken=taken, why=_sentence(taken, others, left_out, hazard))


def lasting_modes(stakes: Stakes, workload: WorkloadFigures, *, nodes: int) -> tuple[str, ...]:
    """The modes in which the loss of one node does not end a run, for at most `nodes` nodes. For
    `peer` that needs two pipelines. None for one node, unless it has a checkpoint to go back to."""
    least_s = sum(workload.both_s) * workload.shape.total / nodes
    if not stakes.preemptible or stakes.may_restore(stakes.steps * least_s):
        return REDUNDANCY_MODES
    return tuple(mode for mode in REDUNDANCY_MODES if nodes > 1 and mode != "off")


def _auto(taken: Candidate, hazard: Hazard) -> str:
    rate = hazard.rate
    losses = f"{rate.per_node_hour:.3g} losses per node-hour, {rate.word}"
    if not hazard.stakes.preemptible:
        losses = "on demand nothing is lost"
    return f"redundancy auto is {taken.choice.mode} ({losses})"


def _why_mixed(mixed: Candidate, alike: Candidate, hazard: Hazard) -> str:
    modes = stage_modes(mixed.choice.mode, mixed.choice.grid.stages)
    ahead = max(modes, key=how_redundant)
    roomy = [str(stage) for stage, mode in enumerate(modes) if mode == ahead]
    *most, last = roomy
    who = f"the shadow of stage {last} has"
    if most:
        who = f"the shadows of stages {', '.join(most)} and {last} have"
    return (
        f"{_auto(mixed, hazard)}: {who} the memory for {ahead}, which is "
        f"{100 * (mixed.value / alike.value - 1):.3g} % more samples per dollar than "
        f"{alike.choice.mode} on all."
    )


def _sentence(
    taken: Candidate, others: Sequence[Candidate], left_out: Sequence[str], hazard: Hazard
) -> str:
    words = _auto(taken, hazard)
    if others:
        second = max(others, key=lambda one: one.value)
        why = against(taken, second).rstrip(".")
        words += f": {second.choice.mode} is next, {why[0].lower()}{why[1:]}"
    elif taken.choice.mode == "peer" and taken.choice.grid.stages == 1:
        words += ": it costs nothing, as every node has the whole model"
    elif taken.choice.grid.size == 1:
        words += ": a run of one node has no other to keep a copy"
    elif not left_out:
        words += ": no other mode fits"
    if left_out:
        modes = " and ".join(sorted(left_out, key=how_redundant))
        words += f"; {modes} would end the run with the first loss, as there are no checkpoints"
    return f"{words}."
