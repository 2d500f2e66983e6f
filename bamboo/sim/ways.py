"""The ways to use a market that a simulation compares: their names, their costs, and the system
that plays each of them in a world.

Rule: only this file tells our way apart from the others.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from bamboo.errors import InputError
from bamboo.ids import ZoneId
from bamboo.planner.plans.losses import shards_of
from bamboo.planner.prices.auxiliary import store_usd_per_hour
from bamboo.planner.risks.checkpoint_cost import REQUESTS, Shards
from bamboo.planner.risks.checkpoint_interval import best_interval_steps
from bamboo.planner.risks.zones import nodes_by_zone
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.asked import Asked
from bamboo.sim.free_nodes import Renting
from bamboo.sim.market.trace import Trace, TraceEvent
from bamboo.sim.market.trace_stats import HOUR_S, stats
from bamboo.sim.other_ways.published import PaperRules, PaperTerms
from bamboo.sim.other_ways.rerouting import RerouteTerms, Rerouting
from bamboo.sim.other_ways.rivals import CheckpointRestart, Oracle, RestartTerms
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

RESTART_S = {
    CHECKPOINT_RESTART: RestartTerms().restart_s,
    REROUTING: RerouteTerms().pause_s,
    PAPER: PaperTerms().start_s,
}
"""Seconds that a way loses when it has to start again, without boot and load: a restart of all
processes; a change (a node without a peer restarts as in the first way); a start of the paper's."""
SHORT = {"checkpoint-restart": CHECKPOINT_RESTART, "rerouting": REROUTING, "paper": PAPER}
"""The names of the same ways on the command line."""


def terms_of_rivals(given: Mapping[str, float], *, every: int) -> dict[str, str]:
    """The costs of each of the other ways, in words, with their source. `given`: as
    `Asked.restart_s`; `every`: steps between checkpoints of all ways; 0: each has its own best
    interval."""
    seconds = {name: f"{given.get(name, RESTART_S[name]):g} s" for name in RESTART_S}
    sources = {
        CHECKPOINT_RESTART: "torchrun elastic, a node killed, as measured on one machine; 76 to "
        "701 s are published for Varuna",
        REROUTING: "of the 2 to 10 s published for Oobleck",
        PAPER: "Bamboo, NSDI 2023",
    }
    said = {n: "as asked" if n in given else source for n, source in sources.items()}
    own = f"every {every} steps, as ours" if every else "at its best interval (Daly, 2006)"
    paper = PaperTerms()
    return {
        ON_DEMAND: "the nodes of the largest grid in one zone, which nobody takes",
        CHECKPOINT_RESTART: f"{seconds[CHECKPOINT_RESTART]} a restart of all processes "
        f"({said[CHECKPOINT_RESTART]}), and the load; a checkpoint {own}, written behind the "
        "training",
        REROUTING: f"{seconds[REROUTING]} a change ({said[REROUTING]}); "
        f"{seconds[CHECKPOINT_RESTART]} and the load where a stage has nobody left, or for a "
        "further pipeline",
        PAPER: f"redundancy that always runs, {seconds[PAPER]} a start ({said[PAPER]}), "
        f"{paper.reconfiguration_s:g} s a reconfiguration, steps x{paper.slow:g} from a loss, "
        "also of a node that waited, to the next one",
        ORACLE: "no change costs anything: always the best grid for the same nodes",
    }


def between_losses_s(trace: Trace, nodes: int) -> float:
    """Mean seconds between two instants that take some of `nodes` nodes of a market; inf: none
    does. A job is equally likely to have any of the nodes."""
    if not trace.preemptions:
        return math.inf
    known = stats(trace)
    if not known.node_hours:
        return math.inf
    share = min(1.0, nodes / known.mean_nodes)
    hit: float = 1.0 - (1.0 - share) ** known.bulk_mean
    return HOUR_S / (known.preemptions_per_node_hour * known.mean_nodes / known.bulk_mean * hit)


