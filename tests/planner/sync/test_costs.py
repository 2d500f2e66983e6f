"""Bytes of each kind by hand: even and uneven shares, zones, and a VGG19 with 22K classes."""

import numpy as np
import pytest

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.costs import check_rows, exchange_of, ship_of
from bamboo.planner.sync.resolved import resolve
from bamboo.planner.sync.situation import Situation, merged_partials
from bamboo.topology.sync import Sync, SyncEntry, SyncRule

WIDE = ParameterFacts(name="1.weight", shape=(30, 20), layer=1, rows_k=5)
TABLE = ParameterFacts(
    name="0.weight", shape=(1000, 9), layer=0, density=0.01, step_density=0.04, why_not="is a table"
)
P = WIDE.bytes


def grid(*shares: int, zones: tuple[int, ...] = (), microbatches: int = 1) -> Situation:
    return Situation(cut=(0, 2), shares=shares, microbatches=microbatches, zones=zones)


def sent(kind: str, situation: Situation, one: ParameterFacts = WIDE) -> list[float]:
    exchanged = exchange_of(one, SyncEntry(exchange=kind, owner=1), situation)
    assert not np.diagonal(exchanged.bytes).any()
    return list(exchanged.bytes.sum(axis=1))


@pytest.mark.parametrize("pipelines", [2, 4])
def test_a_node_sends_what_the_formulas_say(pipelines: int) -> None:
    others, one_each = pipelines - 1, grid(*[1] * pipelines)
    assert sent("tree", one_each) == pytest.approx([2 * others / pipelines * P] * pipelines)
    assert sent("owner", one_each) == [P, others * P, *[P] * (pipelines - 2)]
    assert sent("factors", one_each) == [4 * 5 * others * (30 + 20)] * pipelines
    products = exchange_of(WIDE, SyncEntry(exchange="factors"), one_each).flops
    assert list(products) == [2 * others * 5 * 30 * 20] * pipelines


def test_each_partial_sum_is_sent_and_a_microbatch_has_its_own_factors() -> None:
    uneven = grid(3, 1, microbatches=2)  # [0, 2) and [2, 3); [3, 4)
    assert sent("tree", uneven) == pytest.approx([(2 + 1) / 2 * P, (1 + 1) / 2 * P])
    assert sent("owner", uneven) == [2 * P, P]
    assert sent("factors", uneven) == [4 * 30 * 50, 4 * 10 * 50]


def test_rows_are_sent_message_by_message_as_far_as_they_are_fewer_bytes() -> None:
    two, row = grid(1, 1), 4 * 9 + 4
    assert sent("rows", two, TABLE) == pytest.approx([(10 + 40) / 2 * row] * 2)
    dense = ParameterFacts(name="0.weight", shape=(1000, 9), layer=0)
    assert sent("rows", two, dense) == sent("tree", two, dense)


