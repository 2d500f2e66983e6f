"""The ways to use a market that a simulation compares: their names, what each is charged with, and
who plays each of them in a world.

Rule: ours is told apart from the others here and nowhere else.
"""

import math

from bamboo.errors import InputError
from bamboo.ids import ZoneId
from bamboo.planner.step_time import StepTimes
from bamboo.planner.zones import nodes_by_zone
from bamboo.sim.asked import Asked
from bamboo.sim.free_nodes import Renting
from bamboo.sim.published import PaperRules, PaperTerms
from bamboo.sim.rivals import CheckpointRestart, Oracle, RerouteTerms, Rerouting, RestartTerms
from bamboo.sim.trace import Trace, TraceEvent
from bamboo.sim.world import System, World
from bamboo.topology.assignment import Assignment
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares

OURS = "bamboo"
ORACLE = "no pauses at all"
ON_DEMAND = "on-demand"
CHECKPOINT_RESTART = "checkpoint and restart"
REROUTING = "rerouting to peers"
PAPER = "the paper's rules"
SYSTEMS = (OURS, ON_DEMAND, CHECKPOINT_RESTART, REROUTING, PAPER, ORACLE)


def terms_of_rivals() -> dict[str, str]:
    """What each of the other ways is charged with, in words, and where that is from."""
    restart, reroute, paper = RestartTerms(), RerouteTerms(), PaperTerms()
    return {
        ON_DEMAND: "the nodes of the largest grid in one zone, which nobody takes",
        CHECKPOINT_RESTART: f"{restart.restart_s:g} s a restart (geometric middle of the 76 to "
        f"701 s published for Varuna), a checkpoint every {restart.checkpoint_every} steps for "
        "nothing",
        REROUTING: f"{reroute.pause_s:g} s a change (of the 2 to 10 s published for Oobleck); "
        f"{reroute.restart_s:g} s where a stage has nobody left, or for a further pipeline",
        PAPER: f"redundancy that always runs, {paper.start_s:g} s a start, "
        f"{paper.reconfiguration_s:g} s a reconfiguration, steps x{paper.slow:g} from a loss, "
        "also of a node that waited, to the next one (Bamboo, NSDI 2023)",
        ORACLE: "no change costs anything: always the best grid for the same nodes",
    }


def rival(name: str, asked: Asked, world: World, *, bare: StepTimes, ahead: StepTimes) -> System:
    """Whoever plays a way that is not ours. `bare`: step times without redundancy; `ahead`: with
    one that always runs. Raises InputError for a name that is none."""
    policy, standbys = asked.policy, asked.standbys
    if name in (ORACLE, ON_DEMAND):
        frugal = name == ORACLE and not math.isinf(asked.surplus_s)
        spare = standbys if name == ORACLE else 0
        return Oracle(world, bare, policy, standbys=spare, frugal=frugal)
    if name == CHECKPOINT_RESTART:
        return CheckpointRestart(world, bare, policy, standbys=standbys)
    if name == REROUTING:
        return Rerouting(world, bare, policy, standbys=standbys, work=asked.workload)
    if name == PAPER:
        return _by_paper(asked, world, ahead)
    raise InputError(f"{name!r} is no system to simulate; take one of {', '.join(SYSTEMS)}")


def _by_paper(asked: Asked, world: World, times: StepTimes) -> System:
    """Pipelines of a fixed length, redundancy that always runs, and the published pauses."""
    stages, leaves = asked.policy.stages, asked.workload.shape.virtual_nodes

    def step_s(pipelines: int) -> float:
        grid = Grid(pipelines=pipelines, stages=stages)
        return times.calm_s(grid, equal_shares(leaves, pipelines))

    def crossing_bytes(rules: PaperRules) -> float:
        owner = {place: node for node, held in rules.places.items() for place in held}
        grid = Grid(pipelines=rules.pipelines, stages=stages)
        owners = tuple(owner[slot.pipeline, slot.stage] for slot in grid.slots())
        shadows = tuple(owners[grid.before(number)] for number in range(grid.size))
        assignment = Assignment(grid=grid, owners=owners, shadows=shadows)
        return times.crossing_bytes(assignment, equal_shares(leaves, grid.pipelines), rules.zones)

    return PaperRules.in_world(
        world,
        stages=stages,
        pipelines=min(asked.policy.pipelines, leaves),
        step_s=step_s,
        standbys=asked.standbys,
        crossing_bytes=crossing_bytes,
    )


def always_there(asked: Asked) -> Trace:
    """A market that takes nothing back: the nodes of the largest grid, in one zone."""
    count = asked.policy.pipelines * asked.policy.stages
    return Trace(
        source="on-demand",
        events=tuple(TraceEvent(at_s=0.0, node=f"node{n}", comes=True) for n in range(count)),
        length_s=asked.horizon_s,
    )


def renting(system: str, asked: Asked, trace: Trace) -> Renting:
    """What a way looks for in the market: ours has its nodes lie as the plan spreads them, as far
    as the zones of the market allow; the others gain nothing by a spread, and take the cheapest
    zone that has nodes."""

    def usd_per_hour(zone: ZoneId, at_s: float) -> float:
        return asked.prices.mean_usd_per_hour(zone, at_s, at_s)

    if system != OURS:
        return Renting(usd_per_hour=usd_per_hour)
    policy = asked.policy
    zones = {ZoneId(event.zone) for event in trace.events if event.comes}
    order = sorted(zones, key=lambda zone: (usd_per_hour(zone, 0.0), zone))
    grid = Grid(pipelines=policy.pipelines, stages=policy.stages)
    wanted = nodes_by_zone(policy.spread, grid, order, nodes=grid.size + asked.standbys)
    return Renting(
        usd_per_hour=usd_per_hour,
        zones={ZoneId(zone): count for zone, count in wanted.items()},
    )
