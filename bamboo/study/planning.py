"""From a job and what the preflight saw to the plan, the strategy and the exact launch requests.

Rule: nothing is started here and no clock is read. The dry run and the launch show and use the same
values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bamboo.config.catalogue import load_catalogue, load_gpus
from bamboo.config.policy import policy_of
from bamboo.config.resolve import batch_shape, nodes_at_begin, nodes_of
from bamboo.config.tree import JobConfig
from bamboo.core import keep
from bamboo.core.state import GridTime, Policy
from bamboo.errors import InputError
from bamboo.ids import RunId, ZoneId
from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.plan import Plan, make_plan
from bamboo.planner.prices.catalogue import Catalogue, InstanceType
from bamboo.planner.prices.price_warnings import price_warnings
from bamboo.planner.profiles.workload import Saving, WorkloadFigures
from bamboo.planner.risks.hazards import LossRate
from bamboo.planner.risks.zones import Stakes
from bamboo.planner.step.step_time import StepTimes
from bamboo.planner.step.synced import is_plain, parameters_of
from bamboo.sites.account.instances import chooses_among_pools, run_settings, shown_requests
from bamboo.sites.bought import markets_of, speeds_of
from bamboo.study.devices import with_device
from bamboo.study.hazards import rate_of
from bamboo.study.intervals import Kept, given_every, kept_by, put_usd, with_interval
from bamboo.study.scaler_terms import rule_of
from bamboo.study.settling import grid_of, settle
from bamboo.study.strategies import Given
from bamboo.study.synchronising import (
    Synchronised,
    refuse_beyond_memory,
    situated,
    synchronised,
    with_bill,
    with_rules,
)
from bamboo.study.workload import (
    MODELLED,
    Modelled,
    code_of,
    cuts_of,
    grids_of,
    most_bytes,
    on_cores,
    workload_of,
)
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import Strategy
from bamboo.user_code.manifest import Manifest
from cloud.expiry import EXPIRY_S
from cloud.provider import LaunchSpec, Market, Offer, Pool, cheapest_first
from cloud.reconcile import Desired, PoolMemory, Start, reconcile


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Everything that is known before anything is started."""

    job: JobConfig
    """As it is run: nothing in it is left to the planner."""
    redundancy_why: str
    """One sentence; empty where the job chooses the redundancy."""
    saving_why: str
    """The same of what saves memory."""
    may_save: tuple[Saving, ...]
    """What a `Room` of other plans of the job allows for."""
    plan: Plan
    strategy: Strategy
    pool: Pool
    """The cheapest offer by the catalogue. A launch asks the cloud again."""
    zones: Mapping[str, int]
    """How many nodes each zone is to have; empty: all are in the zone of the cheapest offer."""
    usd_per_hour: float
    """Of all instances, in their zones."""
    requests: tuple[Mapping[str, Any], ...]
    """The calls that request the instances, one for each zone and market, as they may be shown."""
    catalogue: Catalogue
    workload: WorkloadFigures
    """It counts the cores of this machine, where nodes share them."""
    modelled: Modelled | None
    """Set where times are not those of this machine."""
    cuts: tuple[tuple[int, ...], ...]
    """For each smaller number of stages that fits, and for the job's."""
    grids: tuple[GridTime, ...]
    """Every grid that the run may have, each within an instance's memory. Times assume a core for
    every node; the run decides by them."""
    too_large: tuple[tuple[Grid, int], ...]
    """Grids that the job would allow but that need more memory than an instance has, with the bytes
    of the node that needs most. The run never has them."""
    layers: tuple[int, ...]
    """Layers with parameters: what a checkpoint must contain."""
    unigram_entropy_nats: float | None
    """None: the data are no text."""
    data: Mapping[str, Any]
    """What the text is, as `bamboo.data.described.Description.body` gives it; {}: no text."""
    samples: int
    """How many the data hold."""
    microbatch_spread: float
    """The time of the longest of unlike microbatches less that of the shortest, over their mean; 0:
    all are alike."""
    code: Manifest | None
    """The part of the user's code that is kept with the run; None: the model is built in."""
    synced: Synchronised
    """How gradients pass between nodes."""
    numerics: Mapping[str, Any]
    """What this machine computes with: what nodes do that run on it, and no others."""

    @property
    def whole_usd_per_hour(self) -> float:
        """Price of all instances, and of what calm steps send between zones."""
        return self.usd_per_hour + self.plan.transfer_usd_per_hour

    @property
    def policy(self) -> Policy:
        """The figures that decisions use."""
        return policy_of(
            self.job,
            self.cuts,
            grids=self.grids,
            spread=self.plan.spread,
            layer_bytes=self.layer_bytes,
            store_bytes_per_s=self.workload.store_bytes_per_s,
        )

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of parameters and moments, by layer."""
        layers = range(len(self.workload.layers))
        return tuple(self.workload.state_bytes((layer,)) for layer in layers)

    def price_warnings(self) -> tuple[str, ...]:
        """Warnings about the prices of the job's pools."""
        cloud = self.job.cloud
        spot = Market(cloud.market) is Market.SPOT
        return price_warnings(self.catalogue, cloud.instance_types, cloud.zones, spot=spot)

    def least_step_s(self) -> float:
        """Seconds of a calm step on the fastest grid that the run may have."""
        times = StepTimes(self.workload, self.plan.mode)
        leaves = self.workload.shape.virtual_nodes
        grids = {Grid(pipelines=one.pipelines, stages=one.stages) for one in self.grids}
        return min(
            times.calm_s(grid, equal_shares(leaves, grid.pipelines))
            for grid in {*grids, self.plan.grid, self.plan.largest}
        )

    def sizes(self) -> tuple[int, ...]:
        """How many nodes an autoscaled run may have, standbys included."""
        return rule_of(self.job, self.policy).sizes

    def fits_notice(self) -> bool:
        """Whether a notice is long enough to store a stage's state: `core.saving`
        does that where no node stays that holds it."""
        return keep.fits_notice(self.policy, self.plan.cut)

    def largest_stage_bytes(self) -> int:
        """Bytes that a notice must be long enough to store."""
        return keep.largest_stage(self.policy, self.plan.cut)

    def gpu_times(self) -> str:
        """How the times of a GPU were modelled, as a sentence; "" where they were measured here."""
        if self.modelled is None:
            return ""
        return load_gpus().find(self.modelled.gpu).times(self.job.train.precision)

    def gpu_doubt(self) -> str:
        """The GPU that times were modelled for, where nothing was measured on such a card; "":
        elsewhere."""
        gpu = None if self.modelled is None else load_gpus().find(self.modelled.gpu)
        return f"of {gpu.name}: {gpu.doubt}" if gpu is not None and gpu.doubt else ""

    def kept(self) -> Kept | None:
        """Its checkpoints; None where the time of a step is unknown."""
        return kept_by(self.job, self.plan, self.catalogue)

    def promised(self) -> dict[str, Any]:
        """The planned time and value of calm steps, on the largest grid that the instances fill, so
        that rate and price are of one fleet. A launch, its receipt and its report quote these
        figures. None where the time of a step is unknown."""
        expected = self.plan.full
        return {
            "usd_per_hour": self.usd_per_hour,
            "transfer_usd_per_hour": self.plan.transfer_usd_per_hour,
            "step_s": expected.step_s if expected else None,
            "samples_per_s": expected.samples_per_s if expected else None,
            "samples_per_s_source": expected.source if expected else None,
            "samples_per_usd": self.plan.samples_per_usd(self.usd_per_hour),
            "samples_per_usd_with_transfer": self.plan.samples_per_usd(self.whole_usd_per_hour),
        }


