"""Plain data parallelism, `stages = 1`: each node has the whole model, and every other node the
exact state of one that is lost. Real processes, real SIGKILL, and the calm run's bits.

A run of one node has nobody to take its state from but a checkpoint.
"""

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from bamboo.config.tree import CheckpointConfig, JobConfig, Kill
from bamboo.core.liveness.patience import parked
from bamboo.core.state import NodeStatus, Outcome, Phase, State
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from testbed.calm import assert_calm, assert_calm_so_far
from testbed.cluster import Cluster, cluster
from tests.e2e.history import bases, restores
from tests.e2e.jobs import ENDLESS, STEPS, job
from tests.e2e.losses.test_kept import SLOW, notice, take
from tests.e2e.losses.test_kill_matrix import SEED

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

PHASES = ("forward", "backward", "exchange", "step")
"""Nothing is shipped, as there are no shadows."""
EVERY = 5


def flat(*kills: Kill, pipelines: int, steps: int = STEPS, **cluster: Any) -> JobConfig:
    mode = "peer" if max(pipelines, cluster.get("max_pipelines", 1)) > 1 else "off"
    settings = {"redundancy": mode, "virtual_nodes": 4, **cluster}
    return job(*kills, steps=steps, stages=1, pipelines=pipelines, **settings)


def grid(pipelines: int) -> Grid:
    return Grid(pipelines=pipelines, stages=1)


def trains(run: Cluster, pipelines: int) -> State:
    """Wait until the run trains on so many pipelines."""
    return run.wait(
        lambda s: (
            s.phase is Phase.FINISHED or (s.grid == grid(pipelines) and s.reconfiguration is None)
        ),
        60.0,
        f"{pipelines} pipelines",
    )


@pytest.mark.parametrize("pipelines", [3, pytest.param(2, marks=pytest.mark.full)])
def test_calm_runs_have_the_same_bits(pipelines: int) -> None:
    with cluster(flat(pipelines=pipelines, steps=5, tied=True)) as run:
        run.start()
        assert_calm(run)


# ---------------------------------------------------------------- a SIGKILL in each phase


def drawn(pipelines: int, pipeline: int, phase: str) -> Kill:
    """A kill at a step and a microbatch that the seed decides."""
    draw = random.Random(f"{SEED} {pipelines} {pipeline} {phase}")
    step, microbatch = draw.randrange(1, STEPS - 1), draw.randrange(2)
    return Kill(step=step, stage=0, pipeline=pipeline, phase=phase, microbatch=microbatch)


MATRIX = [
    (pipelines, drawn(pipelines, pipeline, phase))
    for pipelines, phase in itertools.product((2, 3), PHASES)
    for pipeline in range(pipelines)
]
SAMPLE = [
    next((d, kill) for d, kill in MATRIX if (d, kill.phase, kill.pipeline) == case)
    for case in ((3, phase, number % 3) for number, phase in enumerate(PHASES))
]


def name(case: tuple[int, Kill]) -> str:
    pipelines, kill = case
    return f"seed{SEED}-{kill.pipeline}-of-{pipelines}-{kill.phase}-{kill.step}.{kill.microbatch}"


def goes_on(pipelines: int, kill: Kill, **cluster_keys: Any) -> None:
    """One of the pipelines is lost; the others do its part of the step again and of all later ones,
    and nothing is restored."""
    with cluster(flat(kill, pipelines=pipelines, **cluster_keys)) as run:
        run.start()
        assert_calm(run)
        happened = [(s["slot"], s["step"], s["phase"]) for s in run.stamps()]
        assert happened == [(f"{kill.pipeline}.0", kill.step, kill.phase)]
        assert run.state().grid == grid(pipelines - 1)
        assert not restores(run)


@pytest.mark.parametrize("case", SAMPLE, ids=map(name, SAMPLE))
def test_a_kill_in_each_phase(case: tuple[int, Kill]) -> None:
    goes_on(*case)


@pytest.mark.full
@pytest.mark.parametrize("case", MATRIX, ids=map(name, MATRIX))
def test_the_whole_matrix(case: tuple[int, Kill]) -> None:
    goes_on(*case)


