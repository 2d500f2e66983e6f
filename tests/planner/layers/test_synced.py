"""Facts of parameters: the GPT's by its shape agree with its layers, and densities grow."""

import pytest

from bamboo.config.tree import ModelConfig
from bamboo.models import build_layer
from bamboo.models.gpt import gpt_workload
from bamboo.planner.layers.facts import gpt_facts
from bamboo.planner.layers.synced import ParameterFacts, with_rows_of

SHAPE = {"layers": 1, "width": 16, "context": 8, "vocabulary": 200, "dropout": 0.0}


@pytest.mark.parametrize("tied", [False, True])
def test_facts_of_the_gpt_are_those_of_its_parameters(tied: bool) -> None:
    facts = gpt_facts(**SHAPE, microbatch=2, batch=8, tied=tied, frozen=("1.*.bias",))
    workload = gpt_workload(ModelConfig(**SHAPE, heads=2))
    for index, layer in enumerate(facts):
        built = build_layer(workload, index, seed=1).named_parameters()
        assert sorted((one.name, one.shape, one.layer) for one in layer.synced) == sorted(
            (f"{index}.{name}", tuple(p.shape), index) for name, p in built
        )
        trained = sum(one.size for one in layer.synced if one.trained)
        assert trained == layer.parameters
    named = {one.name: one for layer in facts for one in layer.synced}
    assert named["1.expand.weight"].rows_k == 2 * 8
    assert not named["1.expand.bias"].trained
    table, head = named["0.tokens.weight"], named["2.vocabulary.weight"]
    assert (table.density, table.step_density) == ((1.0, 1.0) if tied else (16 / 200, 64 / 200))
    assert head.rows_k == (0 if tied else 16)
    for one in named.values():
        assert bool(one.why_not) == (one.rows_k == 0)


def test_densities_grow_with_the_microbatches_and_end_at_that_of_the_step() -> None:
    one = ParameterFacts(
        name="0.table", shape=(100, 4), layer=0, rows_k=6, density=0.1, step_density=0.4
    )
    after = [one.density_after(microbatches, 16) for microbatches in (1, 4, 16)]
    assert after == pytest.approx([0.1, 0.2, 0.4])
    assert one.density_after(1, 1) == 0.4
    larger = with_rows_of(one, samples=4, before=1, microbatches=16)
    assert (larger.rows_k, larger.step_density) == (24, 0.4)
    assert larger.density == pytest.approx(0.2)
