"""The partition under a memory limit: equal to brute force over the memory report, ring included;
unchanged where the limit does not bind; and a refusal that names the layer and the bytes."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.errors import InputError
from bamboo.planner.layers.bounded import (
    MOST_BYTES,
    Bounds,
    FitsNowhere,
    bounded_cut,
    bounded_partition,
    tightest_cut,
)
from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.layers.memory import memory_report
from bamboo.planner.layers.partition import partition
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REDUNDANCY_MODES, REPLICA_MODES, redundancy_of
from bamboo.topology.virtual_nodes import BatchShape

CASES = 200
Cut = tuple[int, ...]


def layer(parameters: int, *, output: int = 0, activations: int = 0, kept: int = 8) -> LayerFacts:
    """`kept`: bytes a parameter of what the optimizer keeps."""
    return LayerFacts(
        name="layer",
        parameters=parameters,
        moment_bytes=kept * parameters,
        forward_flops=1.0,
        output_bytes=output,
        activation_bytes=activations,
    )


def fullest(facts: Sequence[LayerFacts], cut: Cut, bounds: Bounds) -> int:
    report = memory_report(facts, cut=cut, grid=bounds.grid, shape=bounds.shape, mode=bounds.mode)
    return max(stage.total for stage in report)


def all_cuts(layers: int, stages: int) -> list[Cut]:
    return [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]


def rule(costs: Sequence[int], cut: Cut) -> tuple[int, int, Cut]:
    """Least slowest stage, then least sum of squares, then the first."""
    sums = [sum(costs[first:stop]) for first, stop in pairwise(cut)]
    return max(sums), sum(s * s for s in sums), cut


def drawn_redundancy(random_of: random.Random, stages: int) -> str:
    """Of all stages the same, or of each its own."""
    if random_of.random() < 0.5:
        return random_of.choice(REDUNDANCY_MODES)
    return redundancy_of([random_of.choice(REPLICA_MODES) for _ in range(stages)])


def drawn(number: int) -> tuple[list[LayerFacts], list[int], Bounds, list[tuple[int, Cut]]]:
    """A case: at most 9 layers, a limit that some cuts meet and some do not, where they differ."""
    random_of = random.Random(number)
    layers = random_of.randint(2, 9)
    stages = random_of.randint(2, layers)
    pipelines = random_of.randint(1, 3)
    most = random_of.choice([1, 3, 50])
    facts = [
        layer(
            random_of.randint(0, most),
            output=random_of.randint(0, most) * 4,
            activations=random_of.randint(0, most) * 4,
            kept=(8, 0, 4, 1)[place * number % 4],
        )
        for place in range(layers)
    ]
    again = random.Random(f"again {number}")
    if again.random() < 0.5:  # some layers keep their input alone
        held = [again.choice([None, 0, x.activation_bytes // 2, 8]) for x in facts]
        facts = [replace(x, input_bytes=size) for x, size in zip(facts, held, strict=True)]
    back = random.Random(f"back {number}")
    if back.random() < 0.3:  # what comes back is not what went there
        facts = [replace(x, back_bytes=back.choice([None, 0, 4 * most])) for x in facts]
    if random.Random(f"host {number}").random() < 0.3:
        facts = [replace(x, host_moments=True) for x in facts]
    norms = random.Random(f"statistics {number}")
    if norms.random() < 0.3:
        facts = [replace(x, statistics=norms.randint(0, most)) for x in facts]
    if random.Random(f"apart {number}").random() < 0.5:
        facts = [replace(x, apart=True) for x in facts]
    costs = [random_of.randint(0, random_of.choice([1, 5, 30])) for _ in range(layers)]
    bounds = Bounds(
        grid=Grid(pipelines=pipelines, stages=stages),
        shape=BatchShape(
            virtual_nodes=random_of.randint(pipelines, 5), microbatches=random_of.randint(1, 3)
        ),
        mode=drawn_redundancy(random_of, stages),
        limit_bytes=1,
    )
    cuts = [(fullest(facts, cut, bounds), cut) for cut in all_cuts(layers, stages)]
    needs = sorted({need for need, _ in cuts})
    limit = random_of.choice(needs[: 1 + len(needs) // 2]) + random_of.choice([-1, 0, 0, 1])
    bounds = Bounds(
        grid=bounds.grid, shape=bounds.shape, mode=bounds.mode, limit_bytes=max(limit, 1)
    )
    return facts, costs, bounds, cuts


@pytest.mark.timeout(120)
def test_on_random_cases_the_cut_is_that_of_brute_force() -> None:
    unlike = bound = nowhere = 0
    for number in range(CASES):
        facts, costs, bounds, cuts = drawn(number)
        fitting = [cut for need, cut in cuts if need <= bounds.limit_bytes]
        best = min(fitting, key=lambda cut: rule(costs, cut), default=None)
        assert bounded_cut(facts, costs, bounds) == best, f"case {number}"
        free = min((cut for _, cut in cuts), key=lambda cut: rule(costs, cut))
        unlike += best is not None and best != free
        bound += best is not None and len(fitting) < len(cuts)
        nowhere += best is None
    assert unlike > CASES // 8, "the limit is to decide in many of the cases"
    assert bound > CASES // 4
    assert nowhere > CASES // 20


@given(st.integers(0, 10**9), st.sampled_from(("stash", "eager")))
@settings(max_examples=60, deadline=None)
def test_the_ring_is_closed(number: int, mode: str) -> None:
    """Two stages and a limit near what is needed: each is the other's next one."""
    random_of = random.Random(number)
    facts = [layer(random_of.randint(0, 40), activations=4) for _ in range(8)]
    costs = [random_of.randint(0, 9) for _ in facts]
    bounds = Bounds(
        grid=Grid(pipelines=1, stages=random_of.choice([2, 3])),
        shape=BatchShape(virtual_nodes=1, microbatches=2),
        mode=mode,
        limit_bytes=1,
    )
    cuts = [(fullest(facts, cut, bounds), cut) for cut in all_cuts(8, bounds.grid.stages)]
    for limit, _ in cuts:
        there = Bounds(grid=bounds.grid, shape=bounds.shape, mode=mode, limit_bytes=max(limit, 1))
        fitting = [cut for need, cut in cuts if need <= there.limit_bytes]
        assert bounded_cut(facts, costs, there) == min(fitting, key=lambda cut: rule(costs, cut))


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=30), st.data())
@settings(deadline=None)
def test_a_limit_that_binds_nowhere_changes_nothing(
    costs: list[float], data: st.DataObject
) -> None:
    bounds = Bounds(
        grid=Grid(pipelines=1, stages=data.draw(st.integers(2, len(costs)))),
        shape=BatchShape(virtual_nodes=1, microbatches=2),
        mode=data.draw(st.sampled_from(REDUNDANCY_MODES)),
        limit_bytes=MOST_BYTES,
    )
    facts = [layer(3, output=4, activations=8) for _ in costs]
    assert bounded_partition(facts, costs, bounds) == partition(costs, bounds.grid.stages)


