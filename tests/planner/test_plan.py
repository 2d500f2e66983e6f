"""A plan holds together: cut, price, step time, what is survived, and the notes."""

import pytest

from bamboo.config.catalogue import load_catalogue
from bamboo.errors import InputError
from bamboo.ids import NodeId
from bamboo.planner.cost import Timing, costs_for, layout_for
from bamboo.planner.plan import Plan, make_plan, survives
from bamboo.planner.profile import LayerFacts, gpt_facts
from bamboo.topology.grid import Grid
from bamboo.topology.virtual_nodes import BatchShape

FOUR = Grid(pipelines=1, stages=4)
SHAPE = BatchShape(virtual_nodes=1, microbatches=8)
FACTS = gpt_facts(layers=8, width=256, context=128, vocabulary=256, microbatch=2, dropout=0.1)
TIMING = Timing(source="given", forward_s=(0.02,), backward_s=(0.04,))


def plan(
    mode: str = "stash",
    *,
    facts: tuple[LayerFacts, ...] = FACTS,
    cut: tuple[int, ...] = (),
    timing: Timing | None = TIMING,
    kind: str = "g4dn.xlarge",
) -> Plan:
    return make_plan(
        facts,
        grid=FOUR,
        mode=mode,
        shape=SHAPE,
        batch=16,
        instance_type=load_catalogue().find(kind),
        zone_spot_usd_per_hour={"us-east-1a": 0.2, "us-east-1b": 0.25},
        cut=cut,
        timing=timing,
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


def test_a_plan_without_timing_has_no_value() -> None:
    found = plan(timing=None)
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
    stash = plan("stash").notes
    assert stash[0].startswith("The loss of any one of the 4 nodes is survived")
    assert stash[1].startswith("Of the 6 pairs of nodes, 2 can be lost together")
    assert plan("off").notes[0].startswith("No loss is survived: redundancy 'off'")
    assert "one zone" in stash[2]
    layout = layout_for(FOUR, shape=SHAPE, mode="stash")
    assert survives(layout, [NodeId("0.0"), NodeId("0.2")])
    assert not survives(layout, [NodeId("0.3"), NodeId("0.0")])


def test_what_does_not_fit_and_idle_gpus_are_said() -> None:
    big = gpt_facts(
        layers=48, width=1600, context=1024, vocabulary=50257, microbatch=8, dropout=0.1
    )
    notes = plan("eager", facts=big).notes
    assert sum("a T4 has 16 GiB: it will not fit" in note for note in notes) == 4
    assert any("has 4 GPUs and a node uses one" in n for n in plan(kind="g5.12xlarge").notes)


def test_sizes_of_messages_come_from_the_layers() -> None:
    grid = Grid(pipelines=2, stages=2)
    shape = BatchShape(virtual_nodes=2, microbatches=2)
    costs = costs_for(FACTS, cut=(0, 5, 10), grid=grid, shape=shape, timing=TIMING)
    own = 4 * sum(fact.parameters for fact in FACTS[:5])
    assert costs.boundary_bytes[0] == FACTS[4].output_bytes
    assert costs.gradient_bytes[0] == own
    assert costs.exchange_bytes[0] == own  # one partial and one result, half of each
    alone = costs_for(
        FACTS, cut=(0, 5, 10), grid=Grid(pipelines=1, stages=2), shape=shape, timing=TIMING
    )
    assert alone.exchange_bytes == (0.0, 0.0)
