"""A real run of which more than 90 % is frozen: what it sends and stores is what the formula says
of its trained parameters."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.checkpoint.manifest import CONSTANT
from bamboo.checkpoint.tensor_file import places
from bamboo.config.resolve import resolve
from bamboo.config.tree import CheckpointConfig
from bamboo.models import build_layer, build_model
from benchmarks.measuring.wire_formula import wire_bytes
from testbed.calm import assert_calm
from testbed.cluster import cluster
from tests.e2e.jobs import job
from tests.runtime import sorts_layers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EVERY, STEPS, WITHIN = 4, 9, 0.03


def held_in(path: Path) -> int:
    """Bytes of the tensors in a file."""
    with path.open("rb") as file:
        return sum(place.end - place.begin for place in places(file).values())


def test_frozen_parameters_are_not_sent_and_are_stored_once() -> None:
    made = job(steps=STEPS, stages=2, pipelines=2, virtual_nodes=4)
    file = f"{Path(sorts_layers.__file__)}:mostly_frozen"
    settings = replace(
        made,
        model=replace(made.model, model=file),
        checkpoint=CheckpointConfig(every_steps=EVERY, keep=100),
    )
    whole = resolve(settings)
    workload = build_model(whole)
    trained, frozen = [0, 0], 0
    for index in range(len(workload.layers)):
        for parameter in build_layer(workload, index, whole.train.seed).parameters():
            if parameter.requires_grad:
                trained[index * 2 // len(workload.layers)] += parameter.nbytes
            else:
                frozen += parameter.nbytes
    assert frozen > 9 * sum(trained)
    with cluster(settings) as run:
        run.start(faults=dict.fromkeys(range(4), f"counted_bytes:{run.directory}"))
        assert_calm(run)
        sent: Counter[str] = Counter()
        for record in run.directory.glob("sent-*"):
            for line in record.read_text().splitlines():
                kind, size = line.split()
                sent[kind] += int(size)
        checkpoints = run.directory / "checkpoints"
        steps = [done.step for done in run.state().checkpoints]
        assert steps
        for step in steps:
            stored = sum(map(held_in, checkpoints.glob(f"step-{step:08d}/*/*.safetensors")))
            # Parameters and both moments.
            assert stored == pytest.approx(3 * sum(trained), rel=WITHIN)
        once = sum(map(held_in, checkpoints.glob(f"{CONSTANT}*")))
    assert once == pytest.approx(frozen, rel=WITHIN)
    expected = wire_bytes(
        run.grid,
        mode="stash",
        virtual_nodes=4,
        microbatches=4,
        boundary_bytes=4 * 2 * whole.model.context * sorts_layers.WIDTH,
        gradient_bytes=trained,
    )
    for kind, size in expected.items():
        assert sent[kind] == pytest.approx(STEPS * size, rel=WITHIN), kind
    assert not sent["state"]