def test_two_of_three_at_one_instant() -> None:
    with cluster(flat(pipelines=3, steps=ENDLESS)) as run:
        run.start()
        run.wait_step(6)
        for pipeline in (0, 2):
            run.kill(run.owner(Slot(pipeline=pipeline, stage=0)))
        trains(run, 1)
        assert_calm_so_far(run)
        assert not restores(run)


# ---------------------------------------------------------------- fewer pipelines, and more again


def test_pipelines_one_two_three_one() -> None:
    """D 1 -> 2 -> 3 as nodes come, -> 1 as they are lost."""
    with cluster(flat(pipelines=1, max_pipelines=3, steps=ENDLESS)) as run:
        run.start(1)
        run.wait_step(5)
        for pipelines in (2, 3):
            run.start_one()
            trains(run, pipelines)
            run.wait_step(max(run.losses()) + 3)
        for pipeline in (0, 1):
            run.kill(run.owner(Slot(pipeline=pipeline, stage=0)))
        assert trains(run, 1).phase is not Phase.FINISHED
        assert_calm_so_far(run)
        assert not restores(run)


def test_a_standby_takes_the_place_of_a_lost_node() -> None:
    with cluster(flat(pipelines=2, standbys=1, steps=ENDLESS)) as run:
        run.start(3)
        run.wait_step(5)
        (standby,) = (n.id for n in run.state().nodes if n.status is NodeStatus.READY)
        lost = run.owner(Slot(pipeline=1, stage=0))
        run.kill(lost)
        run.wait_lost(lost)
        state = trains(run, 2)
        assert state.assignment is not None
        assert standby in state.assignment.owners
        assert_calm_so_far(run)
        assert not restores(run)


# ---------------------------------------------------------------- a run of one node


def test_the_only_node_is_lost_and_another_goes_on_from_a_checkpoint() -> None:
    settings = replace(
        flat(pipelines=1, steps=ENDLESS), checkpoint=CheckpointConfig(every_steps=EVERY)
    )
    with cluster(settings) as run:
        run.start()
        run.wait(lambda s: len(s.checkpoints) >= 2, 60, "two checkpoints")
        run.wait_step(max(run.losses()) + 2)
        only = run.owner(Slot(pipeline=0, stage=0))
        run.kill(only)
        run.lost(only)  # nobody is left to miss it: the fleet does
        run.wait(lambda s: s.reconfiguration is not None, 30, "the restore")
        run.start_one()
        assert_calm_so_far(run)
        assert len(restores(run)) == 1
        assert bases(run)[0] % EVERY == 0


def test_the_only_node_has_a_notice_and_stores_what_it_has() -> None:
    """No checkpoint is written at intervals."""
    with cluster(flat(pipelines=1, steps=ENDLESS, **SLOW)) as run:
        run.start()
        run.wait_step(3)
        take(run, notice(run, **{run.owner(Slot(pipeline=0, stage=0)): 4.0}))
        state = run.wait(lambda s: parked(s) and not s.roll.live, 20, "nobody is left")
        (made,) = state.checkpoints
        assert made.step == max(run.losses()) + 1, "no step that was taken is lost"
        run.start_one()
        assert_calm_so_far(run)


def test_without_a_checkpoint_the_loss_of_the_only_node_ends_the_run() -> None:
    with cluster(flat(pipelines=1, steps=80)) as run:
        run.start()
        run.wait_step(3)
        only = run.owner(Slot(pipeline=0, stage=0))
        run.kill(only)
        run.lost(only)
        state = run.wait(lambda s: s.phase is Phase.FINISHED, 30, "the end")
        assert state.outcome is Outcome.UNRECOVERABLE
        assert "no live node holds stage 0" in state.sentence


# ---------------------------------------------------------------- as on a GPU


@pytest.mark.parametrize("case", SAMPLE[::4], ids=map(name, SAMPLE[::4]))
def test_a_kill_on_a_device_that_lags_behind_its_host(case: tuple[int, Kill]) -> None:
    goes_on(*case, device="lagging")


def test_a_kill_in_bf16() -> None:
    pipelines, kill = SAMPLE[-1]
    settings = flat(kill, pipelines=pipelines)
    settings = replace(settings, train=replace(settings.train, precision="bf16"))
    with cluster(settings) as run:
        run.start()
        assert_calm(run)
        assert run.state().grid == grid(pipelines - 1)
