"""The plan of a job before launch: cut, bytes, price, step time, and the losses that it survives.

Rule: plain arguments in, one frozen value out; every figure names its source.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bamboo.errors import InputError
from bamboo.ids import NodeId
from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.layers.memory import StageBytes, memory_report
from bamboo.planner.layers.partition import partition
from bamboo.planner.plans.losses import shards_of
from bamboo.planner.prices.catalogue import InstanceType
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.checkpoint_cost import Shards
from bamboo.planner.risks.hazards import PUBLISHED, LossRate
from bamboo.planner.risks.survival import Outcome, single_loss, survival
from bamboo.planner.risks.zones import (
    Spread,
    Stakes,
    cheapest,
    laid_out,
    nodes_by_zone,
    price_spreads,
)
from bamboo.planner.step.cost import Expected, costs_for, expected, layout_for
from bamboo.planner.step.evaluation import evaluation_s
from bamboo.planner.step.layout import Costs
from bamboo.planner.step.step_time import StepTimes
from bamboo.planner.step.synced import in_zones, is_plain, zones_of
from bamboo.quantities import duration, size, usd
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.strategy import BARE_MODES, SPREADS
from bamboo.topology.virtual_nodes import BatchShape
from bamboo.value import samples_per_usd, usd_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything `bamboo launch --dry-run` and `bamboo cost` say about a job."""

    grid: Grid
    mode: str
    cut: tuple[int, ...]
    """First layer of each stage, then the layer count."""
    parameters: int
    """Scalars of the whole model that are trained, counting each copy of a tied parameter."""
    frozen_bytes: int
    """Of its frozen parameters and buffers."""
    memory: tuple[StageBytes, ...]
    instance_type: InstanceType
    instances: int
    on_demand_usd_per_hour: float
    spot_usd_per_hour: Mapping[str, float]
    """Zone -> all instances in that zone; empty if no spot price is known."""
    expected: Expected | None
    """With `grid`. None: the time of a microbatch is neither measured nor given."""
    largest: Grid
    """The largest grid that the instances, without standbys, fill."""
    full: Expected | None
    """With `largest`."""
    spread: str
    """How the nodes are spread over the zones, one of SPREADS."""
    spreads: tuple[Spread, ...]
    """The price of each spread that the zones and pipelines allow, with the most pipelines that the
    run may have; empty if the step time is unknown."""
    rate: LossRate
    """The rate of losses for which the spreads are priced."""
    assignment: Assignment
    """Owner and shadow of every slot at the start; nodes are named after their zones."""
    shards: Shards
    """The parts of a checkpoint."""
    given_every: int | None
    """Steps between two checkpoints as the job says; None: the plan decides."""
    notes: tuple[str, ...] = ()
    """What the user should know before a launch, one sentence each."""

    @property
    def chosen(self) -> Spread | None:
        """The price of the spread that is taken."""
        return next((one for one in self.spreads if one.name == self.spread), None)

    @property
    def checkpoint_every(self) -> int:
        """Steps between two checkpoints; 0: none is written."""
        if self.given_every is not None:
            return self.given_every
        return 0 if self.chosen is None else self.chosen.checkpoint_every

    @property
    def transfer_usd_per_hour(self) -> float:
        """The price of bytes between zones, at the rate of calm steps, for the spread taken."""
        return 0.0 if self.chosen is None else self.chosen.transfer_usd_per_hour

    def samples_per_usd(self, usd_per_hour: float) -> float | None:
        """The value at a price of the whole fleet, with the grid that it fills; None without an
        expected step time."""
        if self.full is None:
            return None
        return samples_per_usd(self.full.samples_per_s, usd_per_hour)


