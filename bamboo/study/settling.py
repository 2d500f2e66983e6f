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
from bamboo.planner.plans.candidates import Candidates, Choice, Room
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.modes import choose_mode
from bamboo.planner.plans.plan import whole_cut
from bamboo.planner.prices.catalogue import InstanceType
from bamboo.study.strategies import Given, placed, refuse_another_training
from bamboo.study.workload import by_layer, costs_of, layer_facts, semantics_of, workload_of
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import AUTO, Placement, Strategy

GIB = 2**30


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


def settle(
    job: JobConfig,
    seen: Mapping[str, Any],
    *,
    kind: InstanceType,
    hazard: Hazard,
    given: Given | None = None,
) -> Settled:
    """Settle a resolved job. `seen` is the preflight's answer. Raises JobFitsNowhere with the
    layer, the bytes and the nearest plans, and InputError for an impossible strategy or cut."""
    facts = layer_facts(job, seen)
    costs = costs_of(facts, seen)
    meant = semantics_of(job, seen)
    if given is not None:
        refuse_another_training(given, meant)
        job = _moved(job, given, facts, costs)
    named = whole_cut(facts, grid_of(job), job.cluster.cut, costs)
    workload = workload_of(job, seen, cuts=(named,), kind=kind)
    room = _reach(job, kind, layers=len(facts))
    why, must = "", named if job.cluster.cut else ()
    if job.cluster.redundancy == AUTO:
        chosen = choose_mode(
            workload,
            _judged(job, Candidates(workload, room)),
            room,
            hazard,
            spread=job.cluster.spread,
            standbys=job.cluster.standbys,
            cut=must,
        )
        choice, why = chosen.taken.choice, chosen.why
        job = checked(replace(job, cluster=replace(job.cluster, redundancy=choice.mode)))
    else:
        choice = Candidates(workload, room).asked(grid_of(job), job.cluster.redundancy)
    if must and choice.cut != must:
        raise _cut_does_not_fit(job, choice, given, kind)
    return Settled(
        job=job,
        strategy=Strategy(
            semantics=meant,
            placement=Placement(cut=choice.cut, grid=grid_of(job), redundancy=choice.mode),
        ),
        facts=facts,
        costs=tuple(costs),
        why=why,
    )


def grid_of(job: JobConfig) -> Grid:
    """The grid that a job begins with."""
    return Grid(pipelines=job.cluster.pipelines, stages=job.cluster.stages)


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
        nodes=range(1, pipelines * layers + 1),
        grids=tuple(
            Grid(pipelines=several, stages=stages)
            for several in sorted({1, pipelines})
            for stages in range(1, layers + 1)
        ),
        microbatches=tuple(size for size in range(own, 0, -1) if own % size == 0),
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
        problem=f"does not fit a {kind.gpu} with redundancy {choice.mode!r}: it has "
        f"{kind.gpu_memory_text}",
        remedy=f"take {list(choice.cut[:-1])}, of which a node needs at most "
        f"{choice.most_bytes / GIB:.2f} GiB",
    )
