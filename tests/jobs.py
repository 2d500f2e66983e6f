"""A job so small that a step takes milliseconds, for tests of every room that trains."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.models import build_layer, build_model
from bamboo.models.build import code_taken_along
from bamboo.user_code.bundle import CODE_FOLDER, write_bundle
from bamboo.user_code.manifest import Manifest
from bamboo.user_code.recording import recording

TEXT = "".join(f"line {i}: the quick brown fox jumps over {i * i} lazy dogs\n" for i in range(200))

SMALL = """
[model]
layers = 2
width = 16
heads = 2
context = 8
[data]
source = "path"
path = "text.txt"
"""
"""Model and data."""
TINY = f"""{SMALL}[train]
steps = 6
batch = 8
microbatch = 2
warmup_steps = 2
learning_rate = 1e-2
[checkpoint]
every_steps = 0
[cluster]
stages = 2
"""


def tiny_job(folder: Path, overrides: Sequence[str] = ()) -> JobConfig:
    """A GPT of two blocks of width 16 on a few kilobytes of text in `folder`."""
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    file = folder / "job.toml"
    file.write_text(TINY, encoding="utf-8")
    return load_job(file, overrides)


def with_code(job: JobConfig, run: Path) -> JobConfig:
    """The job of the run in this folder, once that has taken along what the layers are built from;
    the job itself where the model is built in."""
    with recording() as recorder:
        workload = build_model(job)
        for index in range(len(workload.layers)):
            build_layer(workload, index, job.train.seed)
        seen = code_taken_along(job, workload, recorder)
    if not seen:
        return job
    write_bundle(Manifest.from_dict(seen["code"]), run / CODE_FOLDER)
    return replace(job, code=str(run / CODE_FOLDER))
