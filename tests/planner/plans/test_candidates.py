"""Plans that fit: all of them and no others, the job's own cut where it can stay, honest about
bits, and a refusal that names the nearest plans."""

from dataclasses import replace

import pytest

from bamboo.errors import InputError
from bamboo.planner.layers.bounded import FitsNowhere
from bamboo.planner.layers.memory import memory_report
from bamboo.planner.plans.candidates import (
    MOST_FORWARDS,
    RECOMPUTE,
    Candidates,
    JobFitsNowhere,
    Room,
    grids_of,
    microbatches_of,
    savings_of,
)
from bamboo.planner.profiles.workload import Saving, saved, with_microbatch
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REDUNDANCY_MODES
from tests.planner.workloads import workload

PLENTY = 2**40


def test_grids_have_a_layer_for_each_stage_and_a_virtual_node_for_each_pipeline() -> None:
    found = {(g.pipelines, g.stages) for g in grids_of(workload(layers=5), range(4, 9))}
    assert found == {(1, 4), (1, 5), (2, 2), (2, 3), (2, 4)}
    few = {(g.pipelines, g.stages) for g in grids_of(workload(layers=5), range(1, 3))}
    assert few == {(1, 1), (2, 1), (1, 2)}
    assert grids_of(workload(), range(0)) == ()


def test_one_stage_has_one_cut_and_no_replica() -> None:
    work = workload()
    plans = Candidates(work, Room(memory_bytes=PLENTY, nodes=range(1, 3), microbatches=(2,)))
    flat = [one for one in plans.all() if one.grid.stages == 1]
    assert {(one.grid.pipelines, one.mode) for one in flat} == {(1, "off"), (2, "off"), (2, "peer")}
    assert {one.cut for one in flat} == {(0, 8)}
    for one in flat:
        (node,) = one.memory
        assert (node.stash, node.replica, node.ahead) == (0, 0, 0)
        # The other pipeline may ask for the gradient of the step before.
        assert node.shipping == (node.gradients if one.grid.pipelines > 1 else 0)
        # One byte less, and no cut helps.
        fits = Room(memory_bytes=node.total, nodes=range(1, 3))
        assert Candidates(work, fits).choice(one.grid, one.mode, 2) == one
        less = Candidates(work, replace(fits, memory_bytes=node.total - 1))
        assert less.choice(one.grid, one.mode, 2) is None
        with pytest.raises(JobFitsNowhere, match=r"layer 7 \(layer 7\) does not fit") as was:
            less.asked(one.grid, one.mode)
        assert was.value.needs_bytes == node.total


