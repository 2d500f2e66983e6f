"""A real run of a Hugging Face model with adapters: what it ships, exchanges and stores is what the
formula says of the adapters alone."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.checkpoint.manifest import CONSTANT
from bamboo.config.resolve import resolve
from bamboo.config.tree import HF, CheckpointConfig, JobConfig, LoraConfig, ModelConfig
from bamboo.models import build_layer, build_model
from bamboo.topology.slots import Slot
from benchmarks.measuring.wire_formula import wire_bytes
from testbed.calm import assert_calm
from testbed.cluster import cluster
from tests.e2e.jobs import job
from tests.e2e.test_frozen_bytes import held_in
from tests.models.hf.families import CONFIGS, saved_folder

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(180)]

EVERY, STEPS, WITHIN = 4, 9, 0.03
LORA = LoraConfig(rank=4, targets=("q_proj", "v_proj", "down_proj"))


def bytes_of(job: JobConfig) -> tuple[list[int], int]:
    """(Trained bytes of each of two stages, frozen bytes of both)."""
    workload = build_model(job)
    trained, frozen = [0, 0], 0
    for index in range(len(workload.layers)):
        for parameter in build_layer(workload, index, job.train.seed).parameters():
            if parameter.requires_grad:
                trained[index * 2 // len(workload.layers)] += parameter.nbytes
            else:
                frozen += parameter.nbytes
    return trained, frozen


def sent_in(folder: Path) -> Counter[str]:
    """Bytes that all nodes sent, by kind of message."""
    sent: Counter[str] = Counter()
    for record in folder.glob("sent-*"):
        for line in record.read_text().splitlines():
            kind, size = line.split()
            sent[kind] += int(size)
    return sent


@pytest.mark.parametrize("lora", [LORA, LoraConfig()], ids=["adapters", "full"])
def test_adapters_alone_are_sent_and_the_rest_is_stored_once(
    tmp_path: Path, lora: LoraConfig
) -> None:
    folder = saved_folder(tmp_path / "model", "llama")
    made = job(steps=STEPS, stages=2, pipelines=2, virtual_nodes=4)
    settings = replace(
        made,
        model=ModelConfig(model=f"{HF}{folder}", context=made.model.context, lora=lora),
        checkpoint=CheckpointConfig(every_steps=EVERY, keep=100),
    )
    whole = resolve(settings)
    trained, frozen = bytes_of(whole)
    assert (frozen > 9 * sum(trained)) is bool(lora.rank)
    with cluster(settings) as run:
        run.start(faults=dict.fromkeys(range(4), f"counted_bytes:{run.directory}"))
        assert_calm(run)
        sent = sent_in(run.directory)
        checkpoints = run.directory / "checkpoints"
        steps = [done.step for done in run.state().checkpoints]
        assert steps
        for step in steps:
            stored = sum(map(held_in, checkpoints.glob(f"step-{step:08d}/*/*.safetensors")))
            assert stored == pytest.approx(3 * sum(trained), rel=WITHIN)
        once = sum(map(held_in, checkpoints.glob(f"{CONSTANT}*")))
    assert once == pytest.approx(frozen, rel=WITHIN)
    hidden = CONFIGS["llama"]["hidden_size"]
    expected = wire_bytes(
        run.grid,
        mode="stash",
        virtual_nodes=4,
        microbatches=4,
        boundary_bytes=4 * 2 * whole.model.context * hidden,
        gradient_bytes=trained,
    )
    for kind, size in expected.items():
        assert sent[kind] == pytest.approx(STEPS * size, rel=WITHIN), kind


@pytest.mark.parametrize("lora", [LORA, LoraConfig()], ids=["adapters", "full"])
def test_a_standby_is_moved_what_is_frozen_once_and_what_is_trained_with_its_moments(
    tmp_path: Path, lora: LoraConfig
) -> None:
    folder = saved_folder(tmp_path / "model", "llama")
    made = job(steps=40, stages=2, pipelines=1, standbys=1)
    model = ModelConfig(model=f"{HF}{folder}", context=made.model.context, lora=lora)
    settings = replace(made, model=model)
    trained, frozen = bytes_of(resolve(settings))
    with cluster(settings) as run:
        run.start(3, faults=dict.fromkeys(range(3), f"counted_bytes:{run.directory}"))
        run.wait_step(3)
        run.kill(run.owner(Slot(pipeline=0, stage=1)))
        assert_calm(run)
        moved = sent_in(run.directory)["state"]
    # Both stages: one to own, and the replica of the other.
    assert moved == pytest.approx(frozen + 3 * sum(trained), rel=WITHIN)
