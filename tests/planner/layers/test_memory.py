"""The memory report: counted by hand for a small case, and bounded for all."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.layers.memory import StageBytes, memory_report, partials_at_end, partials_held
from bamboo.planner.profiles.workload import NO_SAVING, Saving, WorkloadFigures, saved
from bamboo.topology.grid import Grid
from bamboo.topology.reduction import subtrees
from bamboo.topology.strategy import REDUNDANCY_MODES, REPLICA_MODES
from bamboo.topology.virtual_nodes import BatchShape, blocks

LAYERS = [
    LayerFacts(
        name=f"l{n}",
        parameters=10 * (n + 1),
        moment_bytes=80 * (n + 1),
        forward_flops=1.0,
        output_bytes=100 * (n + 1),
        activation_bytes=1000 * (n + 1),
    )
    for n in range(4)
]
GRID = Grid(pipelines=1, stages=2)
SHAPE = BatchShape(virtual_nodes=1, microbatches=3)


def test_a_case_counted_by_hand() -> None:
    first, last = memory_report(LAYERS, cut=(0, 3, 4), grid=GRID, shape=SHAPE, mode="eager")
    assert (first.parameters, last.parameters) == (240, 160)
    assert (first.gradients, first.moments, first.partials) == (240, 480, 0)
    assert first.activations == 3 * 6000
    assert last.activations == 1 * 4000
    assert first.stash == 2 * 3 * 300
    assert last.stash == 2 * 3 * 300
    assert (first.replica, last.replica) == (4 * 160, 4 * 240)
    assert (first.shipping, last.shipping) == (240, 160)
    assert (first.ahead, last.ahead) == (3 * 4000, 3 * 6000)
    assert first.calm == 240 + 240 + 480 + 18000 + 1800 + 640 + 240 + 12000
    # After a takeover the next stage's microbatches are those that were computed ahead.
    assert (first.takeover, last.takeover) == (2 * 3 * 600, 2 * 3 * 600)
    assert (first.total, first.host) == (first.calm + 3600, 0)


def test_a_stash_keeps_what_a_stage_sends_on_and_what_it_sends_back() -> None:
    masked = [replace(layer, back_bytes=7) for layer in LAYERS]
    first, last = memory_report(masked, cut=(0, 3, 4), grid=GRID, shape=SHAPE, mode="stash")
    assert (first.stash, last.stash) == (2 * 3 * 300, 2 * 3 * 7)


def test_off_keeps_no_copy_and_stash_computes_nothing_ahead() -> None:
    off = memory_report(LAYERS, cut=(0, 2, 4), grid=GRID, shape=SHAPE, mode="off")
    assert all(s.replica == s.stash == s.shipping == s.ahead == 0 for s in off)
    stash = memory_report(LAYERS, cut=(0, 2, 4), grid=GRID, shape=SHAPE, mode="stash")
    assert all(s.replica > 0 and s.stash > 0 and s.ahead == 0 for s in stash)


def test_a_cut_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not cut 4 layers into 2 stages"):
        memory_report(LAYERS, cut=(0, 2), grid=GRID, shape=SHAPE, mode="off")


@given(st.integers(1, 24), st.integers(1, 8))
def test_partials_are_those_of_the_tree_and_few(virtual_nodes: int, pipelines: int) -> None:
    if pipelines > virtual_nodes:
        return
    for block in blocks(virtual_nodes, pipelines):
        at_end = len(subtrees(block.start, block.stop, virtual_nodes))
        assert partials_at_end(block, virtual_nodes) == at_end
        held = partials_held(block, virtual_nodes)
        assert at_end <= max(held, 1)
        assert held <= 2 * len(block).bit_length() + 1


def test_the_node_before_a_stage_holds_what_is_computed_ahead_of_it() -> None:
    grid, shape = Grid(pipelines=1, stages=2), BatchShape(virtual_nodes=2, microbatches=3)

    def ahead(mode: str) -> list[int]:
        report = memory_report(LAYERS, cut=(0, 2, 4), grid=grid, shape=shape, mode=mode)
        return [node.ahead for node in report]

    both = ahead("eager")
    assert min(both) > 0
    assert ahead("stash,full") == [both[0], 0]
    assert ahead("gap,stash") == [0, both[1]]


@given(st.sampled_from(REDUNDANCY_MODES), st.integers(1, 4), st.integers(1, 5))
def test_each_mode_holds_at_least_what_the_cheaper_one_holds(
    mode: str, pipelines: int, microbatches: int
) -> None:
    grid = Grid(pipelines=pipelines, stages=2)
    shape = BatchShape(virtual_nodes=4, microbatches=microbatches)
    at = REDUNDANCY_MODES.index(mode)
    totals = [
        [s.total for s in memory_report(LAYERS, cut=(0, 2, 4), grid=grid, shape=shape, mode=m)]
        for m in REDUNDANCY_MODES[: at + 1]
    ]
    assert all(low <= high for low, high in zip(totals[0], totals[-1], strict=True))


def test_a_takeover_counted_by_hand() -> None:
    """Three stages; the node of the first also computes the second, whose 2 + 1 microbatches are in
    flight, once that is lost."""
    shape = BatchShape(virtual_nodes=4, microbatches=2)
    grid, again = Grid(pipelines=1, stages=3), saved(timed(LAYERS), Saving(recompute=True)).layers

    def taken(layers: Sequence[LayerFacts], mode: str) -> list[int]:
        found = memory_report(layers, cut=(0, 1, 3, 4), grid=grid, shape=shape, mode=mode)
        assert all(one.total == one.calm + one.takeover for one in found)
        return [one.takeover for one in found]

    # Two partial sums wait beside the one in progress; messages are those of the widest boundary.
    # The reduced gradient goes to a new shadow, and a second replica comes.
    sums, messages = ((2 + 1 + 4) * 200, (2 + 1 + 4) * 160, (2 + 1 + 4) * 40), 2 * 8 * 2 * 300
    in_flight = (3 * 5000, 1 * 4000, 4 * 1000)
    stash = [sum(parts) + messages for parts in zip(sums, in_flight, strict=True)]
    assert taken(LAYERS, "stash") == stash
    for mode in ("gap", "eager", "full"):  # all of a step may be in flight already
        assert taken(LAYERS, mode) == [each + messages for each in sums]
    assert taken(LAYERS, "off") == taken(LAYERS, "peer") == [0, 0, 0]
    # The largest layer that is computed again may be of either stage.
    inputs, more = (3 * 300, 4000, 4 * 100), (2800 - 900, 0, 2800)
    parts = zip(sums, inputs, more, strict=True)
    assert taken(again, "stash") == [sum(each) + messages for each in parts]


def test_what_a_step_sees_of_batch_norms_goes_where_gradients_go() -> None:
    plain = report(LAYERS, (0, 2, 4), "stash")
    normed = report([replace(x, statistics=25) for x in LAYERS], (0, 2, 4), "stash")
    for before, after in zip(plain, normed, strict=True):
        places = ("gradients", "shipping", "replica")
        assert [getattr(after, x) - getattr(before, x) for x in places] == [2 * 100] * 3
        assert (after.parameters, after.moments) == (before.parameters, before.moments)


def test_the_exchange_between_pipelines_counted_by_hand() -> None:
    """Two pipelines of two virtual nodes each. A partial sum waits beside the one in progress; the
    exchange brings both pipelines' halves and their sum once no microbatch is in flight."""
    grid, shape = Grid(pipelines=2, stages=2), BatchShape(virtual_nodes=4, microbatches=1)
    large = [replace(layer, parameters=1000 * layer.parameters) for layer in LAYERS]

    def counted(layers: Sequence[LayerFacts], mode: str, **kept: bool) -> list[StageBytes]:
        held = [replace(layer, **kept) for layer in layers]
        return [*memory_report(held, cut=(0, 2, 4), grid=grid, shape=shape, mode=mode)]

    first, last = counted(LAYERS, "stash", apart=True)
    assert (first.gradients, first.partials, last.partials) == (120, 120, 280)
    assert (first.activations, last.activations) == (2 * 3000, 1 * 7000)
    # A sum that waits, the gradient of the step before, and the microbatch in flight.
    assert first.takeover == 280 + 280 + 1 * 7000
    first, last = counted(large, "stash", apart=True)
    more = (2 * 120_000 - 2 * 3000, 2 * 280_000 - 7000)
    assert (first.partials, last.partials) == (120_000 + more[0], 280_000 + more[1])
    assert (first.activations, last.activations) == (2 * 3000, 1 * 7000)
    assert first.takeover == 280_000 + 280_000 + 2 * 280_000
    # In the memory of the host lies what was sent in the step before: a half and the sum of one.
    here = counted(large, "stash")
    assert [one.partials - own.partials for one, own in zip(here, (first, last), strict=True)] == [
        120_000,
        280_000,
    ]
    # Whoever has no shadow keeps its gradient for the other pipeline.
    assert [one.shipping for one in counted(large, "off")] == [120_000, 280_000]
    # A layer that is computed again has the room of the sums that come later.
    again = [replace(layer, input_bytes=100) for layer in large]
    first, last = counted(again, "off", apart=True)
    assert [one.activations for one in (first, last)] == [2 * 200, 1 * 200]