def test_microbatches_keep_the_batch_and_the_virtual_nodes() -> None:
    work = workload(virtual_nodes=2, microbatches=4, microbatch=3)
    assert microbatches_of(work) == (12, 6, 4, 3, 2, 1)
    for size in microbatches_of(work):
        other = with_microbatch(work, size)
        assert (other.batch, other.shape.virtual_nodes) == (work.batch, 2)
        assert other.shape.total * size == work.batch
        assert other.microbatch == size
        # All work together is the same; the source says what the figures are.
        assert sum(other.both_s) * other.shape.total == pytest.approx(sum(work.both_s) * 8)
        assert ("in proportion" in other.source) == (size != 3)
    assert (
        with_microbatch(work, 6).layers[0].activation_bytes == 2 * work.layers[0].activation_bytes
    )
    cast = replace(work, layers=tuple(replace(x, cast_bytes=100) for x in work.layers))
    held = [with_microbatch(cast, size).layers[0].activation_bytes - 100 for size in (3, 6, 1)]
    assert held[1:] == [2 * held[0], -(-held[0] // 3)], "casts of weights are as many"
    for size in (0, 5, 24):
        with pytest.raises(ValueError, match="do not make a virtual node"):
            with_microbatch(work, size)


def test_small_microbatches_are_slow_where_an_operation_takes_time_however_small() -> None:
    work = workload(microbatch=4, microbatches=2)
    small = with_microbatch(work, 1, operation_s=0.01)
    assert small.forward_s[0] == pytest.approx(0.01 + 0.01 / 4)
    assert small.backward_s[0] == pytest.approx(0.01 + 0.03 / 4)
    assert with_microbatch(work, 1, operation_s=1.0).forward_s == work.forward_s
    room = Room(memory_bytes=PLENTY, nodes=range(2, 3), operation_s=0.01)
    assert Candidates(work, room).work(1) == small


def test_all_that_is_found_fits_as_the_memory_report_counts_it() -> None:
    work = workload(parameters=4000)
    room = Room(memory_bytes=260_000, nodes=range(2, 9))
    candidates = Candidates(work, room)
    found = list(candidates.all())
    assert found
    for one in found:
        there = candidates.work(one.microbatch)
        assert not one.saving.recompute
        report = memory_report(
            there.layers, cut=one.cut, grid=one.grid, shape=there.shape, mode=one.mode
        )
        assert one.memory == report
        assert one.most_bytes <= room.memory_bytes
        assert one.same_bits == (one.microbatch == work.microbatch)
    everything = list(Candidates(work, replace(room, memory_bytes=PLENTY)).all())
    assert 0 < len(found) < len(everything)
    assert {one.mode for one in everything} == set(REDUNDANCY_MODES)
    assert not [one for one in everything if one.mode == "peer" and one.grid.pipelines == 1]


def test_the_cut_of_the_job_stays_unless_memory_demands_another() -> None:
    given = (0, 3, 8)
    work = replace(workload(parameters=4000), cuts={2: given})
    grid = Grid(pipelines=1, stages=2)
    easy = Candidates(work, Room(memory_bytes=PLENTY, nodes=range(2, 3))).asked(grid, "off")
    assert easy.cut == given
    limit = easy.most_bytes - 1
    tight = Candidates(work, Room(memory_bytes=limit, nodes=range(2, 3))).asked(grid, "off")
    assert tight.cut != given
    assert tight.most_bytes <= limit


def test_a_job_that_does_not_fit_is_refused_with_the_nearest_plans() -> None:
    work = workload(parameters=4000)
    grid = Grid(pipelines=1, stages=2)
    room = Room(memory_bytes=300_000, nodes=range(2, 9))
    with pytest.raises(JobFitsNowhere, match=r"layer \d \(layer \d\) does not fit") as was:
        Candidates(work, room).asked(grid, "stash")
    error = was.value
    assert isinstance(error, InputError)
    assert error.limit_bytes == 300_000 < error.needs_bytes
    assert 0 <= error.layer < 8
    assert len(error.nearest) == 3
    for one in error.nearest:
        assert one.most_bytes <= 300_000
        assert one.name in str(error)
    # The nearest differs in one thing alone.
    nearest = error.nearest[0]
    unlike = (nearest.mode != "stash", not nearest.same_bits, nearest.grid.stages != 2)
    assert sum(unlike) + (nearest.grid.pipelines != 1) + nearest.saving.recompute == 1
    # No two change the same things, such as 22, 23 and 24 stages.
    ways = {
        (x.mode != "stash", x.same_bits, x.saving.recompute, x.grid.stages != 2, x.grid.pipelines)
        for x in error.nearest
    }
    assert len(ways) == 3


def test_a_job_far_beyond_reach_is_said_in_tebibytes() -> None:
    work, room = workload(parameters=10**11), Room(memory_bytes=2**34, nodes=range(2, 5))
    with pytest.raises(JobFitsNowhere, match=r"bytes \(\d\.\d\d TiB\) .* \(16\.00 GiB\)"):
        Candidates(work, room).asked(Grid(pipelines=1, stages=2), "off")


def test_layers_are_computed_again_where_the_plan_does_not_fit_without() -> None:
    """Eight layers hold 512 bytes of a microbatch each, 128 where they are computed again."""
    work, grid = workload(), Grid(pipelines=1, stages=2)
    off, layer, auto = (savings_of(one, "device") for one in RECOMPUTE)
    room = Room(memory_bytes=PLENTY, nodes=range(2, 3), modes=("off",), savings=auto)
    plain = Candidates(work, room).asked(grid, "off")
    again = Candidates(work, replace(room, savings=layer)).asked(grid, "off")
    assert (plain.saving.recompute, again.saving.recompute) == (False, True)
    assert again.cut == plain.cut == (0, 4, 8)
    first, last = again.memory
    # Three microbatches of the first stage are in flight, and one layer is computed again.
    assert first.activations == 3 * 4 * 128 + (512 - 128)
    assert plain.memory[0].activations == 3 * 4 * 512
    # The model's last layer is not.
    assert last.activations == 3 * 128 + 512 + (512 - 128)
    tight = replace(room, memory_bytes=plain.most_bytes - 1)
    assert Candidates(work, tight).asked(grid, "off") == again
    with pytest.raises(JobFitsNowhere) as was:
        Candidates(work, replace(tight, savings=off)).asked(grid, "off")
    assert was.value.nearest[0] == again, "recompute is counted among what would fit"
    assert again.name == "1 x 2 off, microbatches of 2, recompute layer"
    below = replace(room, memory_bytes=again.most_bytes - 1)
    with pytest.raises(JobFitsNowhere, match="and layers computed again, and it has"):
        Candidates(work, below).asked(grid, "off")


def test_moments_of_replicas_go_to_the_host_before_layers_are_computed_again() -> None:
    work, grid = replace(workload(), host_bytes_per_s=1.0), Grid(pipelines=1, stages=2)
    auto = Room(memory_bytes=PLENTY, nodes=range(2, 3), savings=savings_of("auto", "auto"))

    def taken(room: Room, mode: str = "stash") -> Saving:
        return Candidates(work, room).asked(grid, mode).saving

    def needs(saving: Saving) -> int:
        room = replace(auto, savings=(saving,))
        return Candidates(work, room).asked(grid, "stash").most_bytes

    both = Saving(recompute=True, host_moments=True)
    ways = (Saving(), Saving(host_moments=True), Saving(recompute=True), both)
    room = auto
    for way in ways:  # in the order in which they cost more
        if needs(way) <= room.memory_bytes:
            assert taken(room) == way
            room = replace(room, memory_bytes=needs(way) - 1)
    assert needs(both) < needs(ways[1]) < needs(ways[0])
    assert Candidates(work, replace(auto, savings=(both,))).asked(grid, "stash").name == (
        "1 x 2 stash, microbatches of 2, recompute layer, replica_moments host"
    )
    # Without replicas, or on a device without a memory of its own, there is nothing to move.
    host = replace(auto, savings=savings_of("off", "host"))
    assert taken(host, "off") == Saving()
    here = Candidates(replace(work, host_bytes_per_s=0.0), host)
    assert here.asked(grid, "stash").saving == Saving()


def test_what_lies_in_the_memory_of_the_host_must_fit_there() -> None:
    work, grid = replace(workload(), host_bytes_per_s=1.0), Grid(pipelines=1, stages=2)
    room = Room(memory_bytes=PLENTY, nodes=range(2, 3))
    found = Candidates(work, room).asked(grid, "stash")
    needs = max(stage.host for stage in found.memory)
    assert needs > 0
    assert Candidates(work, replace(room, host_bytes=needs)).asked(grid, "stash") == found
    tight = replace(room, host_bytes=needs - 1)
    words = f"{needs:,} bytes .* in the host's memory .*; nearest plans that fit: 1 x 2 off"
    with pytest.raises(JobFitsNowhere, match=words) as was:
        Candidates(work, tight).asked(grid, "stash")
    assert (was.value.needs_bytes, was.value.limit_bytes) == (needs, needs - 1)
    assert Candidates(replace(work, host_bytes_per_s=0.0), tight).asked(grid, "stash").mode


def test_the_cut_that_the_job_says_stays_where_computing_layers_again_is_enough() -> None:
    work, grid = replace(workload(), cuts={2: (0, 6, 8)}), Grid(pipelines=1, stages=2)
    again = Candidates(
        saved(work, Saving(recompute=True)), Room(memory_bytes=PLENTY, nodes=range(2, 3))
    )
    needs = again.asked(grid, "off").most_bytes
    room = Room(memory_bytes=needs, nodes=range(2, 3), savings=savings_of("auto", "auto"))
    moved = Candidates(work, room).asked(grid, "off")
    assert (moved.saving.recompute, moved.cut != (0, 6, 8)) == (False, True)
    kept = Candidates(work, replace(room, cut=(0, 6))).asked(grid, "off")
    assert (kept.saving.recompute, kept.cut) == (True, (0, 6, 8))


def test_where_nothing_fits_no_plan_is_named() -> None:
    work = workload(parameters=4000)
    room = Room(memory_bytes=1000, nodes=range(2, 5))
    with pytest.raises(JobFitsNowhere, match="no plan in reach fits either") as was:
        Candidates(work, room).asked(Grid(pipelines=1, stages=2), "stash")
    assert was.value.nearest == ()
    why = Candidates(work, room).nothing()
    assert isinstance(why, FitsNowhere)
    assert why.limit_bytes == 1000
    most = len(work.layers) * work.shape.virtual_nodes
    for empty, remedy in (
        (replace(room, modes=("stash",), nodes=range(1, 2)), "of 1 nodes .*: allow for more nodes"),
        (replace(room, modes=("peer",), nodes=range(1, 2)), "of 1 nodes .*: allow for more nodes"),
        (replace(room, nodes=range(most + 1, most + 2)), f"take {most} nodes at most"),
        (replace(room, nodes=range(most + 1, most + 9)), f"to {most + 8} .*take {most} nodes at"),
    ):
        with pytest.raises(InputError, match=f"have no grid .*{remedy}"):
            Candidates(work, empty).nothing()


def test_sizes_that_would_take_too_long_to_play_are_left_out_but_never_the_own() -> None:
    work = workload(virtual_nodes=1, microbatches=MOST_FORWARDS, microbatch=4)
    room = Room(memory_bytes=PLENTY, nodes=range(2, 3), modes=("off",))
    sizes = {one.microbatch for one in Candidates(work, room).all()}
    assert 4 in sizes
    assert min(sizes) == 4
    assert 8 in sizes
