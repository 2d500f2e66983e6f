"""A plan holds together: cut, price, step time, what is survived, and the notes."""

from dataclasses import replace
from itertools import pairwise

import pytest

from bamboo.config.catalogue import load_catalogue
from bamboo.errors import InputError
from bamboo.planner.layers.facts import LayerFacts, gpt_facts
from bamboo.planner.layers.partition import partition
from bamboo.planner.plans.plan import Plan, make_plan
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.zones import Stakes
from bamboo.planner.step.cost import costs_for
from bamboo.topology.grid import Grid
from bamboo.topology.virtual_nodes import BatchShape

FOUR = Grid(pipelines=1, stages=4)
SHAPE = BatchShape(virtual_nodes=2, microbatches=4)
FACTS = gpt_facts(layers=8, width=256, context=128, vocabulary=256, microbatch=2, dropout=0.1)


def timed_by(
    stage_s: float, facts: tuple[LayerFacts, ...] = FACTS, *, stages: int = 4
) -> WorkloadFigures:
    """Each of so many stages takes as long, a third of it forward, however it is cut."""
    cut = partition([layer.cost for layer in facts], stages)
    each = [stage_s / (b - a) for a, b in pairwise(cut) for _ in range(a, b)]
    return WorkloadFigures(
        name="test",
        source="given",
        layers=facts,
        forward_s=tuple(layer_s / 3 for layer_s in each),
        backward_s=tuple(layer_s * 2 / 3 for layer_s in each),
        shape=SHAPE,
        batch=16,
    )


def plan(
    mode: str = "stash",
    *,
    facts: tuple[LayerFacts, ...] = FACTS,
    cut: tuple[int, ...] = (),
    stage_s: float | None = 0.06,
    kind: str = "g4dn.xlarge",
    grid: Grid = FOUR,
    standbys: int = 0,
    max_pipelines: int = 0,
    spread: str = "auto",
    checkpoint_every: int = 0,
    steps: int = 100,
) -> Plan:
    prices = {"us-east-1a": 0.2, "us-east-1b": 0.25}
    return make_plan(
        facts,
        grid=grid,
        mode=mode,
        shape=SHAPE,
        timed=None if stage_s is None else timed_by(stage_s, facts, stages=grid.stages),
        instance_type=load_catalogue().find(kind),
        zone_spot_usd_per_hour=prices,
        cut=cut,
        standbys=standbys,
        max_pipelines=max_pipelines,
        stakes=Stakes(
            zone_usd_per_hour=prices,
            preemptible=True,
            steps=steps,
            checkpoint_every=checkpoint_every,
        ),
        spread=spread,
    )


def test_the_figures_of_a_plan() -> None:
    found = plan()
    assert found.cut == (0, 3, 5, 7, 10)
    assert found.parameters == sum(fact.parameters for fact in FACTS) == 6_482_432
    assert found.instances == 4
    assert found.on_demand_usd_per_hour == pytest.approx(4 * 0.526)
    assert found.spot_usd_per_hour == {"us-east-1a": 0.8, "us-east-1b": 1.0}
    assert min(found.spot_usd_per_hour.values()) == 0.8
    assert found.expected is not None
    assert found.expected.source == "given"
    assert found.expected.step_s == 0.66
    assert found.samples_per_usd(0.8) == pytest.approx(16 / 0.66 * 3600 / 0.8)


def test_a_run_of_one_node_says_what_a_loss_costs() -> None:
    one = Grid(pipelines=1, stages=1)
    ends = plan("off", grid=one, stage_s=0.24)
    assert {spread.name for spread in ends.spreads} == {"one"}
    # 8 microbatches of 240 ms a step; half of 100 steps, and 75 s.
    lost_s = 50 * 8 * 0.24 + 75
    said = [note for note in ends.notes if note.startswith("A loss costs")]
    assert said == [
        f"A loss costs 2 min 51 s and ${lost_s * 0.2 / 3600:.4f} on average, modelled: half of the "
        "run, and the start of another one."
    ]
    kept = plan("off", grid=one, stage_s=0.24, checkpoint_every=10)
    (between,) = [note for note in kept.notes if note.startswith("A loss costs")]
    assert "1 min 25 s" in between
    assert between.endswith(
        "half of the work between two checkpoints, and the start of another node."
    )
    for several in (
        plan("peer", grid=Grid(pipelines=2, stages=1)),
        plan("peer", grid=one, max_pipelines=2),
    ):
        assert not any(note.startswith("A loss costs") for note in several.notes)


def test_a_plan_without_timing_has_no_value() -> None:
    found = plan(stage_s=None)
    assert found.expected is None
    assert found.samples_per_usd(1.0) is None


def test_a_given_cut_is_kept_and_a_wrong_one_refused() -> None:
    assert plan(cut=(0, 1, 2, 3)).cut == (0, 1, 2, 3, 10)
    for wrong in ((0, 1, 2), (1, 2, 3, 4), (0, 3, 3, 4), (0, 3, 5, 10)):
        with pytest.raises(InputError, match="does not cut 10 layers into 4 stages"):
            plan(cut=wrong)


def test_more_stages_than_layers_is_an_input_error() -> None:
    with pytest.raises(InputError, match="3 layers cannot fill 4 stages"):
        plan(facts=FACTS[:3])