@pytest.mark.parametrize("mode", REPLICA_MODES)
def test_a_takeover_leaves_room_for_two_replicas(mode: str) -> None:
    """While a neighbour computes two stages, the node before it has a replica of each."""
    alike = [replace(LAYERS[0], host_moments=True)] * 4
    for facts in (LAYERS[:1] * 4, alike):
        for pipelines in (1, 2):
            nodes = memory_report(
                facts,
                cut=(0, 1, 2, 3, 4),
                grid=Grid(pipelines=pipelines, stages=4),
                shape=BatchShape(virtual_nodes=2, microbatches=1),
                mode=mode,
            )
            assert all(node.takeover >= node.replica for node in nodes)


def test_layers_that_are_computed_again_counted_by_hand() -> None:
    again = saved(timed(LAYERS), Saving(recompute=True)).layers
    (first, last), mode = report(again, (0, 3, 4), "eager"), "full"
    # The inputs: 100 of the first layer (at most its output), 100, 200; the last keeps all.
    assert first.activations == 3 * (100 + 100 + 200) + (3000 - 200)
    assert last.activations == 4000
    assert (first.ahead, last.ahead) == (3 * 4000, 3 * 400)
    assert report(again, (0, 3, 4), mode)[1].ahead == 3 * 400 + 900 + 1900 + 2800
    assert saved(saved(timed(LAYERS), Saving(recompute=True)), NO_SAVING) == timed(LAYERS)


