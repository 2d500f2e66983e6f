"""One figure everywhere: plan, price list, policy and a simulation without losses have one calm
step, on whatever grid, links, cores and redundancy; it is no shorter than what is sent takes."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bamboo.config.catalogue import load_catalogue
from bamboo.core.state import GridTime, Policy
from bamboo.planner.plans.candidates import Room
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.plan import Plan, make_plan
from bamboo.planner.plans.ranking import Candidate, ranked
from bamboo.planner.profiles.workload import WorkloadFigures, uniform_workload
from bamboo.planner.risks.zones import Stakes
from bamboo.planner.step.cost import costs_for, layout_for
from bamboo.planner.step.figures import plan_run, step_time_s
from bamboo.sim.market.prices import constant
from bamboo.sim.market.trace import Trace, TraceEvent
from bamboo.sim.run import Figures, simulate
from bamboo.study.workload import grids_of
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REDUNDANCY_MODES
from bamboo.topology.virtual_nodes import BatchShape
from tests.sim.worlds import asked, trace

LEAVES = 6
STEPS = 20
WITHIN = 1e-3
PRICES = {"us-east-1a": 0.5}
ZONES = ("us-east-1a", "us-east-1b")
STAKES = Stakes(zone_usd_per_hour=PRICES, preemptible=False, steps=STEPS)


@st.composite
def workloads(draw: st.DrawFn) -> WorkloadFigures:
    """Eight layers whose bytes take from none to many times their time to send."""
    link = draw(st.sampled_from([0.0, 2e5, 1e6, 1e8]))
    parameters = draw(st.sampled_from([1_000, 50_000]))
    base = uniform_workload(
        name="test",
        source="given",
        layers=8,
        forward_s=draw(st.sampled_from([0.01, 0.03])),
        backward_s=0.06,
        parameters=parameters,
        moment_bytes=8 * parameters,
        output_bytes=draw(st.sampled_from([64, 20_000])),
        shape=BatchShape(virtual_nodes=LEAVES, microbatches=draw(st.integers(1, 3))),
        batch=36,
        bytes_per_s=link,
    )
    return replace(
        base,
        optimizer_s=draw(st.sampled_from([(), (0.005,) * 8])),
        latency_s=draw(st.sampled_from([0.0, 0.002])),
        node_bytes_per_s=link * draw(st.sampled_from([0.0, 1.0, 2.5])),
        cores=draw(st.sampled_from([0.0, 2.0, 5.0])),
        core_share=draw(st.sampled_from([0.2, 1.0])),
    )


grids = st.builds(Grid, pipelines=st.integers(1, 4), stages=st.integers(2, 6))


def planned(work: WorkloadFigures, grid: Grid, mode: str, spread: str = "one") -> Plan:
    zones = PRICES if spread == "one" else dict.fromkeys(ZONES, 0.5)
    return make_plan(
        work.layers,
        grid=grid,
        mode=mode,
        shape=work.shape,
        timed=work,
        instance_type=load_catalogue().find("g5.xlarge"),
        zone_spot_usd_per_hour=zones,
        cut=work.cut(grid.stages)[:-1],
        stakes=replace(STAKES, zone_usd_per_hour=zones),
        spread=spread,
    )


def listed(work: WorkloadFigures, grid: Grid, mode: str) -> Candidate:
    """As the price list has it."""
    room = Room(
        memory_bytes=2**50,
        nodes=range(grid.size, grid.size + 1),
        grids=(grid,),
        modes=(mode,),
        microbatches=(work.microbatch,),
    )
    (found,) = ranked(work, room, Hazard(stakes=STAKES))
    return found


def played(
    work: WorkloadFigures, grid: Grid, mode: str, table: tuple[GridTime, ...], spread: str = "one"
) -> Figures:
    """STEPS of them, on a market that takes nothing and has as many nodes in each zone."""
    one = replace(
        asked(redundancy=mode, last_step=STEPS, horizon_s=1e6),
        workload=work,
        grid=grid,
        policy=Policy(
            cuts=(work.cut(grid.stages),),
            virtual_nodes=LEAVES,
            stages=grid.stages,
            pipelines=grid.pipelines,
            grids=table,
            spread=spread,
        ),
        prices=constant(0.5),
    )
    if spread != "one":
        nodes = [
            TraceEvent(at_s=0.0, node=f"n{number}", comes=True, zone=ZONES[number % 2])
            for number in range(grid.size)
        ]
        return simulate(one, Trace(source="test", events=tuple(nodes), length_s=1e6))
    names = " ".join(f"n{number}" for number in range(grid.size))
    return simulate(one, trace(f"0 +{names}", length_s=1e6))


def have_one_step(work: WorkloadFigures, grid: Grid, mode: str) -> None:
    assume(mode != "peer" or grid.pipelines > 1)
    cut = work.cut(grid.stages)
    plan = planned(work, grid, mode)
    assert plan.expected is not None
    step_s = plan.expected.step_s
    line = listed(replace(work, cuts={grid.stages: cut}), grid, mode)
    assert line.step_s == pytest.approx(step_s, rel=WITHIN)
    assert line.value == pytest.approx(plan.samples_per_usd(0.5 * grid.size), rel=WITHIN)
    table = grids_of(work, mode=mode, pipelines=grid.pipelines, cuts=(cut,))
    assert table[-1].step_s == pytest.approx(step_s, rel=WITHIN)
    figures = played(work, grid, mode, table)
    assert figures.steps == STEPS
    assert figures.trained_s / STEPS == pytest.approx(step_s, rel=WITHIN)


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.full)])
def test_plan_price_list_policy_and_simulation_have_one_step(count: int) -> None:
    property_ = given(workloads(), grids, st.sampled_from(REDUNDANCY_MODES))(have_one_step)
    settings(max_examples=count, deadline=None)(property_)()


def have_one_price(work: WorkloadFigures, pairs: int, stages: int, mode: str) -> None:
    """Two zones, each with half of the pipelines: the bytes between them cost the same on paper
    and simulated, and so does a sample."""
    grid = Grid(pipelines=2 * pairs, stages=stages)
    plan = planned(work, grid, mode, "pipelines")
    assert plan.expected is not None
    cut = work.cut(stages)
    table = grids_of(work, mode=mode, pipelines=grid.pipelines, cuts=(cut,))
    figures = played(work, grid, mode, table, "pipelines")
    hours = figures.trained_s / 3600
    assert figures.transfer_usd == pytest.approx(plan.transfer_usd_per_hour * hours, rel=WITHIN)
    usd_per_hour = 0.5 * grid.size + plan.transfer_usd_per_hour
    paid = figures.transfer_usd + 0.5 * grid.size * hours
    samples = STEPS * work.batch
    assert plan.samples_per_usd(usd_per_hour) == pytest.approx(samples / paid, rel=WITHIN)


@pytest.mark.parametrize("count", [6, pytest.param(100, marks=pytest.mark.full)])
def test_plan_and_simulation_pay_the_same_for_bytes_between_zones(count: int) -> None:
    modes = st.sampled_from(["off", "stash", "eager", "peer"])
    property_ = given(workloads(), st.integers(1, 2), st.integers(2, 5), modes)(have_one_price)
    settings(max_examples=count, deadline=None)(property_)()


@given(workloads(), grids, st.sampled_from(["off", "stash", "peer"]))
@settings(max_examples=20, deadline=None)
def test_no_step_is_shorter_than_all_its_messages_take(
    work: WorkloadFigures, grid: Grid, mode: str
) -> None:
    """All pipelines played together, each pair of nodes on a link of its own; and what the busiest
    node has to send."""
    work = replace(work, cores=0.0)
    plan = planned(work, grid, mode)
    assert plan.expected is not None
    work = replace(work, cuts={grid.stages: plan.cut})
    layout = layout_for(grid, shape=work.shape, mode=mode)
    whole_s = step_time_s(plan_run(layout, costs_for(work, grid)))
    assert plan.expected.step_s >= whole_s * (1 - WITHIN)
    if not work.node_bytes_per_s:
        assert plan.expected.step_s == pytest.approx(whole_s, rel=0.02)
