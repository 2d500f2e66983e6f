"""The plan of a job before anything is started: cut, bytes, price, step time, what it survives.

Rule: plain arguments in, one frozen value out; every figure says what it was made from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from bamboo.errors import InputError
from bamboo.ids import NodeId
from bamboo.planner.catalogue import InstanceType
from bamboo.planner.cost import Expected, Timing, costs_for, expected, layout_for
from bamboo.planner.memory import StageBytes, memory_report
from bamboo.planner.partition import partition
from bamboo.planner.profile import LayerFacts
from bamboo.planner.value import samples_per_usd, usd_per_hour
from bamboo.schedule.layout import Layout
from bamboo.topology.grid import Grid
from bamboo.topology.virtual_nodes import BatchShape

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything `bamboo launch --dry-run` and `bamboo cost` say about a job."""

    grid: Grid
    mode: str
    cut: tuple[int, ...]
    """First layer of each stage, then the layer count."""
    parameters: int
    """Scalars of the whole model, each copy of a tied one counted."""
    memory: tuple[StageBytes, ...]
    instance_type: InstanceType
    instances: int
    on_demand_usd_per_hour: float
    spot_usd_per_hour: Mapping[str, float]
    """Zone -> all instances in that zone; empty where no spot price is known."""
    expected: Expected | None
    """None: nobody has measured or given how long a microbatch takes."""
    notes: tuple[str, ...]
    """What the user should know before he starts, as sentences."""

    def samples_per_usd(self, usd_per_hour: float) -> float | None:
        """The value at a price of the whole fleet; None without an expected step time."""
        if self.expected is None:
            return None
        return samples_per_usd(self.expected.samples_per_s, usd_per_hour)


def make_plan(
    facts: Sequence[LayerFacts],
    *,
    grid: Grid,
    mode: str,
    shape: BatchShape,
    batch: int,
    instance_type: InstanceType,
    zone_spot_usd_per_hour: Mapping[str, float],
    cut: Sequence[int] = (),
    timing: Timing | None = None,
    standbys: int = 0,
) -> Plan:
    """Plan a job on one instance type, one node an instance.

    `cut` names the first layer of each stage; empty: balanced by flops. `shape` is the batch in
    virtual nodes, `batch` its samples. `zone_spot_usd_per_hour` is per instance; `standbys` are
    instances beyond the grid, paid like the others.
    Raises InputError when there are more stages than layers, or the cut does not fit.
    """
    whole_cut = _whole_cut(facts, grid, cut)
    memory = memory_report(facts, cut=whole_cut, grid=grid, shape=shape, mode=mode)
    layout = layout_for(grid, shape=shape, mode=mode)
    step = None
    if timing is not None:
        costs = costs_for(facts, cut=whole_cut, grid=grid, shape=shape, timing=timing)
        step = expected(layout, costs, batch=batch, source=timing.source)
    notes = (
        *survival(layout),
        *_zone_notes(grid, zone_spot_usd_per_hour),
        *_memory_notes(memory, instance_type),
        *_standby_notes(standbys, zone_spot_usd_per_hour, instance_type),
    )
    count = grid.size + standbys
    return Plan(
        grid=grid,
        mode=mode,
        cut=whole_cut,
        parameters=sum(layer.parameters for layer in facts),
        memory=memory,
        instance_type=instance_type,
        instances=count,
        on_demand_usd_per_hour=usd_per_hour([instance_type.on_demand_usd_per_hour] * count),
        spot_usd_per_hour={
            zone: usd_per_hour([price] * count) for zone, price in zone_spot_usd_per_hour.items()
        },
        expected=step,
        notes=notes,
    )


def _whole_cut(facts: Sequence[LayerFacts], grid: Grid, cut: Sequence[int]) -> tuple[int, ...]:
    if not cut:
        return partition([layer.cost for layer in facts], grid.stages)
    whole = (*cut, len(facts))
    grows = all(first < stop for first, stop in pairwise(whole))
    if len(cut) != grid.stages or cut[0] != 0 or not grows:
        raise InputError(
            f"cut {list(cut)} does not cut {len(facts)} layers into {grid.stages} stages; "
            "give the first layer of each stage, growing from 0, or leave it empty"
        )
    return whole


def survival(layout: Layout) -> tuple[str, ...]:
    """Which losses a run survives, counted over all single losses and all pairs, in words."""
    nodes = sorted(set(layout.assignment.owners))
    single = [node for node in nodes if survives(layout, (node,))]
    if not single:
        return (
            f"No loss is survived: redundancy {layout.mode!r} keeps no replica, so the loss of "
            "any node ends the run.",
        )
    pairs = list(combinations(nodes, 2))
    good = sum(survives(layout, pair) for pair in pairs)
    return (
        f"The loss of any one of the {len(single)} nodes is survived: the node before it in its "
        "pipeline takes the stage over, inside the step.",
        f"Of the {len(pairs)} pairs of nodes, {good} can be lost together; a node and the one "
        "that shadows it cannot.",
    )


def survives(layout: Layout, victims: Sequence[NodeId]) -> bool:
    """Whether every slot keeps a live copy when all `victims` are lost at the same time."""
    lost = set(victims)
    for slot in layout.assignment.grid.slots():
        copies = {layout.assignment.owner(slot), layout.assignment.shadow(slot)} - {None}
        if copies <= lost:
            return False
    return True


def _zone_notes(grid: Grid, zones: Mapping[str, float]) -> tuple[str, ...]:
    if grid.pipelines > 1 and len(zones) > 1:
        return ()
    where = f"zone {next(iter(zones))}" if len(zones) == 1 else "one zone"
    return (
        f"A pipeline stays within {where}; most bulk preemptions take several nodes of one zone "
        "at once, and such a loss may leave a stage without a live copy.",
    )


def _standby_notes(
    standbys: int, zones: Mapping[str, float], kind: InstanceType
) -> tuple[str, ...]:
    if standbys == 0:
        return (
            "No standby: a lost node's neighbour does its work until a replacement has booted.",
        )
    price = min(zones.values(), default=kind.on_demand_usd_per_hour) * standbys
    waits = "1 standby waits" if standbys == 1 else f"{standbys} standbys wait"
    return (
        f"{waits} for a lost slot, at ${price:.4f}/h; without, a lost node's neighbour does its "
        "work until a replacement has booted.",
    )


def _memory_notes(memory: Sequence[StageBytes], kind: InstanceType) -> tuple[str, ...]:
    notes = [
        f"Stage {stage.stage} needs {stage.total / GIB:.2f} GiB and a {kind.gpu} has "
        f"{kind.gpu_memory_gib:g} GiB: it will not fit; take more stages, smaller microbatches or "
        "less redundancy."
        for stage in memory
        if stage.total > kind.gpu_memory_bytes
    ]
    if kind.gpus > 1:
        notes.append(
            f"A {kind.name} has {kind.gpus} GPUs and a node uses one of them: the others are paid "
            "and idle."
        )
    return tuple(notes)