def test_moments_of_a_replica_on_the_host_take_none_of_the_device_and_time_to_copy() -> None:
    work, saving = replace(timed(LAYERS), host_bytes_per_s=1000.0), Saving(host_moments=True)
    first, last = report(saved(work, saving).layers, (0, 3, 4), "eager")
    there = saved(work, NO_SAVING)
    plain = report(there.layers, (0, 3, 4), "eager")
    # A parameter and its gradient are left of four tensors.
    assert (first.replica, last.replica) == (2 * 160, 2 * 240)
    assert [s.total - s.replica for s in (first, last)] == [s.total - s.replica for s in plain]
    # 8 bytes a parameter, to the device and back: a half with the owner's step, a half here.
    assert saved(work, saving).steps_s == tuple(8 * one.parameters / 1000 for one in LAYERS)
    slow = saved(replace(work, optimizer_s=(1.0,) * 4), saving)
    assert slow.steps_s == tuple(1 + 8 * one.parameters / 1000 for one in LAYERS)
    assert saved(saved(work, saving), NO_SAVING) == there
    # Beside a GPU the stash lies in the host's memory, of both stages after a takeover.
    both = 2 * 3 * (300 + 300)
    assert [(s.stash, s.takeover, s.host) for s in plain] == [(0, 0, both)] * 2
    assert [s.host for s in (first, last)] == [both + 2 * 160, both + 2 * 240]
    # Where the device computes in the host's memory, nothing is saved and nothing copied.
    here = saved(timed(LAYERS), saving)
    assert (here.layers, here.steps_s) == (tuple(LAYERS), ())


SIZES = st.integers(0, 1000)


@given(
    st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=3, max_size=8),
    st.sampled_from(REDUNDANCY_MODES),
    st.integers(1, 3),
    st.integers(1, 4),
    st.data(),
)
def test_layers_that_are_computed_again_never_hold_more_and_take_longer(
    drawn: list[tuple[int, int, int]],
    mode: str,
    pipelines: int,
    microbatches: int,
    data: st.DataObject,
) -> None:
    """Where a layer holds at least its input, as `LayerFacts` says."""
    outputs = [output for _, output, _ in drawn]
    facts = [
        LayerFacts(
            name="layer",
            parameters=parameters,
            moment_bytes=8 * parameters,
            forward_flops=1.0,
            output_bytes=output,
            activation_bytes=before + more,
        )
        for (parameters, output, more), before in zip(drawn, [0, *outputs], strict=False)
    ]
    stages = data.draw(st.integers(2, len(facts)))
    inner = st.lists(
        st.integers(1, len(facts) - 1), min_size=stages - 1, max_size=stages - 1, unique=True
    )
    cut = (0, *sorted(data.draw(inner)), len(facts))
    work = timed(facts)
    again = saved(work, Saving(recompute=True))
    grid = Grid(pipelines=pipelines, stages=stages)
    shape = BatchShape(virtual_nodes=3, microbatches=microbatches)
    off, layer = (
        memory_report(x.layers, cut=cut, grid=grid, shape=shape, mode=mode) for x in (work, again)
    )
    for plain, held in zip(off, layer, strict=True):
        assert held.calm <= plain.calm
        assert held.activations <= plain.activations
    assert again.both_s == (*(x + 1.0 for x in work.both_s[:-1]), work.both_s[-1])


def timed(facts: Sequence[LayerFacts]) -> WorkloadFigures:
    """A second a forward, two a backward."""
    return WorkloadFigures(
        name="w",
        source="given",
        layers=tuple(facts),
        forward_s=(1.0,) * len(facts),
        backward_s=(2.0,) * len(facts),
        shape=SHAPE,
        batch=SHAPE.total,
    )


def report(facts: Sequence[LayerFacts], cut: tuple[int, ...], mode: str) -> Sequence[StageBytes]:
    return memory_report(facts, cut=cut, grid=GRID, shape=SHAPE, mode=mode)
