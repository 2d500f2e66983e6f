"""A profile as a value: its JSON, its stash as the memory report has it, what a planner takes."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.planner.layers.memory import STASHED_STEPS, memory_report
from bamboo.planner.profiles.profiled import LayerProfile, Profile, alike, profiled_workload
from bamboo.planner.step.step_time import StepTimes
from bamboo.topology.grid import Grid
from bamboo.topology.virtual_nodes import BatchShape
from tests.planner.profiles.made_up import LAYERS, PROFILES, layer, profile

SHAPE = BatchShape(virtual_nodes=2, microbatches=3)


@given(PROFILES)
def test_json_gives_the_same_value_and_text(one: Profile) -> None:
    text = one.to_json()
    again = Profile.from_json(text)
    assert again == one
    assert again.to_json() == text


def test_the_form_of_the_json_stays() -> None:
    raw = json.loads(profile(layer(0)).to_json())
    assert raw["schema_version"] == 2
    assert sorted(raw) == [
        *("context", "device", "job", "layers", "limit_s", "load", "machine", "microbatch"),
        *("modelled", "schema_version", "seen", "source", "threads", "torch", "unit"),
    ]
    assert sorted(raw["layers"][0]) == [
        *("activation_bytes", "backward", "backward_s", "forward", "forward_s", "frozen_bytes"),
        *("input_gradient_bytes", "measured_as", "moment_bytes", "name", "optimizer"),
        *("optimizer_s", "output_bytes", "parameter_bytes", "parameters", "repeats", "scatter"),
        "synced",
    ]
    assert sorted(raw["layers"][0]["forward"]) == [
        *("kernels", "other_bytes", "product_bytes", "product_flops")
    ]


def damaged(raw: dict[str, Any], place: tuple[Any, ...], value: Any) -> str:
    """The JSON with another value at a place; `...` takes it away."""
    inner: Any = raw
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return json.dumps(raw)


@pytest.mark.parametrize(
    ("place", "value", "word"),
    [
        (("schema_version",), 1, "schema 1"),
        (("schema_version",), ..., "schema None"),
        (("torch",), ..., "torch"),
        (("extra",), 1, "extra"),
        (("layers",), [], "at least one layer"),
        (("layers",), {}, "is no list"),
        (("layers", 1), 7, r"layers\[1\] lacks"),
        (("layers", 0, "forward_s"), -1.0, "forward_s = -1.0"),
        (("layers", 0, "forward_s"), True, "forward_s = True"),
        (("layers", 0, "forward_s"), float("nan"), "forward_s = nan"),
        (("layers", 0, "parameters"), 1.5, "parameters = 1.5"),
        (("layers", 0, "forward", "kernels"), "3", "kernels = '3'"),
        (("modelled",), 1, "modelled = 1"),
    ],
)
def test_what_is_no_profile_is_refused(place: tuple[Any, ...], value: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Profile.from_json(damaged(json.loads(profile().to_json()), place, value))


@pytest.mark.parametrize("text", ["[]", "null", "3", "", "{"])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Profile.from_json(text)


@given(st.lists(LAYERS, min_size=2, max_size=6))
def test_the_stash_is_that_of_the_memory_report(layers: list[LayerProfile]) -> None:
    one = profile(*layers)
    stages = len(layers)
    report = memory_report(
        one.facts(),
        cut=range(stages + 1),
        grid=Grid(pipelines=1, stages=stages),
        shape=SHAPE,
        mode="stash",
    )
    assert [stage.stash for stage in report] == [
        STASHED_STEPS * SHAPE.total * one.stash_bytes(index) for index in range(stages)
    ]


@given(PROFILES)
def test_rows_of_alike_layers_cover_all_of_them(one: Profile) -> None:
    groups = list(alike(one))
    assert [index for group in groups for index in group] == list(range(len(one.layers)))
    kinds = [{one.layers[i].measured_as for i in group} for group in groups]
    assert all(len(kind) == 1 for kind in kinds)
    assert all(a != b for a, b in pairwise(kinds))


@given(PROFILES)
def test_who_does_not_fit_is_who_needs_most(one: Profile) -> None:
    most = max(each.least_bytes for each in one.layers)
    assert one.largest_beyond(most) is None
    if most > 0:
        index = one.largest_beyond(most - 1)
        assert index is not None
        assert one.layers[index].least_bytes == most


def test_a_planner_takes_the_times() -> None:
    one = profile()
    work = profiled_workload(one, shape=SHAPE, batch=12)
    assert work.source == one.source
    assert work.forward_s == (0.001, 0.002, 0.002, 0.004)
    assert work.backward_s == (0.002, 0.004, 0.004, 0.008)
    assert work.optimizer_s == tuple(layer.optimizer_s for layer in one.layers)
    assert sum(work.optimizer_s) > 0
    assert work.cut(2) == (0, 3, 4)
    assert [facts.parameters for facts in work.layers] == [1000, 2000, 2000, 4000]
    grid = Grid(pipelines=1, stages=2)
    step_s = StepTimes(work, "off").calm_s(grid, (SHAPE.virtual_nodes,))
    longest_s, total_s = 0.015, 0.027
    step_s -= sum(work.optimizer_s)
    assert SHAPE.total * longest_s <= step_s <= SHAPE.total * total_s
    # Links are for whoever knows them.
    slow = replace(work, latency_s=0.5)
    assert StepTimes(slow, "off").calm_s(grid, (SHAPE.virtual_nodes,)) > step_s


def test_a_layer_of_no_weight_has_no_say_in_the_scatter() -> None:
    heavy, light = layer(4), replace(layer(0), forward_s=1e-6, backward_s=1e-6, scatter=3.0)
    assert profile(heavy, light).scatter == heavy.scatter


def test_a_profile_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nested too deep|schema"):
        Profile.from_json("[" * 5000)
