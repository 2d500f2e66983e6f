"""The price per hour of each way to spread the nodes over zones: instances, bytes between zones,
and the losses that no live copy survives.

Rule: slots and replicas are where `bamboo.core` puts them for the nodes of a spread. Losses are
modelled after one trace and are never a promise.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import comb

from bamboo.core.layout import assign
from bamboo.core.state import Node, NodeStatus
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.planner.risks.checkpoint_cost import Shards, is_long, steps_between
from bamboo.planner.risks.hazards import PUBLISHED, LossRate
from bamboo.planner.risks.survival import Copies, copies_of_stages
from bamboo.planner.step.layout import Costs, Layout, at_stage, exchanged_bytes
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.keys import keyed_seed
from bamboo.topology.strategy import SPREADS

USD_PER_GB = 0.02
"""Price of a GB (10^9 bytes) between zones of a region: $0.01 out and $0.01 in (AWS)."""
LOSSES_AT_ONCE = ((1, 39), (2, 13), (3, 15), (4, 7), (5, 1), (6, 4))
"""How many nodes an instant of preemption took, and how often, in the p3 trace published with
Bamboo (Thorpe et al., NSDI 2023): 167 losses at 79 instants. All victims of an instant are assumed
to be in one zone, as in 121 of 128 instants on EC2."""
RESTART_S = 75.0
"""After a loss without a live copy: 45 s until there are instances, 30 s until they train, as in
the simulator published with Bamboo."""
REPLACE_S = 105.0
"""Time until a lost node is replaced without a standby: a minute until the market has another one
and 45 s for its boot, the default of simulated markets."""
ENUMERATED = 20_000
"""Up to this many sets of victims are enumerated; beyond it, a fixed sample of SAMPLED is used."""
SAMPLED = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """What the price of a spread depends on apart from the layout."""

    zone_usd_per_hour: Mapping[str, float]
    """Price of one instance, on the market of the job."""
    preemptible: bool
    steps: int
    checkpoint_every: int | None = 0
    """0: there are none, and a loss without a live copy costs all finished work; None: each plan
    has its best interval."""
    put_usd: float = 0.0
    """Price of a request that writes to the checkpoints; 0: they go to a directory."""

    def zones_by_price(self) -> list[str]:
        """Cheapest first."""
        return sorted(self.zone_usd_per_hour, key=lambda z: (self.zone_usd_per_hour[z], z))

    def mean_usd_per_hour(self, zones: Mapping[str, int]) -> float:
        """The mean price of nodes, given their number in each zone; 0 without any."""
        price = sum(count * self.zone_usd_per_hour[zone] for zone, count in zones.items())
        return price / max(sum(zones.values()), 1)

    def interval(
        self, shards: Shards, *, step_s: float, fatal_per_hour: float, usd_per_hour: float
    ) -> int:
        """Steps between two checkpoints of a plan; 0: there are none."""
        if self.checkpoint_every is not None:
            return self.checkpoint_every
        return steps_between(
            replace(shards, put_usd=self.put_usd),
            step_s=step_s,
            steps=self.steps,
            fatal_per_hour=fatal_per_hour,
            usd_per_hour=usd_per_hour,
        )

    def may_restore(self, run_s: float) -> bool:
        """Whether a run of at least `run_s` seconds has checkpoints to go back to."""
        return is_long(run_s) if self.checkpoint_every is None else self.checkpoint_every > 0

    def lost_s(self, step_s: float, every: int) -> float:
        """The mean cost of a fatal loss: half of the work between two checkpoints (`every` steps),
        or half of the run, and the restart."""
        between = min(every or self.steps, self.steps)
        return between / 2 * step_s + RESTART_S

    def least_lost_s(self, step_s: float) -> float:
        """A lower bound of the loss of any plan with such steps."""
        if self.checkpoint_every is None:
            return RESTART_S
        return self.lost_s(step_s, self.checkpoint_every)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One way to spread the nodes over zones, and its expected price."""

    name: str
    zones: Mapping[str, int]
    """Zone -> nodes, standbys included."""
    instances_usd_per_hour: float
    crossing_bytes: float
    """Bytes between zones, per step."""
    transfer_usd_per_hour: float
    fatal_per_hour: float
    """Expected, modelled losses that leave a stage without a live copy."""
    fatal_usd_per_hour: float
    checkpoint_every: int
    """Steps between two checkpoints in this spread; 0: there are none."""

    @property
    def total_usd_per_hour(self) -> float:
        return self.instances_usd_per_hour + self.transfer_usd_per_hour + self.fatal_usd_per_hour


