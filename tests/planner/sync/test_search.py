"""The search finds what pricing all strategies finds; features are counts of links and buckets."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import Pricing
from bamboo.planner.sync.features import FEATURES, features_of
from bamboo.planner.sync.price import price
from bamboo.planner.sync.resolved import resolve
from bamboo.planner.sync.search import search, space_of
from bamboo.planner.sync.situation import Situation
from bamboo.topology.sync import Sync, SyncRule

FACTS = (
    ParameterFacts(name="0.w", shape=(4000, 64), layer=0, density=0.02, step_density=0.05),
    ParameterFacts(name="1.w", shape=(1024, 512), layer=1, rows_k=8),
    ParameterFacts(name="2.w", shape=(512, 512), layer=2, rows_k=256),
)
HERE = Situation(
    cut=(0, 3),
    shares=(1, 1),
    microbatches=2,
    replica=False,
    latency_s=1e-3,
    bytes_per_s=62.5e6,
    flops_per_s=5e10,
    added_per_s=2e8,
    message_s=2e-4,
    ends_s=(0.1,),
    passed_s=(0.0, 0.01, 0.02),
    busy_s=(0.08,),
)


def test_a_search_finds_the_best_of_all_and_never_prices_more_than_it_may() -> None:
    pricing = Pricing(FACTS, HERE)
    space = space_of(pricing.facts, HERE, bounds=(None, 0))
    all_s = [
        pricing.priced(space.entries(chosen)).price.step_s
        for chosen in itertools.product(*(range(len(some)) for some in space.options))
    ]
    found = search(FACTS, HERE, evaluations=60, bounds=(None, 0))
    assert found.size == len(all_s) == space.size
    assert found.evaluations <= 60 < found.size
    assert found.best.price.step_s <= min(all_s) * 1.002
    assert price(resolve(found.sync, FACTS, HERE)).step_s == found.best.price.step_s
    assert search(FACTS, HERE, evaluations=10**6, bounds=(None, 0)).proven


def test_a_search_of_one_pipeline_knows_ships_alone() -> None:
    one = replace(HERE, shares=(2,), replica=True)
    found = search(FACTS, one, evaluations=50)
    assert {entry.exchange for entry in found.best.entries.values()} == {"tree"}
    assert {entry.ship for entry in found.best.entries.values()} >= {"rows"}
    assert found.best.price.spent_s < price(resolve(Sync(), FACTS, one)).spent_s


def test_features_are_bytes_messages_and_flops_over_links_and_buckets() -> None:
    rules = (SyncRule(match="1.w", exchange="factors", ship="factors"),)
    here = replace(HERE, replica=True)
    found = dict(zip(FEATURES, features_of(resolve(Sync(rules=rules), FACTS, here)), strict=True))
    rows, sides = 2 * 8, 1024 + 512
    dense = 4 * (4000 * 64 + 512 * 512)
    exchange, ship = 2 * (dense + 4 * rows * sides), 2 * (dense + 2 * 4 * rows * sides)
    assert found["sum over links of bytes"] == pytest.approx(exchange + ship)
    assert found["sum over buckets of bytes"] == pytest.approx(exchange + ship)
    # Of each way of a bucket a message from either pipeline to the other, and two ships.
    assert found["sum over links of messages"] == 2 * (2 + 1) + 2
    flops = 2 * rows * 1024 * 512
    assert found["max over links of flops"] == 2 * flops
    assert found["sum over links of flops"] == 2 * flops + 2 * 2 * flops
    assert np.isfinite(features_of(resolve(Sync(), FACTS, replace(here, shares=(2,))))).all()
