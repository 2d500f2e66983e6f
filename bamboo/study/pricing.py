"""From a job and the catalogue to offers: what the job's layers take on each instance type.

Rule: every offer says where its times come from. By default a type's GPU is modelled by published
figures, from the shape of the built-in model or from a profile of the user's own layers. Where the
job's device is virtual, or the times of this machine or a figure of the user's are asked for, all
types are equally fast. Then only the types of the job file are compared, unless others are named.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from bamboo.config.catalogue import load_catalogue, load_gpus
from bamboo.config.resolve import batch_shape, shape_facts
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.planner.prices.price_warnings import price_warnings
from bamboo.planner.profiles.profiled import Profile
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.renting.credible import BestKnown, best_known
from bamboo.planner.renting.option import Offer
from bamboo.planner.risks.hazards import LossRate
from bamboo.planner.step.step_time import StepTimes
from bamboo.ports import Told
from bamboo.study.devices import gpu_of
from bamboo.study.hazards import rates_in
from bamboo.study.modelled import counted_words, on_type
from bamboo.study.planning import plan_job, zone_prices
from bamboo.study.profiling import Wanted, profile_job, seen_of, shaped_work
from bamboo.study.settling import grid_of
from bamboo.study.workload import cuts_by_flops
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import AUTO

GIVEN = "given with --samples-per-s"
BACKWARD = 2.0
"""A backward is taken to last as long as this many forwards, where it was not measured."""
Progress = Callable[[], AbstractContextManager[Told]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesAsked:
    """Where the times are to come from."""

    samples_per_s: float = 0.0
    """Rate of the job as it is written; 0: not given."""
    here: bool = False
    """Use the times of this machine's CPU."""
    types: tuple[str, ...] = ()
    """Instance types to compare; empty: all whose speed is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """What can be compared."""

    offers: tuple[Offer, ...]
    source: str
    """Where the times come from, in words."""
    modelled: bool
    too_large: Mapping[str, str]
    """Types on which some layer does not fit even alone, and why."""
    catalogue: Catalogue
    unit: str = ""
    """What is counted where the data are no text, in the singular."""
    best_known: BestKnown | None = None
    """What the job's products cost where they are cheapest; None: times are not modelled for
    GPUs."""

    def price_warnings(self, zones: Sequence[str]) -> tuple[str, ...]:
        """Warnings about the prices of everything that is compared, in these zones."""
        return price_warnings(self.catalogue, [offer.name for offer in self.offers], zones)

    @property
    def by_name(self) -> dict[str, Offer]:
        """By instance type."""
        return {offer.name: offer for offer in self.offers}


def offers_of(
    job: JobConfig,
    path: Path,
    asked: TimesAsked,
    *,
    rate: LossRate | None,
    most_stages: int,
    progress: Progress,
) -> Offers:
    """All offers for a job. `rate` is the rate of losses on all of them; None: each has its own.
    Raises InputError for a type that the catalogue does not know, and for a job that cannot be
    looked at."""
    catalogue = load_catalogue(job.cloud.region)
    alike = job.cluster.device == "virtual" or asked.here or asked.samples_per_s > 0
    names = asked.types or (job.cloud.instance_types if alike else tuple(catalogue.types))
    kinds = [catalogue.find(name) for name in dict.fromkeys(names)]
    too_large: dict[str, str] = {}
    found: dict[str, WorkloadFigures] = {}
    best, unit = None, ""
    if alike:
        if asked.samples_per_s > 0:
            one, unit = _as_given(job, asked.samples_per_s)
        else:
            one, unit = _as_planned(job)
        found = {kind.name: one for kind in kinds}
        source = one.source
    else:
        profile = _profile(job, path, progress)
        unit = profile.unit
        best = best_known(profile, catalogue, load_gpus(), job.train.precision)
        for kind in kinds:
            try:
                load_gpus().check_room(profile, gpu_of(kind))
                found[kind.name] = on_type(kind, profile, job=job)
            except InputError as error:
                too_large[kind.name] = str(error)
        source = (
            f"modelled by published figures of each GPU ({load_gpus().seen}), from "
            f"{counted_words(profile)}"
        )
    cuts = cuts_by_flops(job, next(iter(found.values())).layers, most_stages) if found else {}
    rates = rates_in(job.cloud.region, asked=rate)
    return Offers(
        offers=tuple(
            Offer(
                name=kind.name,
                gpu=kind.gpu,
                memory_bytes=kind.gpu_memory_bytes,
                host_bytes=kind.host_room_bytes,
                workload=replace(found[kind.name], cuts=cuts, eval_every=job.eval.every_steps),
                on_demand_usd_per_hour=kind.on_demand_usd_per_hour,
                spot_usd_per_hour=zone_prices(job, catalogue, kind.name),
                rate=rates(kind.name),
            )
            for kind in kinds
            if kind.name in found
        ),
        source=source,
        modelled=not alike,
        too_large=too_large,
        catalogue=catalogue,
        unit=unit,
        best_known=best,
    )


def _profile(job: JobConfig, path: Path, progress: Progress) -> Profile:
    """The work of the layers on a device. For the built-in model nothing has to be built."""
    if job.model.is_gpt:
        return shaped_work(job)
    return profile_job(path, Wanted(), overrides=(), progress=progress).profile


def _as_planned(job: JobConfig) -> tuple[WorkloadFigures, str]:
    """With the times that a launch on this machine plans with, and a core for every node, because
    instances are compared; and the unit of data that are no text."""
    seen = {name: what for name, what in seen_of(job).items() if name != "cores"}
    planned = plan_job(job, seen, run=RunId("cost"), now_s=0.0)
    return planned.workload, planned.job.unit


def _as_given(job: JobConfig, samples_per_s: float) -> tuple[WorkloadFigures, str]:
    """With times so that the job as it is written reaches this rate, without redundancy where that
    is not chosen yet; and the unit as above. Layers are in proportion to their flops."""
    of_unit = ""
    if facts := shape_facts(job):
        cut = job.cluster.cut
        work = WorkloadFigures(
            name=Path(job.file).name,
            source=GIVEN,
            layers=facts,
            forward_s=tuple(layer.forward_flops for layer in facts),
            backward_s=tuple(BACKWARD * layer.forward_flops for layer in facts),
            shape=batch_shape(job),
            batch=job.train.batch,
            cuts={len(cut): (*cut, len(facts))} if cut else {},
        )
    else:
        work, of_unit = _as_planned(job)
        work = replace(work, source=GIVEN, bytes_per_s=0.0, latency_s=0.0)
    unit = max(work.both_s)
    work = _faster(work, unit)
    grid = grid_of(job)
    shares = equal_shares(work.shape.virtual_nodes, grid.pipelines)
    mode = "off" if job.cluster.redundancy == AUTO else job.cluster.redundancy
    step_s = StepTimes(work, mode).calm_s(grid, shares)
    return _faster(work, step_s / (job.train.batch / samples_per_s)), of_unit


def _faster(work: WorkloadFigures, factor: float) -> WorkloadFigures:
    return replace(
        work,
        forward_s=tuple(time_s / factor for time_s in work.forward_s),
        backward_s=tuple(time_s / factor for time_s in work.backward_s),
        optimizer_s=tuple(time_s / factor for time_s in work.optimizer_s),
    )
