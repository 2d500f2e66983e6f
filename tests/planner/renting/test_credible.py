"""No advice: an option far dearer than the same flops are known to cost, or beyond any quota."""

from dataclasses import replace

import pytest

from bamboo.config.catalogue import load_catalogue, load_gpus
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.planner.profiles.gpus import GIB
from bamboo.planner.profiles.shaped import gpt_profile
from bamboo.planner.renting.credible import (
    MOST_TIMES,
    MOST_VCPUS,
    BestKnown,
    best_known,
    doubt_of,
    one_card,
)
from bamboo.planner.renting.option import ON_DEMAND, Offer, Option, Question
from bamboo.planner.renting.options import options
from tests.planner.workloads import workload

CONTEXT = 8


@pytest.fixture
def catalogue() -> Catalogue:
    return load_catalogue("us-east-1")


def offer(name: str, *, memory: int = 10**9) -> Offer:
    return Offer(
        name=name,
        gpu="G",
        memory_bytes=memory,
        workload=workload(layers=4, microbatches=2),
        on_demand_usd_per_hour=2.0,
        spot_usd_per_hour={},
    )


def option(name: str, *, nodes: int = 2) -> Option:
    question = Question(nodes=range(2, 3), steps=10, checkpoint_every=5, modes=("off",))
    (found,) = options([offer(name)], question, most=0).found
    assert found.line.market == ON_DEMAND
    return replace(found, plan=replace(found.plan, nodes=nodes))


def test_the_best_known_price_is_that_of_the_flops_on_the_cheapest_tensor_cores(
    catalogue: Catalogue,
) -> None:
    shape = {"heads": 64, "context": 1024, "vocabulary": 50257}
    counted = gpt_profile(job="j", layers=80, width=8192, microbatch=2, dropout=0.0, **shape)
    best = best_known(counted, catalogue, load_gpus())
    assert best is not None
    # 6 flops for each of 65 billion parameters and each token, and attention beside them.
    flops = 6 * 65e9
    # An L40S: 362 TFLOPS in bf16, at $1.861/h on demand, two fifths of them used.
    by_hand = flops / (362e12 * 0.4) / 3600 * 1.861
    assert best.usd_per_sample / 1024 == pytest.approx(by_hand, rel=0.1)
    assert "in bf16 on g6e.xlarge at $1.861/h on demand, 40 % of the 362 TFLOPS" in best.source
    few = replace(catalogue, types={"g4dn.xlarge": catalogue.types["g4dn.xlarge"]})
    assert best_known(counted, few, load_gpus()) is None, "a T4 has no bf16"
    newer = replace(catalogue.types["g6e.xlarge"], name="g9.xlarge", gpu="Q1")
    more = replace(catalogue, types={**catalogue.types, newer.name: newer})
    assert best_known(counted, more, load_gpus()) == best, "of a GPU that the table has not"


def test_what_costs_more_than_so_many_times_the_best_known_price_is_not_advised(
    catalogue: Catalogue,
) -> None:
    one = option("g5.xlarge")

    def doubt(times: float) -> str:
        best = BestKnown(usd_per_sample=1 / one.value / times, source="S", arithmetic="in fp32")
        return doubt_of(one, best, catalogue, tokens_per_sample=CONTEXT)

    assert doubt(0.99 * MOST_TIMES) == ""
    assert "10 times the " in doubt(10)
    assert "of S; beyond 5 times that nothing is advised" in doubt(10)
    assert doubt_of(one, None, catalogue, tokens_per_sample=CONTEXT) == ""


def test_what_needs_more_than_any_quota_is_not_advised(catalogue: Catalogue) -> None:
    each = catalogue.types["p5en.48xlarge"].vcpus
    assert each
    most = MOST_VCPUS // each
    for nodes, words in ((most, ""), (most + 1, f"needs {(most + 1) * each:,} vCPUs of one quota")):
        one = option("p5en.48xlarge", nodes=nodes)
        said = doubt_of(one, None, catalogue, tokens_per_sample=CONTEXT)
        assert bool(said) is bool(words)
        assert words in said


def test_a_model_that_fits_one_gpu_is_found_and_its_cheapest_told() -> None:
    dear = replace(offer("dear"), on_demand_usd_per_hour=3.0)
    alone = one_card((dear, offer("cheap"), offer("small", memory=1)))
    assert alone is not None
    assert alone.offer.name == "cheap"
    work = alone.offer.workload
    step_s = sum(work.both_s) * work.shape.total
    assert alone.samples_per_usd == pytest.approx(work.batch / step_s * 3600 / 2.0)
    assert one_card((offer("small", memory=1),)) is None
    assert one_card((replace(offer("huge"), memory_bytes=80 * GIB),)) is not None


def test_what_is_worth_too_little_at_most_is_doubted_without_a_plan() -> None:
    best = BestKnown(usd_per_sample=0.001, source="S", arithmetic="in fp32")
    assert best.least_value == pytest.approx(1000 / MOST_TIMES)
    said = best.doubt_at_most("L", 100.0, tokens_per_sample=CONTEXT)
    assert said.startswith("the best, L, costs at least $1,250.00 a million tokens, 10 times the $")
    far = best.doubt_at_most("L", 0.04, tokens_per_sample=CONTEXT)
    assert " a million tokens, 25,000 times the $" in far