def price_spreads(
    layout: Layout,
    costs: Costs | Callable[[Assignment, Mapping[NodeId, str]], Costs],
    *,
    step_s: float,
    nodes: int,
    stakes: Stakes,
    shards: Shards,
    rate: LossRate = PUBLISHED,
) -> tuple[Spread, ...]:
    """Every spread that the zones and pipelines allow, in the order of SPREADS. `nodes` counts the
    grid and the standbys; `shards` are those of a checkpoint. `costs` may depend on the zones of
    the nodes."""
    grid = layout.assignment.grid
    order = stakes.zones_by_price()
    microbatches = [row[0].microbatches for row in layout.programs]
    found = []
    for name in SPREADS:
        zones = nodes_by_zone(name, grid, order, nodes=nodes)
        if not zones:
            continue
        assignment, zone_of = laid_out(name, zones, grid, layout.mode)
        here = costs if isinstance(costs, Costs) else costs(assignment, zone_of)
        crossing = crossing_bytes(assignment, zone_of, here, microbatches=microbatches)
        fatal = 0.0
        if stakes.preemptible:
            fatal = fatal_per_hour(assignment, zone_of, layout.mode, rate)
        price = sum(count * stakes.zone_usd_per_hour[zone] for zone, count in zones.items())
        every = stakes.interval(shards, step_s=step_s, fatal_per_hour=fatal, usd_per_hour=price)
        found.append(
            Spread(
                name=name,
                zones=zones,
                instances_usd_per_hour=price,
                crossing_bytes=crossing,
                transfer_usd_per_hour=crossing / 1e9 * USD_PER_GB * 3600 / step_s,
                fatal_per_hour=fatal,
                fatal_usd_per_hour=fatal * price * stakes.lost_s(step_s, every) / 3600,
                checkpoint_every=every,
            )
        )
    return tuple(found)


def cheapest(spreads: Sequence[Spread]) -> Spread:
    """The spread with the least expected price; among equal ones the first, which moves less."""
    return min(spreads, key=lambda spread: round(spread.total_usd_per_hour, 9))


def nodes_by_zone(name: str, grid: Grid, zones: Sequence[str], *, nodes: int) -> dict[str, int]:
    """The number of nodes in each zone, with `zones` cheapest first; empty if a spread needs more
    zones, pipelines or stages than there are. Neighbours need two zones, and an odd ring needs a
    third one to keep all neighbours apart. Standbys are dealt over the used zones in turn."""
    if name == "one":
        return {zones[0]: nodes} if zones else {}
    if len(zones) < 2 or (grid.pipelines if name == "pipelines" else grid.stages) < 2:
        return {}
    counts: Counter[str] = Counter()
    if name == "pipelines":
        for pipeline in range(grid.pipelines):
            counts[zones[pipeline % len(zones)]] += grid.stages
    else:
        third = 2 if grid.stages % 2 and len(zones) > 2 else 0
        ring = [stage % 2 for stage in range(grid.stages)]
        if grid.stages % 2:
            ring[-1] = third
        for place in ring:
            counts[zones[place]] += grid.pipelines
    used = list(counts)
    for standby in range(nodes - grid.size):
        counts[used[standby % len(used)]] += 1
    return dict(counts)


def laid_out(
    name: str, zones: Mapping[str, int], grid: Grid, mode: str
) -> tuple[Assignment, dict[NodeId, str]]:
    """The assignment that the core makes on these nodes of each zone, and the zone of each node,
    standbys included."""
    nodes = [
        Node(
            id=NodeId(f"{zone}/{number:04}"),
            instance=InstanceId(f"{zone}/{number:04}"),
            zone=ZoneId(zone),
            endpoint="",
            pid=0,
            status=NodeStatus.READY,
        )
        for zone, count in zones.items()
        for number in range(count)
    ]
    apart = name == ("neighbours" if grid.stages > 1 else "pipelines")
    assignment = assign(nodes, grid, mode, apart=apart)
    return assignment, {node.id: node.zone for node in nodes}