def plan_job(
    job: JobConfig,
    seen: Mapping[str, Any],
    *,
    run: RunId,
    now_s: float,
    nodes: int | None = None,
    given: Given | None = None,
    rate: LossRate | None = None,
    catalogue: Catalogue | None = None,
    search: int = 0,
) -> Planned:
    """Plan a resolved job. `seen` is the preflight's answer, `nodes` what a trace begins with
    (None: what the job begins with), `given` the strategy that places it. `rate` is the rate of
    losses that redundancy and spread are chosen for (None: by `rate_of`), `catalogue` the prices
    (None: the newest). `search`: how many strategies are priced on paper; 0: the job's builder
    makes one. Raises InputError for a type without a price, and as `settle`."""
    catalogue = catalogue or load_catalogue(job.cloud.region)
    job = with_device(_with_unit(job, seen), catalogue)
    pool, price = cheapest_pool(job, catalogue)
    kind, stakes = catalogue.find(pool.instance_type), stakes_of(job, catalogue, pool.instance_type)
    hazard = Hazard(stakes=stakes, rate=rate or rate_of(kind.name, job.cloud.region))
    settled = settle(job, seen, kind=kind, hazard=hazard, given=given, catalogue=catalogue)
    cut = settled.strategy.placement.cut
    job, too_large = _within_memory(settled.job, settled.facts, cut, kind=kind)
    pipelines, standbys = _filled(job, nodes)
    cuts = cuts_of(settled.facts, cut, costs=settled.costs, job=job, kind=kind)
    workload = workload_of(job, seen, cuts=cuts, kind=kind)
    here = on_cores(workload, job, seen, nodes=pipelines * job.cluster.stages)
    make = partial(
        make_plan,
        settled.facts,
        grid=grid_of(job),
        mode=job.cluster.redundancy,
        shape=batch_shape(job),
        instance_type=kind,
        zone_spot_usd_per_hour=zone_prices(job, catalogue, pool.instance_type),
        standbys=standbys,
        max_pipelines=pipelines,
        stakes=stakes,
        spread=job.cluster.spread,
        rate=hazard.rate,
        cut=cut[:-1],
    )
    plan, synced = _as_synchronised(make, here, job, given, search=search)
    here, workload = (with_rules(one, synced) for one in (here, workload))
    placement = replace(settled.strategy.placement, sync=synced.sync)
    job, chosen = with_interval(job, plan.checkpoint_every), plan.chosen
    apart = {} if chosen is None or chosen.name == "one" else dict(chosen.zones)
    dearer = job.cloud.anchors * (kind.on_demand_usd_per_hour - price)
    return Planned(
        job=job,
        redundancy_why=settled.why,
        saving_why=settled.saving_why,
        may_save=settled.may_save,
        plan=plan,
        strategy=replace(settled.strategy, placement=placement),
        pool=pool,
        zones=apart,
        usd_per_hour=dearer + (chosen.instances_usd_per_hour if chosen else price * plan.instances),
        requests=_requests(run, job, catalogue, plan.instances, apart, now_s=now_s),
        catalogue=catalogue,
        workload=here,
        cuts=cuts,
        grids=_grids(job, settled.facts, workload, cuts=cuts, kind=kind),
        too_large=too_large,
        synced=synced,
        **_as_seen(job, seen),
    )


