"""A strategy survives JSON, and its hash sees every semantic value and no placement."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.topology.grid import Grid
from bamboo.topology.strategy import (
    REDUNDANCY_MODES,
    REPLICA_MODES,
    Placement,
    Semantics,
    Strategy,
    canonical_json,
    how_redundant,
    modes_of,
    on_stages,
    redundancy_of,
    stage_modes,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=8), json_values, max_size=4)

SEMANTICS = Semantics(
    model={"model": "gpt", "layers": 8},
    data_digest="d1",
    batch=16,
    microbatch=2,
    virtual_nodes=1,
    seed=1,
    steps=100,
    optimizer={"name": "adamw", "learning_rate": 1e-3},
    precision="fp32",
    clip_norm=1.0,
)
PLACEMENT = Placement(cut=(0, 3, 5, 8, 10), grid=Grid(pipelines=1, stages=4), redundancy="stash")
CHANGED = {
    "model": {"model": "gpt", "layers": 9},
    "data_digest": "d2",
    "batch": 32,
    "microbatch": 4,
    "virtual_nodes": 2,
    "seed": 2,
    "steps": 101,
    "optimizer": {"name": "adamw", "learning_rate": 1.1e-3},
    "precision": "bf16",
    "clip_norm": 0.5,
    "numerics": {"torch": "2.13.0", "threads": 1},
    "init": "0a" * 32,
    "segments": [{"to_step": 60, "steps": 80, "learning_rate": 1e-3}],
}


@st.composite
def strategies(draw: st.DrawFn) -> Strategy:
    counts = st.integers(1, 1000)
    stages = draw(st.integers(2, 6))
    widths = draw(st.lists(st.integers(1, 5), min_size=stages, max_size=stages))
    return Strategy(
        semantics=Semantics(
            model=draw(objects),
            data_digest=draw(st.text()),
            batch=draw(counts),
            microbatch=draw(counts),
            virtual_nodes=draw(counts),
            seed=draw(counts),
            steps=draw(counts),
            optimizer=draw(objects),
            precision="fp32",
            clip_norm=draw(st.floats(0, 10)),
            numerics=draw(objects),
        ),
        placement=Placement(
            cut=tuple(sum(widths[:p]) for p in range(stages + 1)),
            grid=Grid(pipelines=draw(st.integers(1, 4)), stages=stages),
            redundancy=draw(
                st.sampled_from(REDUNDANCY_MODES)
                | st.lists(st.sampled_from(REPLICA_MODES), min_size=stages, max_size=stages).map(
                    redundancy_of
                )
            ),
        ),
    )


@given(strategies())
def test_json_and_back_is_the_same(strategy: Strategy) -> None:
    text = strategy.to_json()
    assert Strategy.from_json(text) == strategy
    assert Strategy.from_json(text).to_json() == text


def test_modes_of_stages_are_read_as_they_are_written() -> None:
    each = ("stash", "full", "gap", "eager")
    assert modes_of(redundancy_of(each)) == stage_modes(redundancy_of(each), 4) == each
    assert redundancy_of(("full",) * 4) == "full"
    assert stage_modes("full", 3) == ("full",) * 3
    assert how_redundant("off") < how_redundant("stash") < how_redundant("stash,gap")
    assert how_redundant("stash,gap") < how_redundant("gap")


def test_on_another_number_of_stages_all_have_the_least_redundant() -> None:
    assert on_stages("eager,gap,full", 3) == "eager,gap,full"
    assert on_stages("eager,gap,full", 2) == "gap"
    assert stage_modes("full,stash", 4) == ("stash",) * 4
    assert on_stages("peer", 2) == "peer"


@pytest.mark.parametrize("text", ["", "stash,", "stash, full", "peer,peer", "auto", "stash,some"])
def test_what_is_no_redundancy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no redundancy; take one of off, stash"):
        modes_of(text)


def test_every_semantic_value_is_in_the_hash() -> None:
    assert set(CHANGED) == {field.name for field in fields(Semantics)}
    hashes = {replace(SEMANTICS, **{name: value}).hash() for name, value in CHANGED.items()}
    assert len(hashes | {SEMANTICS.hash()}) == len(CHANGED) + 1


def test_the_hash_of_finished_runs_stays() -> None:
    # Written down, not computed: `verify` and `resume` compare it with what runs have stored.
    assert SEMANTICS.hash() == "9f5fca3d3f041e67"
    older = replace(SEMANTICS, numerics={"torch": "2.13.0", "threads": 1})
    assert older.hash() == "57d7c7154cca9fa3", "of a release that counted them"


def test_a_state_has_the_hash_of_the_segment_that_its_step_ends_in() -> None:
    first = replace(SEMANTICS, steps=30)
    second = replace(
        SEMANTICS,
        steps=60,
        optimizer={**SEMANTICS.optimizer, "learning_rate": 2e-3},
        segments=[{"to_step": 30, "steps": 30, "learning_rate": 1e-3}],
    )
    third = replace(
        second,
        steps=90,
        optimizer={**SEMANTICS.optimizer, "learning_rate": 3e-3},
        segments=[*second.segments, {"to_step": 45, "steps": 60, "learning_rate": 2e-3}],
    )
    hashes = [one.hash() for one in (first, second, third)]
    assert len(set(hashes)) == 3
    assert [third.of_segment(number).hash() for number in range(3)] == hashes
    steps = (0, 1, 30, 31, 45, 46, 90)
    assert [hashes.index(third.hash_at(step)) for step in steps] == [0, 0, 0, 1, 1, 2, 2]
    assert [second.hash_at(step) for step in (30, 31, 60)] == [hashes[0], hashes[1], hashes[1]]
    assert SEMANTICS.hash_at(7) == SEMANTICS.hash()
    ends = [(one["from_step"], one["to_step"]) for one in third.listed(90)]
    assert ends == [(0, 30), (30, 45), (45, 90)]
    assert [one["semantic_hash"] for one in third.listed(90)] == hashes
    assert [one["to_step"] for one in third.listed(45)] == [30, 45], "of the third no step is done"
    assert [one["to_step"] for one in third.listed(40)] == [30, 40], "it went back to before that"
    placed = Strategy(semantics=third, placement=PLACEMENT)
    assert Strategy.from_json(placed.to_json()) == placed


def test_placement_is_not_in_the_hash() -> None:
    one = Strategy(semantics=SEMANTICS, placement=PLACEMENT)
    other = Strategy(semantics=SEMANTICS, placement=replace(PLACEMENT, redundancy="full"))
    first, second = json.loads(one.to_json()), json.loads(other.to_json())
    assert first["semantic_hash"] == second["semantic_hash"]
    assert first["placement"] != second["placement"]


def test_a_stage_is_a_slice_of_the_layers() -> None:
    assert [list(PLACEMENT.layers_of(p)) for p in range(4)] == [
        [0, 1, 2],
        [3, 4],
        [5, 6, 7],
        [8, 9],
    ]


def test_another_schema_is_refused() -> None:
    raw = json.loads(Strategy(semantics=SEMANTICS, placement=PLACEMENT).to_json())
    raw["schema_version"] = 99
    with pytest.raises(ValueError, match="schema 99"):
        Strategy.from_json(json.dumps(raw))


@pytest.mark.parametrize("missing", ["placement", "semantics", "semantic_hash"])
def test_what_lacks_something_is_refused(missing: str) -> None:
    raw = json.loads(Strategy(semantics=SEMANTICS, placement=PLACEMENT).to_json())
    for text in (
        json.dumps({key: value for key, value in raw.items() if key != missing}),
        json.dumps(raw | {missing: None}),
        "[]",
        "",
    ):
        with pytest.raises(ValueError):
            Strategy.from_json(text)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"cut": [0, 3, 5, 8]}, "does not make 4 stages"),
        ({"cut": [0, 5, 3, 8, 10]}, "does not make 4 stages"),
        ({"cut": [1, 3, 5, 8, 10]}, "does not make 4 stages"),
        ({"cut": [0, 3, 5, 8, 10.0]}, "whole numbers"),
        ({"cut": [0, 3, 5, 8, True]}, "whole numbers"),
        ({"cut": None}, "lacks something"),
        ({"grid": {"pipelines": 1}}, "lacks something"),
        ({"grid": {"pipelines": 1, "stages": 4, "more": 1}}, "has too much"),
        ({"grid": {"pipelines": 0, "stages": 4}}, "D >= 1"),
        ({"redundancy": "auto"}, "'auto' is no redundancy"),
        ({"redundancy": ["off"]}, "is no redundancy"),
        ({"redundancy": "stash,off,stash,stash"}, "for each stage one of stash, gap, eager, full"),
        ({"redundancy": "stash,full,gap"}, "names 3 modes for 4 stages"),
    ],
)
def test_a_placement_that_no_model_could_have_is_refused(
    change: dict[str, object], word: str
) -> None:
    raw = json.loads(Strategy(semantics=SEMANTICS, placement=PLACEMENT).to_json())
    raw["placement"] |= change
    with pytest.raises(ValueError, match=word):
        Strategy.from_json(json.dumps(raw))


def test_a_changed_content_is_refused() -> None:
    raw = json.loads(Strategy(semantics=SEMANTICS, placement=PLACEMENT).to_json())
    raw["semantics"]["seed"] = 2
    with pytest.raises(ValueError, match="hash does not match"):
        Strategy.from_json(json.dumps(raw))


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=5))
def test_equal_values_give_equal_text(value: dict[str, object]) -> None:
    turned = dict(reversed(value.items()))
    assert canonical_json(value) == canonical_json(turned)
    assert json.loads(canonical_json(value)) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_does_not_have_is_refused(value: float) -> None:
    with pytest.raises(ValueError):
        canonical_json({"loss": value})


def test_a_strategy_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nested too deep|schema"):
        Strategy.from_json("[" * 5000)