def make_plan(
    facts: Sequence[LayerFacts],
    *,
    grid: Grid,
    mode: str,
    shape: BatchShape,
    timed: WorkloadFigures | None = None,
    instance_type: InstanceType,
    zone_spot_usd_per_hour: Mapping[str, float],
    cut: Sequence[int] = (),
    standbys: int = 0,
    max_pipelines: int = 0,
    stakes: Stakes,
    spread: str = "auto",
    rate: LossRate = PUBLISHED,
) -> Plan:
    """Plan a job on one instance type, with one node per instance.

    `cut` names the first layer of each stage; empty: balanced by flops. `shape` is the batch in
    virtual nodes; `timed` is the same layers with their times, None if unknown.
    `zone_spot_usd_per_hour` is per instance; `standbys` are instances beyond the grid of
    `max_pipelines` (0: of `grid`), paid like the others. `spread` is one of SPREADS, or `auto` for
    the cheapest. Raises InputError for more stages than layers, or an unfit cut or spread.
    """
    whole = whole_cut(facts, grid, cut)
    largest = Grid(pipelines=max(max_pipelines, grid.pipelines), stages=grid.stages)
    count = largest.size + standbys
    spot = {zone: usd_per_hour([usd] * count) for zone, usd in zone_spot_usd_per_hour.items()}
    shards = Shards(stage_bytes=())
    step = full = None
    spreads: tuple[Spread, ...] = ()
    if timed is not None:
        timed = replace(timed, cuts={**timed.cuts, grid.stages: whole})
        shards = replace(shards_of(timed, whole), put_usd=stakes.put_usd)
        full = expected(timed, largest, mode)
        step = full if largest == grid else expected(timed, grid, mode)
        spreads = price_spreads(
            layout_for(largest, shape=shape, mode=mode),
            _costs(timed, largest, mode),
            step_s=full.step_s,
            nodes=count,
            stakes=stakes,
            shards=shards,
            rate=rate,
        )
    name = _choose(spread, spreads)
    zones = nodes_by_zone(name, largest, stakes.zones_by_price(), nodes=count)
    assignment, zone_of = laid_out(name, zones or {"": count}, grid, mode)
    found = Plan(
        grid=grid,
        mode=mode,
        cut=whole,
        parameters=sum(layer.parameters for layer in facts),
        frozen_bytes=sum(layer.frozen_bytes for layer in facts),
        memory=_memory(facts, whole, grid, mode, shape=shape, timed=timed),
        instance_type=instance_type,
        instances=count,
        on_demand_usd_per_hour=usd_per_hour([instance_type.on_demand_usd_per_hour] * count),
        spot_usd_per_hour=spot,
        expected=step,
        largest=largest,
        full=full,
        spread=name,
        spreads=spreads,
        rate=rate,
        assignment=assignment,
        shards=shards,
        given_every=stakes.checkpoint_every,
    )
    return replace(found, notes=_notes(found, stakes, zones, zone_of, timed))


def _memory(
    facts: Sequence[LayerFacts],
    cut: tuple[int, ...],
    grid: Grid,
    mode: str,
    *,
    shape: BatchShape,
    timed: WorkloadFigures | None,
) -> tuple[StageBytes, ...]:
    """With the factors that go in place of gradients, where times and strategy are known."""
    held = () if timed is None else StepTimes(timed, mode).held_factors(grid)
    return memory_report(facts, cut=cut, grid=grid, shape=shape, mode=mode, factors=held)


def _costs(
    timed: WorkloadFigures, grid: Grid, mode: str
) -> Costs | Callable[[Assignment, Mapping[NodeId, str]], Costs]:
    """The costs of a step, or those where nodes lie in known zones, if it makes a difference."""
    if is_plain(timed):
        return costs_for(timed, grid, mode)
    return lambda assignment, zone_of: costs_for(
        in_zones(timed, zones_of(assignment, zone_of)), grid, mode
    )


def _evaluation_notes(plan: Plan, timed: WorkloadFigures | None) -> tuple[str, ...]:
    """What the evaluations take of the time."""
    grid, calm = plan.largest, plan.full
    if timed is None or calm is None or not timed.eval_every:
        return ()
    shares = equal_shares(timed.shape.virtual_nodes, grid.pipelines)
    each_s = evaluation_s(timed, timed.cut(grid.stages), grid, shares)
    share = each_s / timed.eval_every / calm.step_s
    after = "each step" if timed.eval_every == 1 else f"every {timed.eval_every} steps"
    return (
        f"An evaluation after {after} takes {duration(each_s)}, modelled: {share:.1%} of the time, "
        "which the step time counts.",
    )


def whole_cut(
    facts: Sequence[LayerFacts], grid: Grid, cut: Sequence[int], costs: Sequence[float] = ()
) -> tuple[int, ...]:
    """`cut` with the layer count; an empty one is balanced by `costs`, by default the flops. Raises
    InputError if it does not cut these layers into the stages of the grid."""
    if not cut:
        return partition(costs or [layer.cost for layer in facts], grid.stages)
    whole = (*cut, len(facts))
    grows = all(first < stop for first, stop in pairwise(whole))
    if len(cut) != grid.stages or cut[0] != 0 or not grows:
        raise InputError(
            f"cut {list(cut)} does not cut {len(facts)} layers into {grid.stages} stages; "
            "give the first layer of each stage, growing from 0, or leave it empty"
        )
    return whole


