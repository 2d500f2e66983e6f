"""What builders make: never slower than `tree` by the model, and each kind where it pays."""

import random
from dataclasses import replace

import pytest

from bamboo.errors import InputError
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.builders import BUILDERS, build, exactly
from bamboo.planner.sync.explained import explained
from bamboo.planner.sync.price import can_hide, price
from bamboo.planner.sync.resolved import resolve
from bamboo.planner.sync.situation import Situation
from bamboo.planner.sync.why import break_even, kinds, why
from bamboo.planner.sync.worth import LEAST, most_won
from bamboo.quantities import size
from bamboo.topology.sync import Sync, SyncEntry, SyncRule, entry_of

TABLE = ParameterFacts(
    name="0.table",
    shape=(20000, 64),
    layer=0,
    density=0.01,
    step_density=0.05,
    why_not="is a table",
)
WIDE = ParameterFacts(name="1.weight", shape=(2048, 2048), layer=1, rows_k=8)
SQUARE = ParameterFacts(name="2.weight", shape=(256, 256), layer=2, rows_k=1024)
BIAS = ParameterFacts(name="3.bias[0]", shape=(2048,), layer=3, why_not="is a vector")
FACTS = (TABLE, WIDE, SQUARE, BIAS)


def situation(**changes: object) -> Situation:
    found = Situation(
        cut=(0, 2, 4),
        shares=(1, 1),
        microbatches=2,
        latency_s=1e-3,
        bytes_per_s=125e6,
        flops_per_s=50e9,
        added_per_s=1e9,
        message_s=1e-4,
        ends_s=(0.2, 0.15),
        passed_s=(0.0, 0.02, 0.0, 0.02),
        busy_s=(0.12, 0.12),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_each_kind_is_chosen_where_it_pays_and_is_said_in_a_sentence() -> None:
    here = situation()
    sync = build("auto", FACTS, here)
    chosen = {one.name: entry_of(sync, one.name) for one in FACTS}
    taken = {name: (entry.exchange, entry.ship) for name, entry in chosen.items()}
    assert taken["0.table"] == ("rows", "rows")
    assert taken["1.weight"] == ("factors", "factors")
    assert taken["2.weight"] == ("tree", "dense")
    said = [why(one, chosen[one.name], here) for one in FACTS]
    assert "5.0% of its 20,000 rows" in said[0]
    assert said[1].startswith("K is 16 rows, fewer than the break-even of ")
    assert said[2].startswith("K is 2,048 rows, more than the break-even of ")
    assert said[2].endswith("dense is cheaper.")
    assert said[3] == "A vector goes whole."
    sent = {x.name: size(x.sent_bytes) for x in kinds(TABLE, here)}
    in_place = f"{sent['rows']} in place of {sent['tree']}"
    assert said[0].endswith(f": {in_place}."), "the figures of the table"
    whole = [why(one, SyncEntry(), here) for one in (TABLE, WIDE)]
    assert whole[0].endswith(f"these alone would be cheaper, {in_place}.")
    assert whole[1].endswith(": factors would be cheaper for it alone.")
    even = break_even(WIDE, here)
    assert even is not None
    for rows, end in (
        ((even.timed + even.by_bytes) / 2, " for it alone; in a step its fewer bytes"),
        (even.by_bytes * 2, ": dense would be cheaper for it alone."),
    ):
        beyond = replace(WIDE, rows_k=round(rows / 2))
        assert end in why(beyond, SyncEntry(exchange="factors"), here)
    many = replace(WIDE, rows_k=round(even.by_bytes))
    said = why(many, SyncEntry(exchange="factors"), here, timed=False)
    assert said.endswith(": dense would be fewer bytes.")
    apart = [(TABLE, "rows"), (WIDE, "factors")]
    for one, kind in apart:
        ship = why(one, SyncEntry(exchange=kind), here)
        assert ship.endswith(f" Its ship goes whole; by {kind} it would be cheaper for it alone.")
        assert ship.startswith(why(one, SyncEntry(exchange=kind, ship=kind), here))
        nobody = why(one, SyncEntry(exchange=kind), replace(here, replica=False))
        assert "ship" not in nobody
    free = why(TABLE, SyncEntry(), here, timed=False)
    assert f"these alone would be fewer bytes, {in_place}" in free
    alone = why(TABLE, SyncEntry(), situation(shares=(2,), replica=True))
    assert alone.endswith("253.9 KiB in place of 4.9 MiB.")


def test_a_slow_device_has_another_break_even_than_bytes_alone() -> None:
    fast, slow = (break_even(WIDE, situation(flops_per_s=x)) for x in (0.0, 1e9))
    assert fast is not None
    assert slow is not None
    assert fast.by_bytes == slow.by_bytes == 2048 * 2048 * 2 / (2 * 4096)
    assert slow.timed < fast.timed < fast.by_bytes
    even = situation(flops_per_s=1e9)
    for rows, kind in ((slow.timed * 0.9, "factors"), (slow.timed * 1.1, "tree")):
        one = replace(WIDE, rows_k=round(rows / 2))
        assert entry_of(build("factors-hybrid", [one], even), one.name).exchange == kind


def test_where_links_have_no_rate_the_one_break_even_is_that_of_bytes() -> None:
    draws = random.Random(3)
    for _ in range(100):
        shape = draws.randint(16, 3000), draws.randint(16, 3000)
        one = replace(WIDE, shape=shape, rows_k=draws.choice((1, 8, 64)))
        here = situation(
            shares=(draws.choice((1, 2, 4)),) * draws.choice((1, 2)),
            bytes_per_s=0.0,
            replica=True,
            copied_bytes_per_s=1.3e9,
        )
        (row,) = explained(Sync(), [one], here)
        assert row.breaks is not None
        assert row.breaks.timed == pytest.approx(row.breaks.by_bytes, rel=1e-12)
        assert "by bytes alone" not in row.why


def test_auto_is_never_slower_than_any_other_and_tree_where_nothing_is_to_be_won() -> None:
    draws = random.Random(7)
    for _ in range(60):
        several = draws.choice((1, 2, 3, 4))
        here = situation(
            shares=tuple(draws.choice((1, 2)) for _ in range(several)),
            zones=draws.choice(((), tuple(sorted(draws.choice((0, 1)) for _ in range(several))))),
            bytes_per_s=draws.choice((3e7, 125e6, 1.25e9)),
            node_bytes_per_s=draws.choice((0.0, 1.25e8)),
            flops_per_s=draws.choice((2e9, 50e9)),
            replica=draws.choice((False, True)),
            copied_bytes_per_s=draws.choice((0.0, 1e8, 1e9)),
        )
        facts = [replace(WIDE, rows_k=draws.choice((1, 8, 64))), TABLE, SQUARE, BIAS]
        found = {}
        for name in BUILDERS:
            try:
                found[name] = price(resolve(build(name, facts, here), facts, here))
            except InputError:
                assert name == "zoned"
        # Where it would win less than LEAST it is `tree`.
        tree, best_s = found["tree"], min(one.step_s for one in found.values())
        taken = found["auto"].step_s
        assert taken <= 1.002 * best_s or taken == tree.step_s <= best_s / (1 - LEAST)
        won = 1 - found["auto"].cost_s / tree.cost_s
        assert won <= most_won(facts, here) + 0.002
    assert build("auto", [SQUARE, BIAS], situation(shares=(1,))) == Sync()
    assert build("auto", [], situation()) == Sync()


def test_buckets_hide_what_leaves_before_the_backward_ends() -> None:
    facts = [replace(SQUARE, name=f"{layer}.w", layer=layer) for layer in range(4)]
    here = situation(message_s=0.0, added_per_s=0.0)
    late, early = (resolve(Sync(bucket=bound), facts, here) for bound in (None, 0))
    assert can_hide(late) == 0
    # Of two layers the upper one's partial sums are on their way before the backward ends.
    shard_s = SQUARE.bytes / 2 / 125e6
    assert can_hide(early) == pytest.approx(shard_s / (4 * shard_s + 1e-3))
    assert price(early).step_s < price(late).step_s


def test_balanced_gives_each_pipeline_as_much_and_a_pattern_matches_one_name() -> None:
    facts = [replace(BIAS, name=f"0.b[{x}]", shape=(x,), layer=0) for x in (8, 5, 4, 3)]
    sync = build("balanced", facts, situation())
    placed = [entry_of(sync, one.name) for one in facts]
    assert [(entry.exchange, entry.owner) for entry in placed] == [
        ("owner", owner) for owner in (0, 1, 1, 0)
    ]
    assert entry_of(Sync(rules=(SyncRule(match=exactly("a*"), ship="rows"),)), "ab") == SyncEntry()


def test_bytes_that_are_billed_are_worth_a_longer_step() -> None:
    """At $0.02 a GB and $3.60 an hour for all nodes, a GB is twenty seconds."""
    here = situation(cut=(0, 4), shares=(1,) * 4, zones=(0, 0, 1, 1), ends_s=(0.2,), busy_s=(0.12,))
    free, billed = (
        build("auto", [SQUARE], replace(here, billed_s_per_byte=x)) for x in (0.0, 20e-9)
    )
    assert entry_of(free, SQUARE.name).exchange == "tree"
    assert entry_of(billed, SQUARE.name).exchange == "zoned"
    assert billed.zones == here.zones


def test_what_cannot_be_built_is_said_in_one_line() -> None:
    with pytest.raises(InputError, match="'ring' is no builder; take one of tree, owner"):
        build("ring", FACTS, situation())
    with pytest.raises(InputError, match="two zones or more"):
        build("zoned", FACTS, situation())
    with pytest.raises(InputError, match=r"no zone holds siblings .* as \[0, 0, 1, 1\]"):
        build("zoned", FACTS, situation(shares=(1,) * 4, zones=(0, 1, 1, 0)))
