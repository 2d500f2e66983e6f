"""A mode for each stage: taken where memory allows ahead on some stages only and losses are dear,
never where nobody could tell, and worth what the ranking says of it."""

from dataclasses import replace

import pytest

from bamboo.planner.plans.candidates import Candidates, Choice, Room
from bamboo.planner.plans.losses import Hazard
from bamboo.planner.plans.modes import Chosen, choose_mode
from bamboo.planner.plans.ranking import SAME, ranked
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.risks.hazards import said
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REPLICA_MODES
from tests.planner.workloads import stakes, workload

GRID = Grid(pipelines=1, stages=4)
OFTEN = Hazard(stakes=stakes(checkpoint_every=20), rate=said(5.0))
ROOMY = Room(memory_bytes=2**40, nodes=range(2, 9))
EVEN, LAST_LARGE = (256,) * 4, (256, 256, 256, 100_000)


def long_steps(activations: tuple[int, ...]) -> WorkloadFigures:
    """Four layers of 12 s a microbatch, which hold so many bytes each."""
    work = workload(layers=4, virtual_nodes=1, microbatches=4, forward_s=4.0, backward_s=8.0)
    layers = zip(work.layers, activations, strict=True)
    return replace(work, layers=tuple(replace(layer, activation_bytes=a) for layer, a in layers))


def choice_of(work: WorkloadFigures, mode: str) -> Choice:
    found = Candidates(work, ROOMY).choice(GRID, mode, 2)
    assert found is not None
    return found


def between(work: WorkloadFigures) -> Room:
    """Memory for what `stash` holds, and for half of what `gap` has the fullest node hold more."""
    least, most = (choice_of(work, mode).most_bytes for mode in ("stash", "gap"))
    return replace(ROOMY, memory_bytes=(least + most) // 2)


def chosen(work: WorkloadFigures, room: Room, hazard: Hazard = OFTEN, **options: str) -> Chosen:
    spread = options.get("spread", "one")
    return choose_mode(work, GRID, room, hazard, spread=spread, standbys=0)


def test_stages_whose_shadow_has_the_memory_compute_ahead() -> None:
    work = long_steps(LAST_LARGE)
    room = between(work)
    found = chosen(work, room)
    choice = found.taken.choice
    assert choice.mode == "eager,eager,eager,stash"
    assert choice.most_bytes <= room.memory_bytes < choice_of(work, "gap").most_bytes
    # What the shadow of a stage holds ahead lies on the node before it.
    assert [node.ahead > 0 for node in choice.memory] == [True, True, False, True]
    assert "the shadows of stages 0, 1 and 2 have the memory for eager, which is" in found.why
    assert ". " not in found.why


def test_it_is_worth_what_the_ranking_says_and_more_than_any_one_mode_for_all() -> None:
    work = long_steps(LAST_LARGE)
    room = replace(between(work), grids=(GRID,), microbatches=(2,))
    taken = chosen(work, room).taken
    (again,) = ranked(work, replace(room, modes=(taken.choice.mode,)), OFTEN)
    assert (again.choice, again.value) == (taken.choice, taken.value)
    alike = ranked(work, replace(room, modes=REPLICA_MODES), OFTEN)
    assert taken.value > max(one.value for one in alike) * (1 + SAME)


def test_one_mode_for_all_where_nobody_could_tell() -> None:
    work = long_steps(LAST_LARGE)
    assert chosen(work, ROOMY).taken.choice.mode == "gap"
    rarely = replace(OFTEN, rate=said(0.6))
    assert chosen(work, between(work), rarely).taken.choice.mode == "stash"
    on_demand = Hazard(stakes=stakes(preemptible=False))
    assert chosen(work, between(work), on_demand).taken.choice.mode == "off"


def test_the_ends_have_the_most_to_spare() -> None:
    """The last node holds the fewest microbatches of its own, the first keeps one boundary: they
    shadow the first two stages."""
    work = long_steps(EVEN)
    tight = replace(ROOMY, memory_bytes=choice_of(work, "stash").most_bytes)
    found = chosen(work, tight)
    assert found.taken.choice.mode == "gap,gap,stash,stash"
    assert "the shadows of stages 0 and 1 have the memory for gap, which is" in found.why


def test_a_given_cut_and_given_modes_are_kept() -> None:
    work = long_steps(LAST_LARGE)
    cut = choice_of(work, "stash").cut
    found = choose_mode(work, GRID, between(work), OFTEN, spread="one", standbys=0, cut=cut)
    assert (found.taken.choice.cut, found.taken.choice.mode) == (cut, "eager,eager,eager,stash")
    eager = replace(between(work), modes=("stash", "eager"))
    assert chosen(work, eager).taken.choice.mode == "eager,eager,eager,stash"
    assert chosen(work, replace(eager, modes=("stash",))).taken.choice.mode == "stash"


@pytest.mark.parametrize("stages", [2, 3])
def test_on_a_grid_of_other_stages_all_have_the_least_redundant(stages: int) -> None:
    candidates = Candidates(long_steps(EVEN), ROOMY)
    found = candidates.choice(Grid(pipelines=1, stages=stages), "full,gap,eager,full", 2)
    assert found is not None
    assert found.mode == "gap"
