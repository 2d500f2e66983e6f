"""`bamboo plan`: one plan without a launch, the job's own or the best of so many nodes, and the
next best ones.

Rule: the plan that is shown is the one that `launch` makes of the job, or of the job with the
printed strategy: `plan_job` makes it. This file only makes what it is compared with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bamboo.config.catalogue import load_catalogue
from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig, Kill
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.planner.layers.bounded import FitsNowhere
from bamboo.planner.layers.memory import memory_report
from bamboo.planner.plans.candidates import JobFitsNowhere, Room, savings_of
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.modes import choose_mode, lasting_modes
from bamboo.planner.plans.nodes import NodeShare, node_shares
from bamboo.planner.plans.plan import whole_cut
from bamboo.planner.plans.ranking import Candidate, Played, against, ranked
from bamboo.planner.plans.resized import Resized, least_operation_s, resized
from bamboo.planner.prices.catalogue import Catalogue, InstanceType
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.hazards import LossRate, said
from bamboo.ports import Note, Told
from bamboo.runs.initial import begin_with
from bamboo.study.hazards import rate_of
from bamboo.study.modelled import look_at
from bamboo.study.planning import Planned, cheapest_pool, plan_job, stakes_of
from bamboo.study.settling import fits_nowhere, grid_of
from bamboo.study.strategies import Given, strategy_for
from bamboo.study.told import Bar, no_bar, silent
from bamboo.study.workload import (
    MODELLED,
    Modelled,
    costs_of,
    cuts_by_flops,
    layer_facts,
    semantics_of,
    workload_of,
)
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import AUTO, REDUNDANCY_MODES, Placement, Strategy

NEXT = 3
MOST_NODES = 1024
MOST_SEARCHED = 100_000
MOST_HAZARD = 3600.0
"""Losses per node-hour: one a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The plan that the command line asks for."""

    overrides: tuple[str, ...] = ()
    nodes: int | None = None
    """Exactly so many in the grid; None: the job's own grid, unless a maximum is given."""
    max_nodes: int | None = None
    hazard: float | None = None
    """Losses per node-hour; None: by `rate_of`."""
    gpu: str | None = None
    """The GPU to model the times for, see `look_at`."""
    strategy: Path | None = None
    """The file that places the job; None: the job or the plan does."""

    search: int | None = None
    """How many strategies are priced; None: the job's builder makes one."""

    @property
    def range(self) -> range | None:
        """How many nodes a grid may have; None: the job says it."""
        most = self.max_nodes if self.nodes is None else self.nodes
        return None if most is None else range(self.nodes or min(2, most), most + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A plan, and what it is compared with."""

    name: str
    planned: Planned
    nodes: tuple[NodeShare, ...]
    taken: Candidate
    others: tuple[tuple[Candidate, str], ...]
    """The next best plans with a sentence each, best first."""
    resized: tuple[Resized, ...]
    """The same plan in other microbatches, fastest first."""
    hazard: Hazard
    notes: tuple[str, ...]


def plan_on_paper(path: Path, asked: Asked, *, bar: Bar = no_bar, note: Note = silent) -> Shown:
    """Read the job, look at its layers, plan. `bar` shows how far each of these is, `note` what
    takes a while. Raises InputError, which may be a JobFitsNowhere."""
    _check(asked)
    job, _ = begin_with(load_job(path, asked.overrides))
    named = asked.strategy
    given = None if named is None else strategy_for(job, named, asked.overrides)
    catalogue = load_catalogue(job.cloud.region)
    pool, _ = cheapest_pool(job, catalogue)
    own = rate_of(pool.instance_type, job.cloud.region)
    hazard = Hazard(
        stakes=stakes_of(job, catalogue, pool.instance_type),
        rate=own if asked.hazard is None else said(asked.hazard),
    )
    with bar("looking at model and data") as told:
        seen = look_at(job, gpu=asked.gpu, told=told, note=note)
    why = ""
    kills = job.chaos.kill
    if asked.range is not None:
        # The listed losses are for the job's own grid; a note says so when another grid is
        # launched.
        job = replace(job, chaos=replace(job.chaos, kill=()))
        kind = catalogue.find(pool.instance_type)
        with bar("looking for the best grid"):
            given, why = _best(
                job, seen, catalogue=catalogue, kind=kind, hazard=hazard, nodes=asked.range
            )
    with bar("planning"):
        planned = plan_job(
            job,
            seen,
            run=RunId("plan"),
            now_s=0.0,
            given=given,
            rate=hazard.rate,
            search=asked.search or 0,
        )
    if why:
        planned = replace(planned, redundancy_why=why)
    plan = planned.plan
    with bar("comparing plans") as told:
        nodes = asked.range or range(min(2, plan.grid.size), plan.largest.size + 1)
        taken, others = _compared(planned, hazard, nodes, told=told)
    with bar("comparing microbatches") as told:
        sizes = _resized(planned, taken, hazard, told=told)
    return Shown(
        name=Path(job.file).name,
        planned=planned,
        nodes=node_shares(plan, planned.workload),
        taken=taken,
        others=tuple((one, against(taken, one)) for one in others),
        resized=sizes,
        hazard=hazard,
        notes=_notes(planned, asked, kills, own),
    )


def _check(asked: Asked) -> None:
    if asked.nodes is not None and asked.max_nodes is not None:
        raise InputError("--nodes and --max-nodes are two sizes of a grid; give one of them")
    if asked.strategy is not None and asked.range is not None:
        raise InputError("--strategy and a number of nodes are two grids; give one of them")
    if asked.search is not None:
        if asked.strategy is not None:
            raise InputError("--search and --strategy both make the rules; give one of them")
        if not 1 <= asked.search <= MOST_SEARCHED:
            raise InputError(
                f"--search {asked.search} prices no strategies; give 1 to {MOST_SEARCHED:,}"
            )
    for option, number in (("--nodes", asked.nodes), ("--max-nodes", asked.max_nodes)):
        if number is not None and not 1 <= number <= MOST_NODES:
            raise InputError(f"{option} {number} makes no grid; give 1 to {MOST_NODES:,}")
    if asked.hazard is not None and not 0 <= asked.hazard <= MOST_HAZARD:
        raise InputError(
            f"--hazard {asked.hazard:g} is no number of losses per node-hour; give 0 to "
            f"{MOST_HAZARD:g}"
        )


def _best(
    job: JobConfig,
    seen: Mapping[str, Any],
    *,
    catalogue: Catalogue,
    kind: InstanceType,
    hazard: Hazard,
    nodes: range,
) -> tuple[Given, str]:
    """The best grid of so many nodes as a strategy, and the reason for its redundancy where the job
    leaves that open. Raises JobFitsNowhere, InputError."""
    facts = layer_facts(job, seen)
    named = whole_cut(facts, grid_of(job), job.cluster.cut, costs_of(facts, seen))
    modelled: Modelled | None = seen.get(MODELLED)
    workload = workload_of(job, seen, cuts=(named,), kind=kind)
    others = _with_cuts(workload, job, modelled, nodes=nodes, cut=named)
    modes = REDUNDANCY_MODES if job.cluster.redundancy == AUTO else (job.cluster.redundancy,)
    able = lasting_modes(hazard.stakes, others, nodes=nodes[-1])
    lasting = tuple(mode for mode in modes if mode in able) or modes
    room = _room(others, kind, nodes=nodes, modes=lasting)
    room = replace(room, savings=savings_of(job.cluster.recompute, job.cluster.replica_moments))
    played: Played = {}
    why = ""
    try:
        best = _first(others, room, hazard, job, played)
    except JobFitsNowhere:
        try:
            best = _first(others, replace(room, modes=modes), hazard, job, played)
        except JobFitsNowhere as error:
            raise fits_nowhere(error, job, workload, kind=kind, catalogue=catalogue) from error
    if job.cluster.redundancy == AUTO:
        chosen = choose_mode(
            others,
            best.choice.grid,
            replace(room, modes=modes),
            hazard,
            spread=job.cluster.spread,
            standbys=job.cluster.standbys,
            played=played,
        )
        best, why = chosen.taken, chosen.why
    strategy = Strategy(
        semantics=semantics_of(job, seen),
        placement=Placement(
            cut=best.choice.cut, grid=best.choice.grid, redundancy=best.choice.mode
        ),
    )
    return Given(path=Path(job.file), strategy=strategy, has_rules=False), why


def _with_cuts(
    workload: WorkloadFigures,
    job: JobConfig,
    modelled: Modelled | None,
    *,
    nodes: range,
    cut: tuple[int, ...],
) -> WorkloadFigures:
    """With one given cut. All others are balanced by time, or by flops where times are modelled, as
    in `bamboo cost`."""
    others = {} if modelled is None else cuts_by_flops(job, workload.layers, nodes.stop - 1)
    return replace(workload, cuts={**others, len(cut) - 1: cut})


def _room(
    workload: WorkloadFigures,
    kind: InstanceType,
    *,
    nodes: range,
    modes: tuple[str, ...],
) -> Room:
    """Room for plans of so many nodes in the job's own microbatches; other microbatches would be
    another training."""
    return Room(
        memory_bytes=kind.gpu_memory_bytes,
        host_bytes=kind.host_room_bytes,
        nodes=nodes,
        modes=modes,
        microbatches=(workload.microbatch,),
    )


def _first(
    workload: WorkloadFigures, room: Room, hazard: Hazard, job: JobConfig, played: Played
) -> Candidate:
    spread, standbys = job.cluster.spread, job.cluster.standbys
    found = ranked(workload, room, hazard, most=1, spread=spread, standbys=standbys, played=played)
    return found[0]


def _compared(
    planned: Planned, hazard: Hazard, nodes: range, *, told: Told
) -> tuple[Candidate, tuple[Candidate, ...]]:
    """The plan as the ranking sees it, with the grid that its instances fill, and the best other
    plans of so many nodes in the job's own microbatches."""
    job, plan = planned.job, planned.plan
    workload = _with_cuts(planned.workload, job, planned.modelled, nodes=nodes, cut=plan.cut)
    cluster, kind = job.cluster, plan.instance_type
    grid = plan.largest
    here = range(grid.size, grid.size + 1)
    # The plan is shown whatever its grid needs: it was settled so that the first grid fits.
    limit = max(kind.gpu_memory_bytes, _most_bytes(workload, grid, plan.mode))
    alone = replace(
        _room(workload, kind, nodes=here, modes=(plan.mode,)),
        grids=(grid,),
        memory_bytes=limit,
    )
    standbys = plan.instances - grid.size
    played: Played = {}
    stakes = replace(hazard.stakes, checkpoint_every=plan.checkpoint_every)
    own = replace(hazard, stakes=stakes)
    (taken,) = ranked(
        workload, alone, own, most=1, spread=plan.spread, standbys=standbys, played=played
    )
    modes = lasting_modes(hazard.stakes, workload, nodes=nodes[-1]) or REDUNDANCY_MODES
    room = _room(workload, kind, nodes=nodes, modes=modes)
    room = replace(room, savings=planned.may_save)
    try:
        found = ranked(
            workload,
            room,
            hazard,
            most=NEXT + 1,
            spread=cluster.spread,
            standbys=cluster.standbys,
            told=told,
            played=played,
        )
    except FitsNowhere:
        return taken, ()
    return taken, tuple(one for one in found if one.choice != taken.choice)[:NEXT]


def _resized(
    planned: Planned, taken: Candidate, hazard: Hazard, *, told: Told
) -> tuple[Resized, ...]:
    """The plan in other microbatches of the same batch and virtual nodes."""
    plan, size = planned.plan, taken.choice.grid.size
    workload = replace(planned.workload, cuts={plan.grid.stages: plan.cut})
    given = planned.job.cluster.device == "virtual"
    room = Room(
        memory_bytes=plan.instance_type.gpu_memory_bytes,
        host_bytes=plan.instance_type.host_room_bytes,
        nodes=range(size, size + 1),
        savings=planned.may_save,
        operation_s=least_operation_s(workload, given=given),
    )
    return resized(workload, taken, room, hazard, told=told)


def _most_bytes(workload: WorkloadFigures, grid: Grid, mode: str) -> int:
    """Bytes of the grid's node that needs most."""
    cut = workload.cut(grid.stages)
    memory = memory_report(workload.layers, cut=cut, grid=grid, shape=workload.shape, mode=mode)
    return max(stage.total for stage in memory)


def _notes(
    planned: Planned, asked: Asked, kills: Sequence[Kill], launched: LossRate
) -> tuple[str, ...]:
    """Notes on the plan. `launched` is the rate that a launch plans for."""
    job = planned.job
    plan = planned.plan
    notes = []
    slots = {(slot.pipeline, slot.stage) for slot in grid_of(job).slots()}
    if any((kill.pipeline, kill.stage) not in slots for kill in kills):
        notes.append("chaos.kill names stages that are none of this grid: launch without them.")
    nodes, leaves = asked.range, job.train.virtual_nodes
    if nodes is not None and nodes[-1] // 2 > leaves:
        notes.append(
            f"train.virtual_nodes = {leaves} allows for no more than {leaves} pipelines; it is "
            "part of the training, so another number is another run."
        )
    if plan.largest != plan.grid:
        notes.append(
            "The run grows to cluster.max_pipelines while there are nodes: step, value and "
            "comparison are those of that grid, what a node holds and how it spends a step those "
            "of the grid that it begins with."
        )
    as_launched = asked.hazard in (None, launched.per_node_hour)
    if job.cluster.spread == AUTO and plan.chosen is not None and not as_launched:
        notes.append(
            f"A launch chooses its spread for {launched.per_node_hour:.3g} losses per node-hour: "
            f"give it --set cluster.spread={plan.spread} to have this one."
        )
    return tuple(notes)