def test_what_is_survived_is_counted_and_said() -> None:
    single, pairs, whole, zone, *_ = plan("stash").notes
    assert single.startswith("The loss of any one of the 4 nodes is survived inside the step")
    assert pairs.startswith("Of the 6 pairs of nodes lost at the same instant, 2 are survived")
    assert whole == "The loss of the whole pipeline ends the run."
    assert zone == "The loss of all nodes, which lie in zone us-east-1a, ends the run."
    assert plan("off").notes[0].startswith("The loss of any one of the 4 nodes ends the run.")
    kept = plan("off", checkpoint_every=10).notes[0]
    assert "restored from the newest checkpoint: at most 10 steps" in kept
    few = plan("off", checkpoint_every=1000).notes[0]
    assert "at most 100 steps" in few
    two = Grid(pipelines=2, stages=2)
    assert "is survived from another pipeline" in plan("peer", grid=two).notes[0]


def test_where_neighbours_lie_apart_a_zone_may_go() -> None:
    found = plan(spread="neighbours")
    assert found.spread == "neighbours"
    assert found.chosen is not None
    assert found.chosen.zones == {"us-east-1a": 2, "us-east-1b": 2}
    assert found.notes[3] == (
        "The loss of any one of the 2 zones is survived inside the step by shadows."
    )
    assert not any("replicas" in note for note in found.notes)
    odd = plan(spread="neighbours", grid=Grid(pipelines=1, stages=3))
    assert any(note.startswith("Some nodes keep 2 replicas") for note in odd.notes)


def test_the_cheapest_spread_is_taken_unless_the_job_says_another() -> None:
    found = plan()
    assert [one.name for one in found.spreads] == ["one", "neighbours"]
    assert found.spread == min(found.spreads, key=lambda one: one.total_usd_per_hour).name == "one"
    # A step of two hours moves little per hour, and has much to lose.
    assert plan(stage_s=600.0).spread == "neighbours"
    assert plan(stage_s=600.0, spread="one").spread == "one"
    with pytest.raises(InputError, match="'pipelines' is not possible here; take one of one, nei"):
        plan(spread="pipelines")
    assert plan(stage_s=None).spread == "one"
    assert plan(stage_s=None).spreads == ()


def test_nodes_of_further_pipelines_are_no_standbys() -> None:
    notes = plan(max_pipelines=2).notes
    assert any(n.startswith("4 of the nodes are for the pipelines beyond") for n in notes)
    assert any(n.startswith("No standby:") for n in notes)
    found = plan(max_pipelines=2, standbys=1)
    assert found.instances == 9
    assert any(n.startswith("1 standby waits for a lost slot, at $0.2000/h") for n in found.notes)
    assert [one.name for one in found.spreads] == ["one", "pipelines", "neighbours"]
    assert sum(found.spreads[1].zones.values()) == 9
    assert found.expected == plan().expected, "the step is that of the start"


def test_what_does_not_fit_and_idle_gpus_are_said() -> None:
    big = gpt_facts(
        layers=48, width=1600, context=1024, vocabulary=50257, microbatch=8, dropout=0.1
    )
    notes = plan("eager", facts=big).notes
    assert (
        sum("one T4 has 15.2 GiB for tensors (of 16): it will not" in note for note in notes) == 4
    )
    assert any("has 4 GPUs and a node uses one" in n for n in plan(kind="g5.12xlarge").notes)


def test_sizes_of_messages_come_from_the_layers() -> None:
    grid = Grid(pipelines=2, stages=2)
    shape = BatchShape(virtual_nodes=2, microbatches=2)
    work = replace(timed_by(0.06), shape=shape, cuts={2: (0, 5, 10)})
    costs = costs_for(work, grid)
    own = 4 * sum(fact.parameters for fact in FACTS[:5])
    assert costs.boundary_bytes[0] == FACTS[4].output_bytes
    assert costs.gradient_bytes[0] == own
    assert costs.exchange_bytes[0] == own  # one partial and one result, half of each
    alone = costs_for(work, Grid(pipelines=1, stages=2))
    assert alone.exchange_bytes == (0.0, 0.0)


@pytest.mark.parametrize(
    ("mode", "pipelines", "checkpoint_every", "without"),
    [
        ("stash", 1, 0, "a lost node's neighbour does its work until a replacement has booted"),
        ("peer", 2, 0, "the run goes on with a pipeline less until a replacement has booted"),
        ("off", 2, 5, "the run goes on with a pipeline less until a replacement has booted"),
        ("peer", 1, 5, "all wait until a replacement has booted, or cluster.patience_s is over"),
        ("off", 1, 5, "all wait until a replacement has booted, or cluster.patience_s is over"),
        ("off", 1, 0, ""),
        ("off", 2, 0, ""),
        ("peer", 1, 0, ""),
    ],
)
def test_what_a_standby_is_for(
    mode: str, pipelines: int, checkpoint_every: int, without: str
) -> None:
    def said(standbys: int) -> list[str]:
        notes = plan(
            mode,
            grid=Grid(pipelines=pipelines, stages=4),
            standbys=standbys,
            checkpoint_every=checkpoint_every,
        ).notes
        return [note for note in notes if "tandby" in note]

    if without:
        assert said(0) == [f"No standby: {without}."]
        (one,) = said(1)
        assert one.startswith("1 standby waits for a lost slot, at $")
        assert one.endswith(f"; without, {without}.")
    else:
        assert said(0) == []
        (one,) = said(1)
        assert one.startswith("1 standby waits for the stage of a node with a notice, at $")
        assert one.endswith("; a loss without one ends the run all the same.")


def test_another_pipeline_that_is_not_there_is_said() -> None:
    first = plan("peer").notes[0]
    assert "comes from another pipeline in this mode, and at the start there is none" in first
    assert "there is none" not in plan("peer", checkpoint_every=5).notes[0]
    assert "there is none" not in plan("peer", grid=Grid(pipelines=2, stages=4)).notes[0]
