"""The jobs on which ways of synchronising are compared: a GPT with a tied and an untied head, a CNN
with a wide classifier, and the mixed job of `examples/stdlib_files.py`.

Rule: a job here has no grid; each user lays it out.
"""

from dataclasses import replace
from pathlib import Path

from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from examples import stdlib_files
from testbed import wide_cnn

NAMES = ("GPT", "tied GPT", "CNN", "mixed")
FILES = 12
"""Of the standard library, in the small mixed job: which have 646 different tokens."""


def write_small(folder: Path) -> None:
    """Write the tokens of the small mixed job."""
    stdlib_files.write(folder, FILES)


def small(name: str, folder: Path) -> JobConfig:
    """The job of this name in a size for tests; `folder` has what `write_small` wrote."""
    if name == "mixed":
        model = ModelConfig(model=f"{stdlib_files.__file__}:build", layers=1, width=8, heads=2)
    elif name == "CNN":
        model = ModelConfig(model=f"{wide_cnn.__file__}:build", width=2)
    else:
        tied = name == "tied GPT"
        model = ModelConfig(layers=2, width=8, heads=2, context=4, dropout=0.1, tied=tied)
    return replace(_SMALL, model=model, data=_data(name, folder))


def medium(name: str, folder: Path) -> JobConfig:
    """Likewise, with layers so large that factors and rows are fewer bytes."""
    job = small(name, folder)
    width = {"mixed": 64, "CNN": 16}.get(name, 64)
    model = replace(job.model, width=width, context=16 if job.model.is_gpt else job.model.context)
    return replace(job, model=model, train=replace(job.train, batch=16, microbatch=2))


def large(name: str, folder: Path, *, batch: int, microbatch: int) -> JobConfig:
    """The job of this name in a size for measurements; `folder` has what
    `examples/stdlib_files.py` writes, of the whole standard library."""
    if name == "mixed":
        model = ModelConfig(model=f"{stdlib_files.__file__}:build", layers=2, width=256, heads=4)
    elif name == "CNN":
        model = ModelConfig(model=f"{wide_cnn.__file__}:build", width=32)
    else:
        tied = name == "tied GPT"
        model = ModelConfig(layers=2, width=128, heads=4, context=64, dropout=0.1, tied=tied)
    train = TrainConfig(batch=batch, microbatch=microbatch)
    return replace(_SMALL, model=model, data=_data(name, folder), train=train)


def _data(name: str, folder: Path) -> DataConfig:
    if name == "CNN":
        return DataConfig()
    if name == "mixed":
        return DataConfig(source=f"{stdlib_files.__file__}:data", path=str(folder))
    return DataConfig(max_bytes=2000)


_SMALL = JobConfig(
    checkpoint=CheckpointConfig(every_steps=0),
    train=TrainConfig(steps=3, batch=8, microbatch=1, seed=3, virtual_nodes=8, clip_norm=0.5),
    cluster=ClusterConfig(step_timeout_s=1e6),
)
