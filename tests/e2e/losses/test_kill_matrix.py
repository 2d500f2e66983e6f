"""SIGKILL of a worker at every stage, phase and redundancy mode: the bits are the calm run's.

The killed process is real and gets no word in: it dies between two machine instructions, before or
after what the phase's name says. `make chaos` runs all; otherwise a sample is drawn, by a seed that
stands in the tests' names (`BAMBOO_TEST_SEED` draws another one).
"""

import itertools
import os
import random
from typing import NamedTuple

import pytest

from bamboo.config.tree import JobConfig, Kill
from testbed.calm import assert_calm
from testbed.cluster import cluster
from tests.e2e.jobs import STEPS, job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

SEED = int(os.environ.get("BAMBOO_TEST_SEED", "1"))
PHASES = ("forward", "backward", "exchange", "ship", "step")
MODES = ("stash", "gap", "eager")
STAGES = 4
MICROBATCHES = 8
SAMPLE = 3


class Case(NamedTuple):
    """Where one kill falls."""

    mode: str
    stage: int
    phase: str
    step: int
    microbatch: int
    pipeline: int = 0

    @property
    def kill(self) -> Kill:
        return Kill(
            step=self.step,
            stage=self.stage,
            pipeline=self.pipeline,
            phase=self.phase,
            microbatch=self.microbatch,
        )

    def __str__(self) -> str:
        at = f"{self.step}.{self.microbatch}"
        return f"{self.mode}-{self.pipeline}.{self.stage}-{self.phase}-{at}"


def drawn(mode: str, stage: int, phase: str, pipeline: int = 0, microbatches: int = 8) -> Case:
    """A case at a step and a microbatch that the seed and the case itself decide."""
    draw = random.Random(f"{SEED} {mode} {pipeline} {stage} {phase}")
    step, microbatch = draw.randrange(1, STEPS - 1), draw.randrange(microbatches)
    return Case(mode, stage, phase, step, microbatch, pipeline)


MATRIX = [drawn(*at) for at in itertools.product(MODES, range(STAGES), PHASES)]


def sample(cases: list[Case], count: int) -> list[Case]:
    """`count` cases in which stages, phases and modes come up as evenly as they can."""
    left = random.Random(SEED).sample(cases, len(cases))
    out: list[Case] = []
    while len(out) < count:
        seen = {name: [getattr(c, name) for c in out] for name in ("mode", "stage", "phase")}
        rarest = min(left, key=lambda c: sum(seen[n].count(getattr(c, n)) for n in seen))
        left.remove(rarest)
        out.append(rarest)
    return out


def name(case: Case) -> str:
    return f"seed{SEED}-{case}"


def survives(settings: JobConfig, *cases: Case) -> None:
    """Run the job with its listed kills: all of them happen, and the bits are the calm run's."""
    with cluster(settings) as run:
        run.start()
        assert_calm(run)
        happened = {(s["slot"], s["step"], s["phase"]) for s in run.stamps()}
        assert happened == {(f"{c.pipeline}.{c.stage}", c.step, c.phase) for c in cases}
        found = {(f["slot"], f["planned"]) for f in run.metrics("failover")}
        assert found == {(f"{c.pipeline}.{c.stage}", False) for c in cases}, run.report()


@pytest.mark.parametrize("case", sample(MATRIX, SAMPLE), ids=name)
def test_a_sample_of_the_matrix(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode), case)


@pytest.mark.full
@pytest.mark.parametrize("case", MATRIX, ids=name)
def test_the_whole_matrix(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode), case)


FULL_MODE = [drawn("full", stage, phase) for stage, phase in itertools.product(range(4), PHASES)]


@pytest.mark.parametrize("case", sample(FULL_MODE, 1), ids=name)
def test_one_with_redundant_backwards_too(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode), case)


@pytest.mark.full
@pytest.mark.parametrize("case", FULL_MODE, ids=name)
def test_all_with_redundant_backwards_too(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode), case)


OWN_MODES = [
    drawn("eager,stash,full,gap", stage, phase)
    for stage, phase in itertools.product(range(STAGES), PHASES)
]


@pytest.mark.parametrize("case", sample(OWN_MODES, 1), ids=name)
def test_two_where_each_stage_has_its_own_redundancy(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode), case)


@pytest.mark.full
@pytest.mark.parametrize("case", OWN_MODES, ids=name)
def test_all_where_each_stage_has_its_own_redundancy(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode), case)


# ---------------------------------------------------------------- other devices and numbers