def _choose(spread: str, spreads: Sequence[Spread]) -> str:
    if spread == "auto":
        return cheapest(spreads).name if spreads else SPREADS[0]
    able = [one.name for one in spreads]
    if spread not in able and spreads:
        raise InputError(
            f"the spread {spread!r} is not possible here; take one of {', '.join(able)}"
        )
    return spread


def _notes(
    plan: Plan,
    stakes: Stakes,
    zones: Mapping[str, int],
    zone_of: Mapping[NodeId, str],
    timed: WorkloadFigures | None,
) -> tuple[str, ...]:
    """The notes for a plan; `zones` is empty if none has a price."""
    every = min(plan.checkpoint_every, stakes.steps)
    loss = single_loss(plan.assignment, plan.mode, checkpoint_every=every)
    return (
        *survival(
            plan.assignment, plan.mode, checkpoint_every=every, zones=zone_of if zones else None
        ),
        *_lone_notes(plan, stakes, every, loss, stakes.mean_usd_per_hour(zones)),
        *_memory_notes(plan.memory, plan.instance_type),
        *_replica_notes(plan.assignment),
        *_spare_notes(
            plan.largest.size - plan.grid.size,
            plan.instances - plan.largest.size,
            stakes.mean_usd_per_hour(zones),
            without=_until_replaced(plan.mode, loss, plan.grid),
        ),
        *_evaluation_notes(plan, timed),
    )


def _lone_notes(
    plan: Plan, stakes: Stakes, every: int, loss: Outcome, each: float
) -> tuple[str, ...]:
    """The cost of a loss for a run of one node, whose state nobody else holds."""
    if plan.largest.size > 1 or plan.expected is None or not stakes.preemptible:
        return ()
    lost_s = stakes.lost_s(plan.expected.step_s, every)
    costs = f"{duration(lost_s)} and {usd(lost_s * each / 3600)}"
    if loss is Outcome.ENDED:
        what = "half of the run, and the start of another one"
    else:
        what = "half of the work between two checkpoints, and the start of another node"
    return (f"A loss costs {costs} on average, modelled: {what}.",)


def _replica_notes(assignment: Assignment) -> tuple[str, ...]:
    """A ring of an odd number of stages over two zones has two neighbours in one zone; their
    replica goes to a node that already has one."""
    most = max(len(assignment.shadowed_by(node)) for node in assignment.owners)
    if most < 2:
        return ()
    return (
        f"Some nodes keep {most} replicas, more than the memory above counts, so that each lies in "
        "another zone than its stage: an even number of stages or a third zone avoids that.",
    )


def _until_replaced(mode: str, loss: Outcome, grid: Grid) -> str:
    """Which node does a lost node's work without a standby; "" if its loss ends the run."""
    if mode not in BARE_MODES:
        return "a lost node's neighbour does its work until a replacement has booted"
    if loss is Outcome.ENDED:
        return ""
    if grid.pipelines > 1:
        return "the run goes on with a pipeline less until a replacement has booted"
    return "all wait until a replacement has booted, or cluster.patience_s is over"


def _spare_notes(growing: int, standbys: int, each: float, *, without: str) -> tuple[str, ...]:
    """The purpose and the cost of the nodes beyond the first grid."""
    notes = []
    if growing:
        notes.append(
            f"{growing} of the nodes are for the pipelines beyond those of the start, at "
            f"${each * growing:.4f}/h: the run grows as soon as they have joined."
        )
    waits = "1 standby waits" if standbys == 1 else f"{standbys} standbys wait"
    price = f"at ${each * standbys:.4f}/h"
    if standbys and without:
        notes.append(f"{waits} for a lost slot, {price}; without, {without}.")
    elif standbys:
        notes.append(
            f"{waits} for the stage of a node with a notice, {price}; a loss without one ends the "
            "run all the same."
        )
    elif without:
        notes.append(f"No standby: {without}.")
    return tuple(notes)


def _memory_notes(memory: Sequence[StageBytes], kind: InstanceType) -> tuple[str, ...]:
    notes = [
        f"Stage {stage.stage} needs {size(stage.total, digits=2)} and one {kind.gpu} has "
        f"{kind.gpu_memory_text}: it will not fit; take more stages, smaller microbatches or "
        "less redundancy."
        for stage in memory
        if stage.total > kind.gpu_memory_bytes
    ]
    return (*notes, *filter(None, [kind.idle_gpus]))