@pytest.mark.parametrize(("pipelines", "share"), [(4, 2), (8, 4)])
def test_zoned_sends_a_fraction_between_two_zones(pipelines: int, share: int) -> None:
    zones = (0,) * (pipelines // 2) + (1,) * (pipelines // 2)
    both = grid(*[1] * pipelines, zones=zones)
    rule = SyncRule(match="*", exchange="zoned")
    named = Sync(rules=(rule,), zones=zones)
    by_tree, by_zone = (resolve(x, [WIDE], both) for x in (Sync(), named))
    assert by_tree.between_zones() == pytest.approx(share * by_zone.between_zones())
    assert by_zone.between_zones() == pytest.approx(2 * P)
    # The runtime adds by the strategy's zones, also where links do not differ, and never without.
    elsewhere = resolve(named, [WIDE], grid(*both.shares))
    assert elsewhere.between_zones(zones) == pytest.approx(2 * P)
    assert resolve(Sync(rules=(rule,)), [WIDE], both).sent_by_kind().keys() == {"tree"}
    assert merged_partials(both.shares, zones) == (1, 1)
    apart = (0, 1) * (pipelines // 2)
    assert merged_partials(both.shares, apart) == (pipelines // 2, pipelines // 2)


def test_a_ship_is_whole_or_by_rows_or_by_the_factors_of_the_whole_step() -> None:
    two = grid(2, 2, microbatches=3)
    assert ship_of(WIDE, SyncEntry(), two).bytes == P
    assert ship_of(TABLE, SyncEntry(ship="rows"), two).bytes == pytest.approx(40 * (4 * 9 + 4))
    shipped = ship_of(WIDE, SyncEntry(ship="factors"), two)
    assert (shipped.bytes, shipped.flops) == (4 * 60 * 50, 2 * 60 * 600)
    low = Situation(cut=(0, 2), shares=(4,), microbatches=3, factor_bytes=2)
    assert ship_of(WIDE, SyncEntry(ship="factors"), low).bytes == 2 * 60 * 50


def test_a_strategy_counts_the_sums_of_its_parts() -> None:
    rules = (
        SyncRule(match="1.weight", exchange="factors", ship="factors"),
        SyncRule(match="0.weight", exchange="rows", ship="rows", bucket=0),
    )
    situation = Situation(cut=(0, 1, 3), shares=(2, 1, 1), microbatches=2)
    bias = ParameterFacts(name="2.bias", shape=(7,), layer=2, why_not="is a vector")
    found = resolve(Sync(rules=rules), [TABLE, WIDE, bias], situation, statistics={2: 3})
    alone = [
        exchange_of(one, found.entries[one.name], situation).bytes.sum()
        for one in (TABLE, WIDE, bias)
    ]
    kinds = found.sent_by_kind()
    statistics = 3 / 7 * alone[2]
    assert kinds == pytest.approx(
        {"rows": alone[0], "factors": alone[1], "tree": alone[2] + statistics}
    )
    assert found.exchanged_bytes == pytest.approx(sum(stage.bytes.sum() for stage in found.stages))
    shipped = {
        x: ship_of(one, found.entries[one.name], situation).bytes * 3
        for x, one in (("rows", TABLE), ("factors", WIDE), ("dense", bias))
    }
    shipped["dense"] += 3 * 4 * 3
    assert found.shipped_by_kind() == pytest.approx(shipped)
    with pytest.raises(ValueError, match=r"0\.weight cannot go by factors: it is a table"):
        resolve(Sync(rules=(SyncRule(match="*", exchange="factors"),)), [TABLE], situation)


def test_a_gradient_without_rows_is_named() -> None:
    check_rows(TABLE)
    bias = ParameterFacts(name="2.bias", shape=(7,), layer=2)
    none = ParameterFacts(name="2.none", shape=(0, 7), layer=2)
    with pytest.raises(ValueError, match=r"2.bias cannot go by rows: it is a vector; take tree"):
        check_rows(bias)
    with pytest.raises(ValueError, match=r"2.none cannot go by rows: it has no rows; take tree"):
        check_rows(none)


def test_a_vgg19_with_22k_classes_sends_an_eighth_by_factors() -> None:
    linear = ((4096, 25088), (4096, 4096), (21841, 4096))
    facts = [
        ParameterFacts(name=f"{layer}.weight", shape=shape, layer=layer, rows_k=32)
        for layer, shape in enumerate(linear)
    ]
    convolutions = ParameterFacts(name="3.rest", shape=(20_024_384,), layer=3)
    eight = Situation(cut=(0, 4), shares=(1,) * 8, microbatches=1)
    rule = SyncRule(match="*.weight", exchange="factors")
    by_tree, by_factors = (
        resolve(x, [*facts, convolutions], eight).stages[0].most_sent
        for x in (Sync(), Sync(rules=(rule,)))
    )
    assert by_tree == pytest.approx(1603e6, rel=0.001)
    assert by_factors == pytest.approx(197e6, rel=0.001)