def test_what_fits_nowhere_names_the_layer_and_the_bytes() -> None:
    facts = [layer(10), layer(10), layer(5000), layer(10)]
    bounds = Bounds(
        grid=Grid(pipelines=1, stages=2),
        shape=BatchShape(virtual_nodes=1, microbatches=1),
        mode="off",
        limit_bytes=50_000,
    )
    # 16 bytes a parameter: itself, its gradient, two moments.
    with pytest.raises(FitsNowhere, match=r"layer 2 \(layer\) does not fit.* 80,160 bytes") as was:
        bounded_partition(facts, [1, 1, 1, 1], bounds)
    error = was.value
    assert (error.layer, error.needs_bytes, error.limit_bytes) == (2, 5010 * 16, 50_000)
    assert isinstance(error, InputError)


@pytest.mark.timeout(120)
def test_the_bytes_of_a_refusal_are_the_least_there_are() -> None:
    for number in range(30):
        facts, costs, bounds, cuts = drawn(number)
        assert fullest(facts, tightest_cut(facts, costs, bounds), bounds) == min(cuts)[0]


def test_a_limit_that_is_no_memory_is_refused() -> None:
    for limit in (0, MOST_BYTES + 1):
        bounds = Bounds(
            grid=Grid(pipelines=1, stages=2),
            shape=BatchShape(virtual_nodes=1, microbatches=1),
            mode="off",
            limit_bytes=limit,
        )
        with pytest.raises(InputError, match="a node's memory of"):
            bounded_cut([layer(1), layer(1)], [1, 1], bounds)


def test_sizes_beyond_all_counting_are_refused() -> None:
    bounds = Bounds(
        grid=Grid(pipelines=1, stages=2),
        shape=BatchShape(virtual_nodes=1, microbatches=1),
        mode="off",
        limit_bytes=MOST_BYTES,
    )
    with pytest.raises(InputError, match="look for a size that is too large"):
        bounded_cut([layer(2**58), layer(1)], [1, 1], bounds)
    with pytest.raises(InputError, match="every cut needs a node of more than"):
        tightest_cut([layer(2**47), layer(1)], [1, 1], bounds)