def restart_terms(asked: Asked, trace: Trace) -> RestartTerms:
    """The terms of checkpoint and restart in a market: the job's interval, or its best one."""
    policy, shards = asked.policy, _shards(asked)
    write_s = shards.written_s
    nodes = policy.pipelines * policy.stages
    between_s = between_losses_s(trace, nodes)
    step_s = policy.step_s(policy.pipelines, policy.stages)
    every = asked.given_every
    if not every and step_s is not None and not math.isinf(between_s):
        # A checkpoint is written behind the training and delays nothing; its requests are paid.
        zones = {ZoneId(event.zone) for event in trace.events}
        least = min(asked.prices.mean_usd_per_hour(zone, 0.0, 0.0) for zone in zones)
        price = least * nodes / HOUR_S
        cost_s = shards.usd / price if price else 0.0
        best = best_interval_steps(cost_s=cost_s, between_losses_s=between_s, step_s=step_s)
        every = max(best, math.ceil(write_s / step_s))
    return RestartTerms(
        restart_s=asked.restart_s.get(CHECKPOINT_RESTART, RESTART_S[CHECKPOINT_RESTART]),
        load_s=asked.pauses.restore_s + write_s,
        checkpoint_every=every,
        write_s=write_s,
        between_losses_s=between_s,
    )


def _shards(asked: Asked) -> Shards:
    put = asked.store.get("put")
    cut = asked.policy.cut_for(asked.policy.stages)
    return replace(
        shards_of(asked.workload, cut), put_usd=put.usd / REQUESTS if put is not None else 0.0
    )


def every_of(system: str, asked: Asked, trace: Trace) -> int:
    """Steps between the checkpoints that a way writes; 0: it writes none."""
    if system == OURS:
        return asked.policy.checkpoint_every
    if system in (CHECKPOINT_RESTART, REROUTING):
        return restart_terms(asked, trace).checkpoint_every
    return 0


def store_usd(asked: Asked, *, every: int, steps: float, seconds: float) -> float:
    """Price of a run's checkpoints in the object store: those that are kept, and the requests.
    `steps`: all steps taken, including repeated ones."""
    if not every or steps < 1:
        return 0.0
    rate = store_usd_per_hour(
        asked.store,
        step_s=seconds / steps,
        checkpoint_bytes=_shards(asked).stage_bytes,
        every_steps=every,
        keep=asked.keep,
    )
    return rate * seconds / HOUR_S


def rival(name: str, asked: Asked, world: World, *, bare: StepTimes, ahead: StepTimes) -> System:
    """The system for a way that is not ours. `bare`: step times without redundancy; `ahead`: with
    redundancy that always runs. Raises InputError for an unknown name."""
    policy, standbys = asked.policy, asked.standbys
    if name in (ORACLE, ON_DEMAND):
        frugal = name == ORACLE and not math.isinf(asked.surplus_s)
        spare = standbys if name == ORACLE else 0
        return Oracle(world, bare, policy, standbys=spare, frugal=frugal)
    if name == CHECKPOINT_RESTART:
        terms = restart_terms(asked, world.trace)
        return CheckpointRestart(world, bare, policy, standbys=standbys, terms=terms)
    if name == REROUTING:
        restart = restart_terms(asked, world.trace)
        reroute = RerouteTerms(
            pause_s=asked.restart_s.get(REROUTING, RESTART_S[REROUTING]),
            restart_s=restart.restart_s + restart.load_s,
            checkpoint_every=restart.checkpoint_every,
        )
        work = asked.workload
        return Rerouting(world, bare, policy, standbys=standbys, work=work, terms=reroute)
    if name == PAPER:
        # A pipeline of one stage has no neighbour that could compute for it.
        return _by_paper(asked, world, ahead if policy.stages > 1 else bare)
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
        terms=PaperTerms(start_s=asked.restart_s.get(PAPER, RESTART_S[PAPER])),
    )


def always_there(asked: Asked) -> Trace:
    """A market without losses: the nodes of the largest grid, in one zone."""
    count = asked.policy.pipelines * asked.policy.stages
    return Trace(
        source="on-demand",
        events=tuple(TraceEvent(at_s=0.0, node=f"node{n}", comes=True) for n in range(count)),
        length_s=asked.horizon_s,
    )


def renting(system: str, asked: Asked, trace: Trace) -> Renting:
    """What a way looks for in the market. Ours places its nodes as the plan spreads them, as far as
    the zones of the market allow. The others gain nothing by a spread, and take the cheapest zone
    that has nodes."""

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
