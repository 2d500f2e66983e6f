"""The layout changes in the middle of a run, in any order of events: the bits are the calm run's.

Pipelines come and go, stages are cut anew, a stage without owner and shadow is found in another
pipeline. Each seed is one order; `BAMBOO_TEST_SEED` moves them all.
"""

import os
import random
from dataclasses import replace
from typing import Any, cast

import pytest

from bamboo.config.resolve import batch_shape, resolve
from bamboo.config.tree import JobConfig
from bamboo.core.effects import Quiesce
from bamboo.core.events import NoticeReceived, Reconsider
from bamboo.core.state import NodeStatus, Outcome, Phase, Policy, Reconfiguration
from bamboo.ids import NodeId
from bamboo.runtime.state.checkpoints import Checkpoints
from bamboo.runtime.state.decision import Decided
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.topology.slots import Slot
from testbed.simulated import NOW_S, Node, World, builder_of
from tests.runtime.test_interleavings import calmly, job

pytestmark = pytest.mark.timeout(120)

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1")) * 1_000_000
STEPS = 4
MODES = ("stash", "gap", "eager", "full", "peer")
QUICK = 3
SEEDS = [pytest.param(seed, marks=() if seed < QUICK else pytest.mark.full) for seed in range(300)]


def policy_of(settings: JobConfig, pipelines: int, *, checkpoint_every: int = 0) -> Policy:
    """What a launcher would give: a cut for every number of stages up to the job's."""
    layers = len(builder_of(settings).workload.layers)
    most = settings.cluster.stages
    cuts = tuple(
        tuple(round(layers * p / stages) for p in range(stages + 1))
        for stages in range(min(2, most), most + 1)
    )
    return Policy(
        cuts=cuts,
        virtual_nodes=batch_shape(resolve(settings)).virtual_nodes,
        pipelines=pipelines,
        stages=most,
        checkpoint_every=checkpoint_every,
    )


def drawn(draw: random.Random, **fixed: Any) -> JobConfig:
    settings = {
        "stages": draw.choice((2, 3, 4)),
        "pipelines": draw.choice((1, 2)),
        "virtual_nodes": 4,
        "tied": draw.random() < 0.3,
        "redundancy": draw.choice(MODES),
        "steps": STEPS,
    }
    return job(**(settings | fixed))


def world_of(settings: JobConfig, draw: random.Random, *, extra: int, pipelines: int) -> World:
    return World(settings, draw, standbys=extra, policy=policy_of(settings, pipelines))


def go(world: World) -> None:
    """For a random while."""
    target = world.operations + world.draw.randint(0, 60)
    world.run(until=lambda: world.operations >= target)


def to_the_end(world: World, settings: JobConfig) -> None:
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    calmly(world, settings, settings.train.steps)


@pytest.mark.parametrize("seed", SEEDS)
def test_pipelines_come_while_it_trains(seed: int) -> None:
    draw = random.Random(SEED + seed)
    settings = drawn(draw, pipelines=1)
    stages = settings.cluster.stages
    world = world_of(settings, draw, extra=2 * stages, pipelines=3)
    for node in world.standbys:
        if draw.random() < 0.5:
            go(world)
        if not world.over:
            world.join(node)
    to_the_end(world, settings)
    begun = any("a new layout at the next boundary" in reason for reason in world.reasons)
    assert world.state.grid.pipelines > 1 or not begun, "the end may come while it is sent ahead"


@pytest.mark.parametrize("seed", SEEDS)
def test_any_node_is_lost_of_several_pipelines(seed: int) -> None:
    """Whatever is lost, as long as another pipeline has each of its layers."""
    draw = random.Random(SEED + seed)
    settings = drawn(draw, pipelines=2)
    world = world_of(settings, draw, extra=draw.choice((0, 1, 2)), pipelines=2)
    for node in world.standbys:
        world.join(node)
    go(world)
    if world.over:
        return
    grid, assignment = world.state.grid, world.state.assignment
    assert assignment is not None
    if world.state.reconfiguration is None:
        pipeline = draw.randrange(grid.pipelines)
        count = draw.randint(1, grid.stages)
        for slot in draw.sample(grid.pipeline(pipeline), count):
            node = assignment.owner(slot)
            others = {assignment.owner(s) for s in grid.pipeline(1 - pipeline)}
            if world.nodes[node].running and node not in others:
                world.kill(node)
    to_the_end(world, settings)


