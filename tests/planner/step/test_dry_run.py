"""The dry run: known figures, bounds, deadlocks by name, and merged nodes that always finish."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bamboo.errors import InputError
from bamboo.ids import NodeId
from bamboo.planner.step.dry_run import dry_run
from bamboo.planner.step.figures import (
    bound_s,
    computed_ahead,
    figures,
    gap_budgets,
    plan_run,
    step_time_s,
)
from bamboo.planner.step.layout import Costs, Layout, layout_of, merged
from bamboo.planner.step.render import figures_text, grid_text
from bamboo.planner.step.standing import Deadlock
from bamboo.planner.step.timeline import Timeline
from bamboo.schedule.one_f_one_b import Program, most_in_flight, one_f_one_b
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import BARE_MODES, REDUNDANCY_MODES, REPLICA_MODES
from tests.schedule.golden import check_golden

FOUR = Grid(pipelines=1, stages=4)
EQUAL = Costs.of(4, forward_s=[0.02], backward_s=[0.04])
LATER_HEAVIER = Costs.of(
    4, forward_s=[0.01, 0.015, 0.02, 0.025], backward_s=[0.02, 0.03, 0.04, 0.05]
)
LINKED = Costs.of(
    4,
    forward_s=[0.02],
    backward_s=[0.04],
    step_s=[0.002],
    latency_s=0.001,
    bytes_per_s=1e9,
    boundary_bytes=[1e6],
    gradient_bytes=[1e8],
)


def layout(mode: str, microbatches: int = 8) -> Layout:
    return layout_of(FOUR, microbatches=[microbatches], mode=mode)


def plain_program(stage: int) -> Program:
    """Of four stages and eight microbatches in 1F1B without a microbatch more in flight."""
    first = 3 - stage
    turns = "".join(f" {stage}F{m + first} {stage}B{m}" for m in range(8 - first))
    warm_up, cool_down = (
        " ".join(f"{stage}{kind}{m}" for m in which)
        for kind, which in (("F", range(first)), ("B", range(8 - first, 8)))
    )
    return Program.parse(f"{warm_up} |{turns} | {cool_down}")


PLAIN = replace(layout("stash"), programs=(tuple(map(plain_program, range(4))),))


@pytest.mark.parametrize("mode", REDUNDANCY_MODES)
def test_grid_and_figures_of_equal_stages(mode: str) -> None:
    timeline = plan_run(layout(mode), EQUAL)
    check_golden(
        f"grid_equal_{mode}.txt",
        grid_text(timeline) + "\n" + figures_text(figures(timeline, EQUAL)),
    )


@pytest.mark.parametrize("mode", ["stash", "gap", "eager"])
def test_grid_and_figures_of_later_heavier_stages(mode: str) -> None:
    timeline = plan_run(layout(mode), LATER_HEAVIER)
    check_golden(
        f"grid_later_heavier_{mode}.txt",
        grid_text(timeline) + "\n" + figures_text(figures(timeline, LATER_HEAVIER)),
    )


def test_grid_and_figures_where_each_stage_has_its_own_redundancy() -> None:
    timeline = plan_run(layout("eager,stash,full,gap"), LATER_HEAVIER)
    found = figures(timeline, LATER_HEAVIER)
    check_golden("grid_own_redundancy.txt", grid_text(timeline) + "\n" + figures_text(found))
    backwards = [s.ahead_backwards > 0 for s in found.stages]
    assert (found.stages[1].ahead_forwards, backwards) == (0.0, [False, False, True, False])
    assert found.stages[0].ahead_forwards > 0


@pytest.mark.parametrize("mode", REPLICA_MODES)
def test_a_mode_written_out_for_every_stage_is_that_mode(mode: str) -> None:
    each = plan_run(layout(",".join([mode] * 4)), LATER_HEAVIER)
    assert each.ran == plan_run(layout(mode), LATER_HEAVIER).ran


def test_grid_and_figures_of_a_merged_node() -> None:
    after = merged(layout("stash"), NodeId("0.2"))
    timeline = plan_run(after, EQUAL)
    check_golden(
        "grid_merged.txt", grid_text(timeline) + "\n" + figures_text(figures(timeline, EQUAL))
    )


def test_grid_of_two_pipelines() -> None:
    two = layout_of(Grid(pipelines=2, stages=2), microbatches=[3, 2], mode="stash")
    costs = Costs.of(2, forward_s=[0.02], backward_s=[0.04], exchange_s=[0.02], latency_s=0.01)
    check_golden("grid_two_pipelines.txt", grid_text(plan_run(two, costs), step=1))


def test_the_ideal_step_of_the_measured_case() -> None:
    for steps in (1, 4):
        timeline = dry_run(layout("off"), EQUAL, steps=steps)
        assert step_time_s(timeline) == 0.66
    found = figures(timeline, EQUAL)
    assert found.bound_s == 0.66
    assert found.bubble == pytest.approx(3 * 0.06 / 0.66)
    assert found.redundant == 0.0
    # In 1F1B one, two and three nodes compute for as long each while it fills and drains. What is
    # computed sooner leaves waits for gradients in between.
    assert found.busy == pytest.approx((0.0, 0.10 / 0.66, 0.12 / 0.66, 0.18 / 0.66, 0.26 / 0.66))
    assert [s.peak_in_flight for s in found.stages] == [5, 4, 3, 1]


def test_redundant_forwards_fill_the_bubbles_of_later_heavier_stages() -> None:
    """The stage before the heaviest has no wait that a whole forward fits, but at the ends."""
    forward_s = (0.014, 0.018, 0.022, 0.026)
    later = Costs.of(4, forward_s=forward_s, backward_s=[2 * f for f in forward_s])
    found = plan_run(layout("eager"), later)
    assert step_time_s(found) <= 1.03 * step_time_s(plan_run(layout("stash"), later))
    assert all(forwards == 1.0 for forwards, _ in computed_ahead(found))


def test_a_merged_node_adds_about_what_was_measured() -> None:
    """A prototype measured about 0.4 s with plain 1F1B."""
    for before, more_s in ((PLAIN, 0.4), (layout("stash"), 0.38)):
        after = step_time_s(plan_run(merged(before, NodeId("0.2")), EQUAL))
        assert after - 0.66 == pytest.approx(more_s)


def test_stash_costs_nothing_and_redundant_forwards_cost_where_b_is_not_2f() -> None:
    uneven = Costs.of(4, forward_s=[0.02], backward_s=[0.03])
    times = {mode: step_time_s(plan_run(layout(mode), uneven)) for mode in REDUNDANCY_MODES}
    assert times["off"] == times["stash"] == times["gap"] == pytest.approx(0.55)
    assert times["eager"] > 1.05 * times["off"]
    assert times["full"] > times["off"]


def test_greedy_redundancy_costs_what_was_measured_once_messages_take_time() -> None:
    """A prototype with plain 1F1B measured about +17 % (FR) and +40 % (BR as well) on real
    processes: messages arrive a little after an operation began that cannot be interrupted. A gap
    budget avoids it. With a microbatch more in flight most of them come in time."""
    late = Costs.of(4, forward_s=[0.02], backward_s=[0.04], latency_s=0.0005)
    plain = {
        mode: step_time_s(plan_run(replace(PLAIN, mode=mode), late)) for mode in REDUNDANCY_MODES
    }
    assert plain["gap"] == plain["stash"] == plain["off"]
    assert plain["eager"] / plain["off"] == pytest.approx(1.17, abs=0.02)
    assert plain["full"] / plain["off"] == pytest.approx(1.4, abs=0.05)
    times = {mode: step_time_s(plan_run(layout(mode), late)) for mode in REDUNDANCY_MODES}
    assert times["gap"] == times["stash"] == times["off"] < plain["off"]
    assert times["eager"] / times["off"] == pytest.approx(1.06, abs=0.01)
    assert times["full"] / times["off"] == pytest.approx(1.36, abs=0.01)


def test_a_step_waits_for_the_replicas_of_the_step_before_the_last() -> None:
    slow = Costs.of(
        4,
        forward_s=[0.02],
        backward_s=[0.04],
        bytes_per_s=1e6,
        gradient_bytes=[1e6],
    )
    off = dry_run(layout("off"), slow, steps=6)
    stash = dry_run(layout("stash"), slow, steps=6)
    assert step_time_s(off) == 0.66
    assert step_time_s(stash) > 0.66
    for earlier, commit_ns in zip(stash.settled_ns, stash.commit_ns[2:], strict=False):
        assert commit_ns >= earlier + round(bound_s(layout("stash"), slow) * 1e9)
    assert max(s.peak_outputs for s in figures(stash, slow).stages) <= 16


@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 9), st.sampled_from(BARE_MODES))
def test_one_stage_computes_without_a_pause(
    pipelines: int, microbatches: int, latency_ms: int, mode: str
) -> None:
    """Plain data parallelism: forward and backward in turn, no bubble, one microbatch in flight,
    and nothing sent but the exchange at the end."""
    plan = layout_of(Grid(pipelines=pipelines, stages=1), microbatches=[microbatches], mode=mode)
    costs = Costs.of(1, forward_s=[0.02], backward_s=[0.04], latency_s=latency_ms / 1e3)
    timeline = dry_run(plan, costs, steps=3)
    check_timeline(timeline)
    turns = [f"0{kind}{m}" for m in range(microbatches) for kind in "FB"]
    for slot in plan.assignment.grid.slots():
        ran = [str(one.instruction) for one in timeline.ran if one.slot == slot]
        assert ran == [*turns, *["0X"] * (1 + (pipelines > 1)), "0S"] * 3
    computing_s = microbatches * 0.06
    assert bound_s(plan, costs) == pytest.approx(computing_s)
    # Partial sums, shards and squares, each a message after the other.
    sent_s = 3 * latency_ms / 1e3 if pipelines > 1 else 0.0
    assert step_time_s(timeline) == pytest.approx(computing_s + sent_s)
    assert [s.peak_in_flight for s in figures(timeline, costs).stages] == [1]
    assert timeline.settled_ns == timeline.commit_ns


def run_of(stage_programs: list[str]) -> Layout:
    base = layout_of(Grid(pipelines=1, stages=len(stage_programs)), microbatches=[2], mode="off")
    programs = tuple(Program.parse(text) for text in stage_programs)
    return Layout(assignment=base.assignment, programs=(programs,), mode="off")


def test_a_deadlock_names_the_operations_that_wait() -> None:
    crossed = run_of([" | 0F0 0B0 0F1 0B1 | ", "1F0 1F1 |  | 1B0 1B1"])
    with pytest.raises(Deadlock) as caught:
        dry_run(crossed, Costs.of(2, forward_s=[1], backward_s=[1]))
    assert caught.value.waiting == (
        "0B0 of pipeline 0 waits for 1B0",
        "1F1 of pipeline 0 waits for 0F1",
    )
    assert "0B0 of pipeline 0 waits for 1B0" in str(caught.value)


def test_other_orders_that_fit_together_run() -> None:
    all_forwards_first = run_of(["0F0 0F1 |  | 0B0 0B1", "1F0 1F1 |  | 1B0 1B1"])
    timeline = dry_run(all_forwards_first, Costs.of(2, forward_s=[1], backward_s=[2]))
    assert [str(ran.instruction) for ran in timeline.ran if ran.instruction.stage == 1] == [
        "1F0",
        "1F1",
        "1B0",
        "1B1",
        "1X",
        "1S",
    ]


def test_stages_with_unlike_microbatches_are_refused() -> None:
    with pytest.raises(ValueError, match="must run the same microbatches"):
        run_of([" | 0F0 0B0 | ", "1F0 1F1 |  | 1B0 1B1"])


def test_costs_of_another_length_are_refused() -> None:
    with pytest.raises(InputError, match="forward_s has 3 figures for 4 stages; give one for all"):
        Costs.of(4, forward_s=[1, 2, 3], backward_s=[1])
    with pytest.raises(InputError, match="backward_s has the figure -1"):
        Costs.of(4, forward_s=[1], backward_s=[-1])
    with pytest.raises(InputError, match="latency_s has the figure nan"):
        Costs.of(4, forward_s=[1], backward_s=[1], latency_s=float("nan"))


def test_a_loss_without_a_live_copy_has_no_layout() -> None:
    once = merged(layout("stash"), NodeId("0.1"))
    assert once.assignment.owner(Slot(pipeline=0, stage=1)) == NodeId("0.0")
    assert once.assignment.shadow(Slot(pipeline=0, stage=2)) is None
    with pytest.raises(ValueError, match=r"slot 0\.1 of 0\.0 has no live copy"):
        merged(once, NodeId("0.0"))
    with pytest.raises(ValueError, match="no live copy"):
        merged(layout("off"), NodeId("0.0"))


# ------------------------------------------------------------------ properties

durations_ms = st.integers(1, 60)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layout, Costs]:
    stages = draw(st.integers(1, 6))
    pipelines = draw(st.integers(1, 3))
    counts = draw(st.lists(st.integers(1, 9), min_size=pipelines, max_size=pipelines))
    mode = draw(st.sampled_from(REDUNDANCY_MODES if stages > 1 else BARE_MODES))
    costs = Costs.of(
        stages,
        forward_s=[draw(durations_ms) / 1e3 for _ in range(stages)],
        backward_s=[draw(durations_ms) / 1e3 for _ in range(stages)],
        exchange_s=[draw(st.integers(0, 5)) / 1e3],
        step_s=[draw(st.integers(0, 9)) / 1e3],
        latency_s=draw(st.integers(0, 9)) / 1e3,
        bytes_per_s=draw(st.sampled_from([0.0, 1e6, 1e9])),
        boundary_bytes=[1e4],
        gradient_bytes=[1e5],
        exchange_bytes=[1e5],
    )
    grid = Grid(pipelines=pipelines, stages=stages)
    return layout_of(grid, microbatches=counts, mode=mode), costs


def check_timeline(timeline: Timeline) -> None:
    """What holds for every run: pairs complete, order kept, one operation at a time."""
    grid = timeline.layout.assignment.grid
    for slot in grid.slots():
        program = list(timeline.layout.program(slot).instructions)
        own = [r for r in timeline.ran if r.slot == slot and r.instruction.kind in ("F", "B")]
        assert [r.instruction for r in own] == program * timeline.steps
        if timeline.layout.assignment.shadow(slot) is not None:
            replica = [r.step for r in timeline.ran if r.slot == slot and r.instruction.kind == "R"]
            assert replica == list(range(timeline.steps))
    ends: dict[tuple[Slot, int, str], int] = {}
    free_ns: dict[NodeId, int] = {}
    for ran in timeline.ran:
        assert ran.start_ns >= free_ns.get(ran.node, 0)
        free_ns[ran.node] = ran.end_ns
        ends[ran.slot, ran.step, str(ran.instruction)] = ran.end_ns
    for ran in timeline.ran:
        stage, m = ran.slot.stage, ran.instruction.microbatch
        if ran.instruction.kind == "F" and stage > 0:
            before = Slot(pipeline=ran.slot.pipeline, stage=stage - 1)
            assert ran.start_ns >= ends[before, ran.step, f"{stage - 1}F{m}"]
        if ran.instruction.kind == "B" and stage < grid.stages - 1:
            after = Slot(pipeline=ran.slot.pipeline, stage=stage + 1)
            assert ran.start_ns >= ends[after, ran.step, f"{stage + 1}B{m}"]


@given(cases())
def test_every_layout_runs_in_order_and_no_faster_than_the_bound(
    case: tuple[Layout, Costs],
) -> None:
    plan, costs = case
    timeline = plan_run(plan, costs, steps=2)
    check_timeline(timeline)
    assert timeline.commit_ns[0] >= round(bound_s(plan, costs) * 1e9)
    found = figures(timeline, costs)
    counts = max(row[0].microbatches for row in plan.programs)
    grid = plan.assignment.grid
    for stage in found.stages:
        assert stage.peak_in_flight == most_in_flight(stage.stage, grid.stages, counts)
        assert max(stage.peak_outputs, stage.peak_gradients) <= 2 * counts
        assert stage.ahead_forwards <= counts
        assert (stage.ahead_forwards == 0) or plan.mode in ("gap", "eager", "full")
        assert (stage.ahead_backwards == 0) or plan.mode == "full"
    assert 0.0 <= found.bubble < 1.0
    at_work = sum(nodes * share for nodes, share in enumerate(found.busy))
    assert sum(found.busy) == pytest.approx(1.0)
    everybody = len(set(plan.assignment.owners))
    assert at_work == pytest.approx(everybody * (1.0 - found.bubble + found.redundant))


@given(cases(), st.data())
def test_any_single_merged_node_runs_to_the_end(
    case: tuple[Layout, Costs], data: st.DataObject
) -> None:
    plan, costs = case
    assume(plan.assignment.grid.stages > 1)  # else no node has a neighbour
    if plan.mode in BARE_MODES:
        plan = Layout(
            assignment=layout_of(plan.assignment.grid, microbatches=[1], mode="stash").assignment,
            programs=plan.programs,
            mode="stash",
        )
    victim = data.draw(st.sampled_from(plan.assignment.owners))
    after = merged(plan, victim)
    timeline = plan_run(after, costs, steps=2)
    check_timeline(timeline)
    assert timeline.commit_ns[0] >= round(bound_s(plan, costs) * 1e9)


@given(cases())
def test_gap_mode_is_never_slower_than_stash(case: tuple[Layout, Costs]) -> None:
    plan, costs = case
    assume(plan.assignment.grid.stages > 1)  # else there is no replica
    still = Costs.of(
        plan.assignment.grid.stages,
        forward_s=costs.forward_s,
        backward_s=costs.backward_s,
        latency_s=costs.latency_s,
    )
    grid = plan.assignment.grid
    counts = [row[0].microbatches for row in plan.programs]
    times = [
        step_time_s(plan_run(layout_of(grid, microbatches=counts, mode=mode), still))
        for mode in ("stash", "gap")
    ]
    assert times[0] == times[1]


def test_gap_budgets_name_only_shadowed_slots() -> None:
    budgets = gap_budgets(merged(layout("gap"), NodeId("0.2")), EQUAL)
    assert [str(slot) for slot in budgets] == ["0.0", "0.1"]
    assert budgets[Slot(pipeline=0, stage=0)]


def test_a_run_is_the_same_every_time() -> None:
    assert plan_run(layout("full"), LINKED).ran == plan_run(layout("full"), LINKED).ran


def test_programs_of_many_microbatches_are_quick_to_run() -> None:
    plan = layout_of(Grid(pipelines=2, stages=8), microbatches=[32], mode="eager")
    costs = Costs.of(8, forward_s=[0.02], backward_s=[0.04])
    assert len(dry_run(plan, costs).ran) >= 2 * 8 * 64
    assert one_f_one_b(8, 32)[0].microbatches == 32
