"""Every way of synchronising, on every grid, gives the bits of the calm run.

`make chaos` plays all combinations of kinds, grids, redundancy and jobs; otherwise a few, in which
each of them comes up.
"""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from bamboo.config.tree import JobConfig
from bamboo.models import build_layer, build_model
from bamboo.topology.sync import DENSE, FACTORS, OWNER, ROWS, TREE, ZONED, Sync, SyncRule
from testbed import strategy_jobs
from testbed.simulated import World
from tests.runtime.test_interleavings import calmly

pytestmark = pytest.mark.timeout(120)

STAGES = 2
GRIDS: dict[str, tuple[int, ...]] = {
    "1": (8,),
    "2": (4, 4),
    "3": (3, 3, 2),
    "4": (2, 2, 2, 2),
    "5/2/1": (5, 2, 1),
}
"""Virtual nodes of each pipeline."""
MODES = ("off", "stash", "eager")
ZONES = (0, 0, 1, 1)
KINDS = (TREE, OWNER, ROWS, FACTORS, ZONED, "all")
QUICK = {
    ("tree", "5/2/1", "stash", "tied GPT"),
    ("owner", "3", "eager", "CNN"),
    ("rows", "2", "stash", "mixed"),
    ("rows", "4", "off", "GPT"),
    ("factors", "1", "stash", "CNN"),
    ("factors", "5/2/1", "eager", "mixed"),
    ("zoned", "4", "off", "CNN"),
    ("all", "3", "stash", "mixed"),
    ("all", "2", "eager", "tied GPT"),
}


def cells() -> list[object]:
    """All combinations, of which most are for `make chaos`."""
    found = itertools.product(KINDS, GRIDS, MODES, strategy_jobs.NAMES)
    return [
        pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.full, id="-".join(cell))
        for cell in found
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tokens")
    strategy_jobs.write_small(made)
    return made


def job_of(name: str, grid: str, mode: str, folder: Path) -> JobConfig:
    job = strategy_jobs.small(name, folder)
    pipelines = len(GRIDS[grid])
    cluster = replace(job.cluster, pipelines=pipelines, stages=STAGES, redundancy=mode)
    return replace(job, cluster=cluster)


def sync_of(kind: str, job: JobConfig) -> Sync:
    """One kind wherever it can be; `all`: rows for tables, factors for most linear layers, an owner
    for vectors, and the rest in two zones; each layer leaves by itself."""
    tables, linear, vectors, rest = parameters(job)
    zones = ZONES[: job.cluster.pipelines]
    if kind == TREE:
        return Sync()
    if kind == "all":
        rules = [
            *(SyncRule(match=name, exchange=ROWS, ship=ROWS) for name in tables),
            *(SyncRule(match=name, exchange=FACTORS, ship=FACTORS) for name in linear[1:]),
            *(SyncRule(match=name, exchange=OWNER, owners=(0, 1)) for name in vectors),
            *(SyncRule(match=name, exchange=ZONED) for name in (*linear[:1], *rest)),
        ]
        return Sync(rules=tuple(rules), bucket=0, zones=zones)
    chosen = {
        OWNER: (*tables, *linear, *vectors, *rest),
        ZONED: (*tables, *linear, *vectors, *rest),
        ROWS: (*tables, *linear, *rest),
        FACTORS: linear,
    }[kind]
    ship = kind if kind in (ROWS, FACTORS) else DENSE
    owners = (1, 0) if kind == OWNER else ()
    rules = [SyncRule(match=name, exchange=kind, ship=ship, owners=owners) for name in chosen]
    return Sync(rules=tuple(rules), bucket=None if kind == OWNER else 1000, zones=zones)


def parameters(job: JobConfig) -> tuple[list[str], list[str], list[str], list[str]]:
    """Global names: tables of embeddings; weights of linear layers that are used once; vectors; the
    others."""
    workload = build_model(job)
    tied = {f"{tie.user_layer}.{tie.user_name}" for tie in workload.tied}
    tied |= {f"{tie.owner_layer}.{tie.owner_name}" for tie in workload.tied}
    tables, linear, vectors, rest = [], [], [], []
    for number in range(len(workload.layers)):
        layer = build_layer(workload, number, job.train.seed)
        for where, module in layer.named_modules():
            for local, parameter in module.named_parameters(recurse=False):
                name = ".".join(part for part in (str(number), where, local) if part)
                if parameter.ndim < 2:
                    vectors.append(name)
                elif isinstance(module, nn.Embedding):
                    tables.append(name)
                elif isinstance(module, nn.Linear) and name not in tied:
                    linear.append(name)
                else:
                    rest.append(name)
    return tables, linear, vectors, rest


def played(kind: str, grid: str, mode: str, name: str, folder: Path) -> tuple[World, JobConfig]:
    job = job_of(name, grid, mode, folder)
    world = World(job, random.Random(1), sync=sync_of(kind, job), shares=GRIDS[grid])
    world.run_in_order()
    return world, job


@pytest.mark.parametrize(("kind", "grid", "mode", "name"), cells())
def test_every_kind_gives_the_calm_bits(
    kind: str, grid: str, mode: str, name: str, folder: Path
) -> None:
    world, job = played(kind, grid, mode, name, folder)
    calmly(world, job, job.train.steps)
    assert world.state.shares == GRIDS[grid]