def _as_seen(job: JobConfig, seen: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Planned` that nothing was planned for."""
    return {
        "modelled": seen.get(MODELLED),
        "layers": _with_state(seen),
        "unigram_entropy_nats": seen["unigram_entropy_nats"],
        "data": seen["data"],
        "samples": int(seen["samples"]),
        "microbatch_spread": _microbatch_spread(job, seen),
        "code": code_of(seen),
        "numerics": seen["numerics"],
    }


def _as_synchronised(
    make: Callable[..., Plan],
    timed: WorkloadFigures,
    job: JobConfig,
    given: Given | None,
    *,
    search: int,
) -> tuple[Plan, Synchronised]:
    """The plan as its gradients are synchronised. What suits them depends on the grid and on where
    its nodes lie, so it is planned first with what a builder makes wherever they lie."""
    plan = make(timed=timed)
    billed = with_bill(timed, plan)
    if billed is not timed and not is_plain(billed):
        timed = billed
        plan = make(timed=timed)
    facts = parameters_of(timed)
    synced = synchronised(job, facts, situated(plan, timed), given, search=search)
    ruled = with_rules(timed, synced)
    if not (is_plain(ruled) and is_plain(timed)):
        plan = make(timed=ruled, spread=plan.spread)
        refuse_beyond_memory(job, plan, synced)
    return plan, synced


def _with_unit(job: JobConfig, seen: Mapping[str, Any]) -> JobConfig:
    """Documents that are padded have no fixed number of tokens, so rates are in samples."""
    counted = seen["data"] and not seen["data"].get("padded")
    unit = "" if counted else str(seen["unit"])
    return replace(job, unit=unit, evaluated_on=str(seen.get("evaluated_on", "")))


def _microbatch_spread(job: JobConfig, seen: Mapping[str, Any]) -> float:
    """0 where the times are not those that the preflight saw."""
    if MODELLED in seen or job.cluster.device == "virtual":
        return 0.0
    took_ms = [one["forward_ms"] + one["backward_ms"] for one in seen["layers"]]
    shares = zip(seen["layers"], took_ms, strict=True)
    whole_ms = sum(took_ms)
    return sum(x.get("spread", 0.0) * ms for x, ms in shares) / whole_ms if whole_ms else 0.0


def _with_state(seen: Mapping[str, Any]) -> tuple[int, ...]:
    """The layers that have parameters or buffers."""
    there = (x for x in seen["layers"] if x["parameters"] or x.get("frozen_bytes", 0))
    return tuple(int(x["index"]) for x in there)


def _filled(job: JobConfig, nodes: int | None) -> tuple[int, int]:
    """The pipelines that so many nodes fill, at least those of the start, and how many nodes are
    left over. None: as many nodes as the job begins with."""
    if nodes is None:
        nodes = nodes_at_begin(job) if job.autoscale.enabled else nodes_of(job)
    filled = min(job.cluster.max_pipelines, nodes // job.cluster.stages)
    pipelines = max(filled, job.cluster.pipelines)
    return pipelines, nodes - pipelines * job.cluster.stages


def _grids(
    job: JobConfig,
    facts: Sequence[LayerFacts],
    workload: WorkloadFigures,
    *,
    cuts: Sequence[tuple[int, ...]],
    kind: InstanceType,
) -> tuple[GridTime, ...]:
    """Every grid that an instance has the memory for. The first grid was settled to fit."""
    begin = (job.cluster.pipelines, job.cluster.stages)

    def fits(pipelines: int, cut: tuple[int, ...]) -> bool:
        if (pipelines, len(cut) - 1) == begin:
            return True
        return most_bytes(facts, cut, pipelines, job=job) <= kind.gpu_memory_bytes

    mode, most = job.cluster.redundancy, job.cluster.max_pipelines
    return grids_of(workload, mode=mode, cuts=cuts, pipelines=most, fits=fits)


def _within_memory(
    job: JobConfig, facts: Sequence[LayerFacts], cut: tuple[int, ...], *, kind: InstanceType
) -> tuple[JobConfig, tuple[tuple[Grid, int], ...]]:
    """The job with no more pipelines than an instance has the memory for, and the grids beyond. The
    first grid was settled so that it fits."""
    cluster = job.cluster
    needs = {
        several: most_bytes(facts, cut, several, job=job)
        for several in range(cluster.pipelines + 1, cluster.max_pipelines + 1)
    }
    beyond = {several: need for several, need in needs.items() if need > kind.gpu_memory_bytes}
    most = max(needs.keys() - beyond.keys(), default=cluster.pipelines)
    too_large = tuple(
        (Grid(pipelines=several, stages=cluster.stages), need) for several, need in beyond.items()
    )
    return replace(job, cluster=replace(cluster, max_pipelines=most)), too_large


def _requests(
    run: RunId,
    job: JobConfig,
    catalogue: Catalogue,
    instances: int,
    zones: Mapping[str, int],
    *,
    now_s: float,
) -> tuple[Mapping[str, Any], ...]:
    """The calls at the start: the decisions of `reconcile` for an empty fleet, at these prices."""
    settings = run_settings(job, run)
    actions = reconcile(
        desired=Desired(
            count=instances,
            zones={ZoneId(zone): count for zone, count in zones.items()},
            anchors=job.cloud.anchors,
        ),
        observed=(),
        offers=_offers(job, catalogue),
        memory=PoolMemory(),
        now_s=now_s,
        several=chooses_among_pools(settings),
    )
    specs = [
        LaunchSpec(
            run=run,
            pool=action.pool,
            alternatives=action.alternatives,
            count=action.count,
            token=f"{run}-{number}",
            expires_at_s=int(now_s) + EXPIRY_S,
        )
        for number, action in enumerate(actions, start=1)
        if isinstance(action, Start)
    ]
    return shown_requests(specs, settings)


def _offers(job: JobConfig, catalogue: Catalogue) -> tuple[Offer, ...]:
    """What the catalogue knows of the job's pools, the cheapest per speed first."""
    speeds = speeds_of(job, catalogue)
    offers = [
        Offer(
            pool=Pool(instance_type=name, zone=ZoneId(zone), market=market),
            usd_per_hour=price,
            speed=speeds[name],
        )
        for market in markets_of(job)
        for name in job.cloud.instance_types
        for zone, price in _prices_on(market, job, catalogue, name).items()
    ]
    return cheapest_first(offers, job.cloud.zones)


def cheapest_pool(job: JobConfig, catalogue: Catalogue) -> tuple[Pool, float]:
    """The cheapest pool of the job's market relative to its speed, as the fleet ranks offers, with
    the price of an instance.

    At equal prices it is the one listed first. Raises InputError when nothing has a price.
    """
    market = Market(job.cloud.market)
    offers = [
        (price, Pool(instance_type=name, zone=ZoneId(zone), market=market))
        for name in job.cloud.instance_types
        for zone, price in _market_prices(job, catalogue, name).items()
    ]
    if not offers:
        left_out = catalogue.left_out(job.cloud.instance_types, job.cloud.zones)
        raise InputError.at(
            file=job.file,
            key="cloud.instance_types",
            value=list(job.cloud.instance_types),
            problem="; ".join((f"none has a {market.value} price in the catalogue", *left_out)),
            remedy='take others, or cloud.market = "on-demand"',
        )
    speeds = speeds_of(job, catalogue)
    price, pool = min(offers, key=lambda offer: offer[0] / speeds[offer[1].instance_type])
    return pool, price


def stakes_of(job: JobConfig, catalogue: Catalogue, name: str) -> Stakes:
    """What a spread of instances of one type depends on, apart from the layout."""
    return Stakes(
        zone_usd_per_hour=_market_prices(job, catalogue, name),
        preemptible=job.cloud.market == Market.SPOT,
        steps=job.train.steps,
        checkpoint_every=given_every(job),
        put_usd=put_usd(job, catalogue),
    )


def _market_prices(job: JobConfig, catalogue: Catalogue, name: str) -> dict[str, float]:
    return _prices_on(Market(job.cloud.market), job, catalogue, name)


def _prices_on(market: Market, job: JobConfig, catalogue: Catalogue, name: str) -> dict[str, float]:
    if market is Market.SPOT:
        return zone_prices(job, catalogue, name)
    return dict.fromkeys(job.cloud.zones, catalogue.find(name).on_demand_usd_per_hour)


def zone_prices(job: JobConfig, catalogue: Catalogue, name: str) -> dict[str, float]:
    """Zone -> modelled spot price of one instance; empty where the catalogue has none."""
    return catalogue.spot_prices([name], job.cloud.zones).get(name, {})
