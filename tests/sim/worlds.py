"""Small worlds for tests: a trace in a few words, a model of equal layers, the policy of a job."""

import math

from bamboo.core.state import GridTime, Policy
from bamboo.planner.profiles.workload import WorkloadFigures, uniform_workload
from bamboo.planner.step.step_time import StepTimes
from bamboo.sim.asked import Asked
from bamboo.sim.market.prices import constant
from bamboo.sim.market.trace import Trace, TraceEvent
from bamboo.sim.members import Pauses
from bamboo.sim.world import Terms
from bamboo.topology.grid import Grid
from bamboo.topology.model_layout import equal_shares
from bamboo.topology.virtual_nodes import BatchShape

LAYERS = 8
STATE_BYTES_PER_S = 12_000_000.0


def trace(*lines: str, length_s: float = 3600.0) -> Trace:
    """`0 +a b c` and `60 -b`: nodes that come and go at a second."""
    events = []
    for line in lines:
        time, first, *rest = line.split()
        for name in (first[1:], *rest):
            events.append(TraceEvent(at_s=float(time), node=name, comes=first[0] == "+"))
    return Trace(source="test", events=tuple(events), length_s=length_s)


def workload() -> WorkloadFigures:
    """8 layers of 0.1 s each, 12 MB of state a layer; with 4 stages a stage sends 24 MB in 2 s."""
    return uniform_workload(
        name="test",
        source="given",
        layers=LAYERS,
        forward_s=0.03,
        backward_s=0.07,
        parameters=1_000_000,
        moment_bytes=8_000_000,
        output_bytes=1000,
        shape=BatchShape(virtual_nodes=4, microbatches=2),
        batch=16,
        state_bytes_per_s=STATE_BYTES_PER_S,
        store_bytes_per_s=STATE_BYTES_PER_S,
    )


def asked(
    *,
    pipelines: int = 1,
    max_pipelines: int = 0,
    stages: int = 4,
    redundancy: str = "stash",
    standbys: int = 0,
    every: int = 0,
    grids: bool = True,
    horizon_s: float = 3600.0,
    last_step: float = math.inf,
    patience_s: float = 30.0,
    park_s: float = 1800.0,
    surplus_s: float = math.inf,
    terms: Terms | None = None,
) -> Asked:
    """A job on a market of one-dollar instances."""
    work = workload()
    times = StepTimes(work, redundancy)
    most = max(pipelines, max_pipelines)
    table = tuple(
        GridTime(
            pipelines=d,
            stages=p,
            step_s=times.calm_s(Grid(pipelines=d, stages=p), equal_shares(4, d)),
        )
        for d in range(1, most + 1)
        for p in range(min(2, stages), stages + 1)
    )
    return Asked(
        workload=work,
        policy=Policy(
            cuts=tuple(work.cut(p) for p in range(min(2, stages), stages + 1)),
            virtual_nodes=4,
            pipelines=most,
            stages=stages,
            checkpoint_every=every,
            grids=table if grids else (),
        ),
        grid=Grid(pipelines=pipelines, stages=stages),
        redundancy=redundancy,
        standbys=standbys,
        patience_s=patience_s,
        park_s=park_s,
        surplus_s=surplus_s,
        terms=terms or Terms(),
        pauses=Pauses(),
        prices=constant(1.0),
        on_demand_usd_per_hour=3.0,
        horizon_s=horizon_s,
        last_step=last_step,
    )


def calm_step_s(one: Asked) -> float:
    """On the grid that it begins with."""
    times = StepTimes(one.workload, one.redundancy)
    return times.calm_s(one.grid, equal_shares(4, one.grid.pipelines))