@pytest.mark.parametrize("seed", SEEDS)
def test_fewer_stages_and_more_again(seed: int) -> None:
    """Nodes leave one by one with notices or are lost with a shadow; others come."""
    draw = random.Random(SEED + seed)
    settings = drawn(draw, pipelines=1, stages=4, redundancy=draw.choice(MODES[:4]))
    world = world_of(settings, draw, extra=3, pipelines=1)
    go(world)
    _take_one(world)
    go(world)
    if not world.over:
        world.commit(Reconsider(reporter="fleet", reason="no replacement came"))
    go(world)
    for node in world.standbys:
        if not world.over:
            world.join(node)
        go(world)
    to_the_end(world, settings)


@pytest.mark.parametrize("refilled", [False, True])
@pytest.mark.parametrize("seed", SEEDS[:QUICK])
def test_who_comes_after_a_new_layout_knows_it(seed: int, refilled: bool) -> None:
    """All but one are lost, which goes on with fewer stages; what comes then gets replicas of
    these stages, not of those that the run began with. Also when the log was `refilled` and begins
    after the reconfiguration."""
    draw = random.Random(SEED + seed)
    settings = drawn(draw, pipelines=1, stages=4, redundancy=draw.choice(MODES[:4]))
    policy = policy_of(settings, 1, checkpoint_every=100)
    world = World(settings, draw, standbys=1, policy=policy)
    go(world)
    for node in list(world.nodes)[1:4]:
        world.kill(node)
    world.run(until=lambda: not world.unreported)
    world.commit(Reconsider(reporter="fleet", reason="no replacement came"))
    world.run(until=lambda: world.state.reconfiguration is None)
    assert world.state.grid.stages == 2
    if refilled:
        world.nodes[world.standbys[0]].read = len(world.log)
    world.join(world.standbys[0])
    assert world.state.transfers
    to_the_end(world, settings)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_reads_the_log_late_gets_its_replicas(seed: int) -> None:
    """The newcomer stands still in the middle of a reconfiguration of before, and hears what it is
    sent now, before it reads that the slots have another meaning."""
    draw = random.Random(SEED + seed)
    settings = drawn(draw, pipelines=1, stages=4, redundancy="stash", steps=16)
    world = World(settings, draw, standbys=1, policy=policy_of(settings, 1, checkpoint_every=100))
    (late,) = world.standbys
    go(world)
    world.reads_up_to[late] = 0
    for node in list(world.nodes)[1:4]:
        world.kill(node)
    world.run(until=lambda: not world.unreported)
    world.commit(Reconsider(reporter="fleet", reason="no replacement came"))
    world.run(until=lambda: world.state.reconfiguration is None)
    reconfigurations = [state.reconfiguration for state, _ in world.log]
    undecided = [
        n
        for n, reconfiguration in enumerate(reconfigurations)
        if reconfiguration and reconfiguration.base is None
    ]
    world.reads_up_to[late] = max(undecided) + 1
    world.join(late)
    left = next(iter(world.nodes))

    def step() -> int:
        executor = world.nodes[left].trainer.executor
        return max((run.step for run in executor.owned.values()), default=-1)

    begun = step()
    world.run(until=lambda: step() >= begun + 3)
    while world.wires.queues.get((left, late, False)):
        world._arrive((left, late, False))
    world.nodes[late].turn(1)
    del world.reads_up_to[late]
    world.run(until=lambda: world.state.phase is Phase.RUNNING and not world.state.transfers)
    assert not world.over, world.report()
    assert world.state.assignment is not None
    assert late in world.state.assignment.members()


@pytest.mark.parametrize("seed", SEEDS)
def test_losses_while_all_is_laid_out_anew(seed: int) -> None:
    draw = random.Random(SEED + seed)
    settings = drawn(draw, pipelines=2, redundancy=draw.choice(("peer", "stash")))
    world = world_of(settings, draw, extra=settings.cluster.stages, pipelines=3)
    go(world)
    for node in world.standbys:
        if not world.over:
            world.join(node)
    world.run(until=lambda: world.state.reconfiguration is not None)
    for _ in range(draw.randint(0, 40)):
        if not world.over:
            world.step()
    assignment, grid = world.state.assignment, world.state.grid
    if world.over or assignment is None or world.unreported:
        return
    kept = {assignment.owner(slot) for slot in grid.pipeline(0)}
    spare = [n.id for n in world.nodes.values() if n.running and n.id not in kept]
    if world.state.reconfiguration is not None and world.state.reconfiguration.base is not None:
        # What the base is made of may lie anywhere by now: only what was never asked may go.
        spare = [n for n in spare if n in world.standbys and n not in assignment.members()]
    if spare:
        world.kill(draw.choice(spare))
    to_the_end(world, settings)


