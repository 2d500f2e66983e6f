"""What a job leaves open, settled: its cut, its redundancy, and whether it fits at all.

Rule: THE place where `redundancy = "auto"`, an empty cut and a strategy from a file become one
grid, cut and mode. Launch, simulation and plan take them from here, so all use the same. A job that
does not fit is refused here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from bamboo.config.load import checked
from bamboo.config.tree import ClusterConfig, JobConfig
from bamboo.errors import InputError
from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.plans.candidates import (
    NEAREST,
    Candidates,
    Choice,
    JobFitsNowhere,
    Room,
    savings_of,
)
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.modes import choose_mode
from bamboo.planner.plans.plan import whole_cut
from bamboo.planner.prices.catalogue import Catalogue, InstanceType
from bamboo.planner.profiles.workload import Saving, WorkloadFigures, saved
from bamboo.quantities import size
from bamboo.schedule.redundancy import has_replica
from bamboo.study.devices import has_precision
from bamboo.study.strategies import Given, placed, refuse_another_training
from bamboo.study.workload import (
    by_layer,
    costs_of,
    layer_facts,
    most_bytes,
    semantics_of,
    workload_of,
)
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import (
    AUTO,
    DEVICE,
    HOST,
    LAYER,
    OFF,
    Placement,
    Strategy,
    how_redundant,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A job in which nothing is open."""

    job: JobConfig
    strategy: Strategy
    facts: tuple[LayerFacts, ...]
    costs: tuple[float, ...]
    """Cost of each layer, by which stages are balanced."""
    why: str
    """One sentence on the redundancy; empty where the job chooses it."""
    saving_why: str
    """One sentence on what saves memory; empty where the job chooses it."""
    may_save: tuple[Saving, ...]
    """See `savings_of`, by the job as it was written."""


def settle(
    job: JobConfig,
    seen: Mapping[str, Any],
    *,
    kind: InstanceType,
    hazard: Hazard,
    given: Given | None = None,
    catalogue: Catalogue,
) -> Settled:
    """Settle a resolved job. `seen` is the preflight's answer. Raises JobFitsNowhere with the
    layer, the bytes and three plans that fit, of a larger instance type where this one has too few,
    and InputError for an impossible strategy or cut."""
    facts = layer_facts(job, seen)
    costs = costs_of(facts, seen)
    meant = semantics_of(job, seen)
    if given is not None and not given.places:
        given = None
    if given is not None:
        refuse_another_training(given, meant)
        job = _moved(job, given, facts, costs)
    named = whole_cut(facts, grid_of(job), job.cluster.cut, costs)
    workload = workload_of(job, seen, cuts=(named,), kind=kind)
    room = _reach(job, kind, layers=len(facts))
    must = named if job.cluster.cut else ()
    try:
        choice, why = _chosen(job, workload, room, hazard, must)
    except JobFitsNowhere as error:
        raise fits_nowhere(error, job, workload, kind=kind, catalogue=catalogue) from error
    job = checked(replace(job, cluster=replace(job.cluster, redundancy=choice.mode)))
    if must and choice.cut != must:
        raise _cut_does_not_fit(job, choice, given, kind)
    needs = most_bytes(workload.layers, choice.cut, job.cluster.pipelines, job=job)
    why_saving = _saving_sentence(choice, needs, kind, cluster=job.cluster)
    cluster = replace(job.cluster, recompute=LAYER if choice.saving.recompute else OFF)
    if cluster.replica_moments == AUTO or not has_replica(choice.mode):
        moments = HOST if choice.saving.host_moments else DEVICE
        cluster = replace(cluster, replica_moments=moments)
    job = replace(job, cluster=cluster)
    return Settled(
        job=job,
        strategy=Strategy(
            semantics=meant,
            placement=Placement(cut=choice.cut, grid=grid_of(job), redundancy=choice.mode),
        ),
        facts=saved(workload, choice.saving).layers,
        costs=tuple(costs),
        why=why,
        saving_why=why_saving,
        may_save=room.savings,
    )


def fits_nowhere(
    error: JobFitsNowhere,
    job: JobConfig,
    workload: WorkloadFigures,
    *,
    kind: InstanceType,
    catalogue: Catalogue,
) -> JobFitsNowhere:
    """The same with three plans that fit, where there are some: the nearest to the job as written,
    and of larger instance types where this one has too few."""
    room = _reach(job, kind, layers=len(workload.layers))
    mode = min(room.modes, key=how_redundant)
    mode = mode if job.cluster.redundancy == AUTO else job.cluster.redundancy
    nearest = error.nearest or Candidates(workload, room).nearest(grid_of(job), mode)
    missing = NEAREST - len(nearest)
    found = _elsewhere(job, catalogue, workload, room, mode=mode, count=missing)
    return JobFitsNowhere(error.cause, nearest, found)


def grid_of(job: JobConfig) -> Grid:
    """The grid that a job begins with."""
    return Grid(pipelines=job.cluster.pipelines, stages=job.cluster.stages)


def _chosen(
    job: JobConfig, workload: WorkloadFigures, room: Room, hazard: Hazard, cut: tuple[int, ...]
) -> tuple[Choice, str]:
    """The plan of the job's grid, and why it has its redundancy; "" where the job says it."""
    cluster, candidates = job.cluster, Candidates(workload, room)
    if cluster.redundancy != AUTO:
        return candidates.asked(grid_of(job), cluster.redundancy), ""
    grid, standbys = _judged(job, candidates), cluster.standbys
    chosen = choose_mode(
        workload, grid, room, hazard, spread=cluster.spread, standbys=standbys, cut=cut
    )
    return chosen.taken.choice, chosen.why


