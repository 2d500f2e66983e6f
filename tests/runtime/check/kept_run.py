"""A written run with checkpoints, and the ways to spoil it, for what reads checkpoints of a run."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import write_manifest, write_stage
from bamboo.checkpoint.manifest import MANIFEST, Manifest, folder_of, layer_of
from bamboo.checkpoint.shards import commit, save_shard
from bamboo.config.load import job_from_json, job_to_json, job_with
from bamboo.config.resolve import semantics
from bamboo.config.tree import JobConfig, Segment
from bamboo.data.dataset import load_data
from bamboo.models import build_model
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.optim.optimizer import Optimizer
from bamboo.runtime.step.numerics import prepare
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy
from tests.attested import write_attested
from tests.jobs import tiny_job

STEPS = 12
EVERY = 3
RATE_KEYS = ("learning_rate", "warmup_steps", "final_learning_rate")
KEPT = tuple(range(EVERY, STEPS + 1, EVERY))


def write_run(folder: Path, overrides: tuple[str, ...] = ()) -> Path:
    """The files of a run of two stages with a checkpoint every third step, the last included."""
    job = tiny_job(folder, [f"train.steps={STEPS}", f"checkpoint.every_steps={EVERY}", *overrides])
    run = folder / "run"
    run.mkdir()
    data = load_data(job)
    strategy = Strategy(
        semantics=semantics(job, data_digest=data.digest),
        placement=Placement(cut=(0, 2, 4), grid=Grid(pipelines=1, stages=2), redundancy="stash"),
    )
    (run / "strategy.json").write_text(strategy.to_json(), encoding="utf-8")
    (run / "resolved.json").write_text(job_to_json(job), encoding="utf-8")
    write_attested(run, job)
    prepare(job.cluster)
    calm = CalmRun(job, build_model(job), data)
    lines = []
    for step in range(STEPS):
        lines.append(json.dumps({"v": 1, "step": step, "loss": calm.step()}) + "\n")
        if (step + 1) % EVERY == 0:
            _write_checkpoint(run, calm, strategy.semantics.hash())
    (run / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    for stage in range(2):
        own = {n: t for n, t in calm.tensors().items() if layer_of(n) // 2 == stage}
        write_stage(run / "final", stage, own, STEPS)
    write_manifest(run / "final", stages=2, step=STEPS)
    return run


def lengthen(run: Path, steps: int, overrides: tuple[str, ...] = ()) -> JobConfig:
    """As if the run had been resumed with `--steps`: its files after a second segment, trained with
    an optimizer of its own, from the checkpoint of its last step; and the job of both."""
    before = job_from_json((run / "resolved.json").read_text())
    train = before.train
    rates = {key: getattr(train, key) for key in RATE_KEYS}
    closed = Segment(to_step=STEPS, steps=train.steps, **rates)
    job = replace(job_with(before, [*overrides, f"train.steps={steps}"]), segments=(closed,))
    data, old = load_data(job), Strategy.from_json((run / "strategy.json").read_text())
    new = semantics(job, data_digest=data.digest)
    (run / "resolved.json").write_text(job_to_json(job), encoding="utf-8")
    (run / "strategy.json").write_text(replace(old, semantics=new).to_json(), encoding="utf-8")
    prepare(job.cluster)
    calm = CalmRun(job, build_model(job), data)
    calm._optimizer = _FromStep(replace(job.train, steps=steps - STEPS))
    for shard in manifest_of(run, STEPS)[1].shards:
        calm.load(load_file(run / "checkpoints" / shard.name), STEPS)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        for step in range(STEPS, steps):
            file.write(json.dumps({"v": 1, "step": step, "loss": calm.step()}) + "\n")
    for stage in range(2):
        own = {n: t for n, t in calm.tensors().items() if layer_of(n) // 2 == stage}
        write_stage(run / "final", stage, own, steps)
    write_manifest(run / "final", stages=2, step=steps)
    return job


class _FromStep(Optimizer):
    """Its learning rate is of a run that begins with step STEPS."""

    def learning_rate(self, step: int) -> float:
        return super().learning_rate(step - STEPS)


def _write_checkpoint(run: Path, calm: CalmRun, semantic_hash: str) -> None:
    store = DirectoryStore(run / "checkpoints")
    shards = tuple(
        save_shard(
            store,
            {n: t for n, t in calm.tensors().items() if layer_of(n) // 2 == stage},
            step=calm.steps_done,
            generation=1,
            stage=stage,
            scratch=run,
        )
        for stage in range(2)
    )
    manifest = Manifest(
        run=run.name,
        semantic_hash=semantic_hash,
        step=calm.steps_done,
        generation=1,
        created_at_s=1.0,
        shards=shards,
    )
    assert commit(store, manifest)


def manifest_of(run: Path, step: int) -> tuple[Path, Manifest]:
    path = run / "checkpoints" / folder_of(step) / MANIFEST
    return path, Manifest.from_json(path.read_text())


def shard_of(run: Path, step: int, stage: int = 1) -> Path:
    return run / "checkpoints" / manifest_of(run, step)[1].shards[stage].name


def flip(path: Path, at: int = -1, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


def flip_honestly(run: Path, step: int, bit: int = 1) -> None:
    """Another state than the run's, whole and with its digest: what a mistake would write."""
    flip(shard_of(run, step), bit=bit)
    path, manifest = manifest_of(run, step)
    sha256 = hashlib.sha256(shard_of(run, step).read_bytes()).hexdigest()
    changed = (manifest.shards[0], replace(manifest.shards[1], sha256=sha256))
    path.write_text(replace(manifest, shards=changed).to_json())


def nudge_loss(run: Path, step: int) -> None:
    path = run / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[step]["loss"] = math.nextafter(records[step]["loss"], 0.0)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


def torn(run: Path, step: int) -> None:
    manifest_of(run, step)[0].unlink()


def truncated(run: Path, step: int) -> None:
    path = shard_of(run, step)
    path.write_bytes(path.read_bytes()[:-1])


def corrupted(run: Path, step: int) -> None:
    flip(shard_of(run, step), at=-5)


def lacking(run: Path, step: int) -> None:
    shard_of(run, step).unlink()


def foreign(run: Path, step: int) -> None:
    path, manifest = manifest_of(run, step)
    path.write_text(replace(manifest, semantic_hash="0" * 16).to_json())


def garbled(run: Path, step: int) -> None:
    manifest_of(run, step)[0].write_text("{")