def crossing_bytes(
    assignment: Assignment,
    zone_of: Mapping[NodeId, str],
    costs: Costs,
    *,
    microbatches: Sequence[int],
) -> float:
    """Bytes of a step between nodes of different zones: boundary tensors forward and their
    gradients back, reduced gradients in transit to shadows, and the exchange between pipelines.
    `microbatches`: the number for each pipeline.
    """
    grid = assignment.grid
    total = 0.0
    for slot in grid.slots():
        owner, shadow = assignment.owner(slot), assignment.shadow(slot)
        here, stage = zone_of[owner], slot.stage
        if stage < grid.stages - 1 and zone_of[assignment.owner(grid.protected(slot))] != here:
            both = at_stage(costs.boundary_bytes, stage) + at_stage(costs.back_bytes, stage)
            total += microbatches[slot.pipeline] * both
        if shadow is not None and zone_of[shadow] != here:
            total += at_stage(costs.gradient_bytes, stage)
        total += sum(
            exchanged_bytes(costs, stage, slot.pipeline, peer.pipeline)
            for peer in grid.column(stage)
            if peer != slot and zone_of[assignment.owner(peer)] != here
        )
    return total


def fatal_per_hour(
    assignment: Assignment,
    zone_of: Mapping[NodeId, str],
    mode: str,
    rate: LossRate = PUBLISHED,
) -> float:
    """Expected losses per hour that leave a stage without a live copy, by the hazard of each zone
    and the trace's numbers of victims, limited to the nodes of one zone."""
    groups = copies_of_stages(assignment, mode)
    draws = sum(often for _, often in LOSSES_AT_ONCE)
    total = 0.0
    for zone in sorted(set(zone_of.values())):
        members = sorted(node for node, where in zone_of.items() if where == zone)
        taken = [(min(count, len(members)), often / draws) for count, often in LOSSES_AT_ONCE]
        # In a small zone an instant takes fewer nodes; the hazard stays, so there are more of them.
        instants = rate.of(zone) * len(members) / sum(n * share for n, share in taken)
        shares = {n: fatal_share(groups, members, n) for n in {n for n, _ in taken}}
        total += instants * sum(shares[n] * share for n, share in taken)
    return total


def fatal_share(groups: Copies, members: Sequence[NodeId], victims: int) -> float:
    """The share of all sets of `victims` nodes of a zone that takes the whole of some group: exact
    up to ENUMERATED sets, otherwise over a fixed sample."""
    bit = {node: 1 << place for place, node in enumerate(members)}
    masks = {sum(bit[node] for node in group) for group in groups if group <= bit.keys()}
    few = frozenset(mask for mask in masks if mask.bit_count() <= victims)
    if not few:
        return 0.0
    sampled = comb(len(members), victims) > ENUMERATED
    return _fatal_share(few, len(members), victims, sampled=sampled)


@lru_cache(maxsize=4096)
def _fatal_share(masks: frozenset[int], members: int, victims: int, *, sampled: bool) -> float:
    """The share for groups as bit masks of the members. It is the same for every price and mode."""
    least = [mask for mask in masks if not any(one != mask and one & ~mask == 0 for one in masks)]
    if sampled:
        return _share(_sample(members, victims), SAMPLED, least)
    bits = [1 << place for place in range(members)]
    return _share(
        (sum(chosen) for chosen in combinations(bits, victims)), comb(members, victims), least
    )


def _share(drawn: Iterable[int], sets: int, masks: Sequence[int]) -> float:
    return sum(any(mask & ~lost == 0 for mask in masks) for lost in drawn) / sets


@lru_cache(maxsize=256)
def _sample(members: int, victims: int) -> tuple[int, ...]:
    """Sets of members as bit masks, the same for the same arguments (Floyd's sampling, with numbers
    from the generator of Knuth's MMIX)."""
    number = keyed_seed(0, "losses", members, victims)
    sample = []
    for _ in range(SAMPLED):
        lost = 0
        for last in range(members - victims, members):
            number = (6364136223846793005 * number + 1442695040888963407) % 2**64
            one = 1 << ((number >> 33) % (last + 1))
            lost |= 1 << last if lost & one else one
        sample.append(lost)
    return tuple(sample)