def _elsewhere(
    job: JobConfig,
    catalogue: Catalogue,
    workload: WorkloadFigures,
    room: Room,
    *,
    mode: str,
    count: int,
) -> list[tuple[str, Choice]]:
    """At most `count` plans that fit larger instance types, each with its type: the nearest of each
    type first, the smallest type first; of types with as much memory the cheapest counts."""
    able = sorted(
        (one for one in catalogue.types.values() if has_precision(one, job.train.precision)),
        key=lambda one: (one.gpu_memory_bytes, one.on_demand_usd_per_hour),
    )
    found: list[tuple[int, str, Choice]] = []
    for kind in able:
        if kind.gpu_memory_bytes > room.memory_bytes and len({x[1] for x in found}) < count:
            room = replace(
                room, memory_bytes=kind.gpu_memory_bytes, host_bytes=kind.host_room_bytes
            )
            nearest = Candidates(workload, room).nearest(grid_of(job), mode)
            found += [(rank, kind.name, one) for rank, one in enumerate(nearest)]
    found.sort(key=lambda one: one[0])
    return [(name, one) for _, name, one in found[:count]]


def _saving_sentence(
    choice: Choice, needs_bytes: int, kind: InstanceType, *, cluster: ClusterConfig
) -> str:
    """`needs_bytes`: of the fullest node without."""
    again = choice.saving.recompute and cluster.recompute == AUTO
    moved = choice.saving.host_moments and cluster.replica_moments == AUTO
    if again or moved:
        taken = [f"recompute auto is {LAYER}"] * again + [f"replica_moments auto is {HOST}"] * moved
        longer = ["backwards"] * again + ["replicas' steps"] * moved
        return (
            f"{' and '.join(taken)}: a node needs {size(choice.most_bytes, digits=2)}, and "
            f"{size(needs_bytes, digits=2)} without; one {kind.gpu} has {kind.gpu_memory_text}. "
            f"{' and '.join(longer).capitalize()} take longer so."
        )
    if cluster.recompute == AUTO:
        return f"recompute auto is {OFF}: the plan fits one {kind.gpu} without."
    return ""


def _judged(job: JobConfig, candidates: Candidates) -> Grid:
    """The grid that the redundancy is chosen for: that of the start. But a single node that others
    are to join has nobody yet to keep a copy, so it is the grid of two that counts then."""
    begin, two = grid_of(job), Grid(pipelines=2, stages=1)
    grows = begin.size == 1 and job.cluster.max_pipelines > 1
    fits = grows and candidates.choice(two, "off", job.train.microbatch) is not None
    return two if fits else begin


def _reach(job: JobConfig, kind: InstanceType, *, layers: int) -> Room:
    """Where plans that fit are searched: the job's number of pipelines or one, any number of
    stages, and the job's own microbatches or smaller ones, since bits may be given up where nothing
    else fits."""
    own, pipelines = job.train.microbatch, job.cluster.pipelines
    return Room(
        memory_bytes=kind.gpu_memory_bytes,
        host_bytes=kind.host_room_bytes,
        nodes=range(1, pipelines * layers + 1),
        grids=tuple(
            Grid(pipelines=several, stages=stages)
            for several in sorted({1, pipelines})
            for stages in range(1, layers + 1)
        ),
        microbatches=tuple(size for size in range(own, 0, -1) if own % size == 0),
        savings=savings_of(job.cluster.recompute, job.cluster.replica_moments),
        cut=job.cluster.cut,
    )


def _moved(
    job: JobConfig, given: Given, facts: Sequence[LayerFacts], costs: Sequence[float]
) -> JobConfig:
    """The job as its strategy places it. A virtual device's figures are given for the stages of the
    job's own cut, and each layer keeps the time that it takes there."""
    layers = given.placement.cut[-1]
    if layers != len(facts):
        raise InputError(
            f"{given.path}: is a strategy for {layers} layers, and the model has {len(facts)}; "
            "take one that was planned for this job"
        )
    before = whole_cut(facts, grid_of(job), job.cluster.cut, costs)
    moved = placed(job, given.placement)
    if job.cluster.device == "virtual" and given.placement.cut != before:
        moved = replace(moved, cluster=_restaged(moved.cluster, before))
    return checked(moved)


def _restaged(cluster: ClusterConfig, before: tuple[int, ...]) -> ClusterConfig:
    """The virtual device's figures for the cut of `cluster`, from those for the cut `before`."""

    def figures_ms(name: str) -> tuple[float, ...]:
        each_s = by_layer(getattr(cluster, name), before)
        cut = (*cluster.cut, before[-1])
        return tuple(round(sum(each_s[first:stop]) * 1e3, 9) for first, stop in pairwise(cut))

    return replace(
        cluster,
        virtual_forward_ms=figures_ms("virtual_forward_ms"),
        virtual_backward_ms=figures_ms("virtual_backward_ms"),
    )


def _cut_does_not_fit(
    job: JobConfig, choice: Choice, given: Given | None, kind: InstanceType
) -> InputError:
    return InputError.at(
        file=job.file if given is None else str(given.path),
        key="cluster.cut" if given is None else "placement.cut",
        value=list(job.cluster.cut),
        problem=f"does not fit one {kind.gpu} with redundancy {choice.mode!r}: it has "
        f"{kind.gpu_memory_text}",
        remedy=f"take {list(choice.cut[:-1])}, of which a node needs at most "
        f"{size(choice.most_bytes, digits=2)}",
    )