@pytest.mark.parametrize("seed", SEEDS[:60])
def test_a_notice_without_shadows_is_a_new_layout_at_a_boundary(seed: int) -> None:
    draw = random.Random(SEED + seed)
    settings = drawn(draw, redundancy=draw.choice(("peer", "off")))
    world = world_of(settings, draw, extra=1, pipelines=2)
    for node in world.standbys:
        world.join(node)
    go(world)
    if world.over or world.state.assignment is None:
        return
    leaver = draw.choice(sorted(world.state.assignment.members()))
    world.commit(NoticeReceived(node=leaver, deadline_s=NOW_S + 60))
    to_the_end(world, settings)
    assert not any("done again" in reason for reason in world.reasons)


def test_hashes_of_another_cut_are_not_compared() -> None:
    """A slot of the same place, before the same step again, holds other layers by now."""
    settings = drawn(random.Random(SEED), pipelines=1, stages=3, redundancy="stash")
    settings = replace(settings, cluster=replace(settings.cluster, check_replicas=True))
    world = world_of(settings, random.Random(SEED), extra=0, pipelines=1)
    nodes = [node.trainer for node in world.nodes.values()]

    def stepped() -> bool:
        return any(run.step > 1 for run in nodes[0].executor.owned.values())

    world.run(until=stepped)
    trainer, (slot, run) = nodes[0], next(iter(nodes[0].executor.owned.items()))
    reconfiguration = Reconfiguration(
        since=99, why="a test", planned=False, intact=False, asked=(), base=1, checkpoint=True
    )
    state = replace(world.state, era=99, reconfiguration=reconfiguration)
    trainer.mailbox.replica_hashes[(slot, run.step)] = "of this very slot"
    assert trainer._replicas.difference(trainer.mailbox) is not None
    trainer._apply(Decided(state=state, effects=(), read_s=0.0))
    trainer.mailbox.replica_hashes[(slot, run.step)] = "of another cut"
    assert trainer._replicas.difference(trainer.mailbox) is None


class Stored:
    """A node's checkpoints, as far as the trainer looks: what it would store."""

    def __init__(self) -> None:
        self.kept: list[tuple[Slot, int, int]] = []
        """(slot, step, era)"""

    def boundary(self, run: SlotRun, era: int) -> None:
        self.kept.append((run.slot, run.step, era))


def test_the_step_that_is_taken_for_the_base_is_not_stored() -> None:
    """It is of the old cut, and the era is the new one's by then."""
    settings = drawn(random.Random(SEED), pipelines=1, stages=3, redundancy="stash")
    world = world_of(settings, random.Random(SEED), extra=0, pipelines=1)

    def waits_for_the_norm() -> list[tuple[Node, SlotRun]]:
        owned = [(n, r) for n in world.nodes.values() for r in n.trainer.executor.owned.values()]
        return [(node, run) for node, run in owned if run.exchanged]

    world.run(until=lambda: bool(waits_for_the_norm()))
    node, run = waits_for_the_norm()[0]
    trainer, step, stored = node.trainer, run.step, Stored()
    trainer._checkpoints = cast("Checkpoints", stored)
    begun = replace(
        world.state,
        reconfiguration=Reconfiguration(
            since=100, why="a test", planned=False, intact=False, asked=(node.id,)
        ),
    )
    trainer._apply(Decided(state=begun, effects=(Quiesce(to=node.id, since=100),), read_s=0.0))
    trainer.rest(0.0)
    assert run.step == step
    assert begun.reconfiguration is not None
    reconfiguration = replace(begun.reconfiguration, base=step + 1, total_square=1.0)
    trainer._apply(
        Decided(
            state=replace(begun, era=100, reconfiguration=reconfiguration), effects=(), read_s=0.0
        )
    )
    assert run.step == step + 1, "it took the step"
    assert not stored.kept


def _take_one(world: World) -> None:
    assignment = world.state.assignment
    if world.over or assignment is None or world.state.reconfiguration is not None:
        return
    live = [n for n in world.state.live_nodes() if n.status is NodeStatus.MEMBER]
    covered = [
        n.id
        for n in live
        if all(assignment.shadow(s) is not None for s in assignment.owned_by(n.id))
    ]
    if not covered or world.state.phase is not Phase.RUNNING:
        return
    node: NodeId = world.draw.choice(covered)
    if world.draw.random() < 0.5:
        world.kill(node)
    else:
        world.commit(NoticeReceived(node=node, deadline_s=NOW_S + 60))


def test_the_policy_of_these_tests_cuts_the_model_whole() -> None:
    settings = replace(job(stages=4), train=replace(job().train, steps=1))
    assert all(cut[0] == 0 and cut[-1] == 4 for cut in policy_of(settings, 1).cuts)