@pytest.mark.parametrize("case", sample(MATRIX, 1), ids=name)
def test_a_sample_on_a_device_that_is_done_later(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode, device="lagging"), case)


@pytest.mark.full
@pytest.mark.parametrize("case", [*MATRIX, *FULL_MODE, *OWN_MODES], ids=name)
def test_all_on_a_device_that_is_done_later(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode, device="lagging"), case)


@pytest.mark.parametrize("case", sample(MATRIX, 1), ids=name)
def test_a_sample_in_bf16(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode, precision="bf16"), case)


@pytest.mark.parametrize("case", sample(FULL_MODE, 1), ids=name)
def test_one_whose_layers_are_computed_again(case: Case) -> None:
    """The calm run computes none of them again."""
    settings = job(case.kill, redundancy=case.mode, precision="bf16", recompute="layer")
    survives(settings, case)


@pytest.mark.full
@pytest.mark.parametrize("case", sample(MATRIX, 15), ids=name)
def test_more_whose_layers_are_computed_again(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode, device="lagging", recompute="layer"), case)


@pytest.mark.full
@pytest.mark.parametrize("case", sample(MATRIX, 15), ids=name)
def test_more_in_bf16(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode, precision="bf16", device="lagging"), case)


# ---------------------------------------------------------------- the first and the last step

ENDS = [
    Case(mode, stage, phase, step, 0)
    for step in (0, STEPS - 1)
    for mode, stage, phase in zip(
        itertools.cycle(MODES), (0, 3, 1, 2, 3, 0, 2, 1), (*PHASES, *PHASES[2:]), strict=False
    )
]


@pytest.mark.parametrize(
    "case",
    [Case("stash", 3, "forward", 0, 0), Case("eager", 1, "step", STEPS - 1, 0)],
    ids=name,
)
def test_the_first_and_the_last_step(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode), case)


@pytest.mark.full
@pytest.mark.parametrize("case", ENDS, ids=name)
def test_more_of_the_first_and_the_last_step(case: Case) -> None:
    survives(job(case.kill, redundancy=case.mode), case)


# ---------------------------------------------------------------- several pipelines

TWO = [
    drawn(mode, stage, phase, pipeline, 4)
    for mode, stage, phase, pipeline in itertools.product(
        ("stash", "eager"), range(3), PHASES, range(2)
    )
]


@pytest.mark.parametrize("case", sample(TWO, 1), ids=name)
def test_a_sample_with_two_pipelines(case: Case) -> None:
    settings = job(case.kill, redundancy=case.mode, pipelines=2, stages=3, virtual_nodes=4)
    survives(settings, case)


@pytest.mark.full
@pytest.mark.parametrize("case", sample(TWO, 20), ids=name)
def test_more_with_two_pipelines(case: Case) -> None:
    settings = job(case.kill, redundancy=case.mode, pipelines=2, stages=3, virtual_nodes=4)
    survives(settings, case)


UNEVEN = [
    drawn(mode, stage, phase, pipeline, 2)
    for mode, stage, phase, pipeline in itertools.product(
        ("stash", "eager"), range(2), PHASES, range(3)
    )
]


@pytest.mark.parametrize("case", sample(UNEVEN, 1), ids=name)
def test_one_with_uneven_pipelines_and_tied_weights(case: Case) -> None:
    settings = job(
        case.kill, redundancy=case.mode, pipelines=3, stages=2, virtual_nodes=4, tied=True
    )
    survives(settings, case)


@pytest.mark.full
@pytest.mark.parametrize("case", sample(UNEVEN, 15), ids=name)
def test_more_with_uneven_pipelines_and_tied_weights(case: Case) -> None:
    settings = job(
        case.kill, redundancy=case.mode, pipelines=3, stages=2, virtual_nodes=4, tied=True
    )
    survives(settings, case)


# ---------------------------------------------------------------- two in one run


def test_two_stages_that_are_no_neighbours() -> None:
    one, two = Case("eager", 2, "backward", 3, 5), Case("eager", 0, "exchange", 5, 0)
    survives(job(one.kill, two.kill, redundancy="eager"), one, two)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_two_stages_in_the_same_step(seed: int) -> None:
    draw = random.Random(seed)
    mode = draw.choice(MODES)
    stages = draw.choice(((0, 2), (2, 0), (1, 3), (3, 1)))
    one, two = (
        Case(mode, stage, draw.choice(PHASES), 4, draw.randrange(MICROBATCHES)) for stage in stages
    )
    survives(job(one.kill, two.kill, redundancy=mode), one, two)
