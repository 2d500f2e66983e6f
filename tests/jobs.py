"""A job so small that a step takes milliseconds, for tests of every room that trains."""

from collections.abc import Sequence
from pathlib import Path

from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig

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
[cluster]
stages = 2
"""


def tiny_job(folder: Path, overrides: Sequence[str] = ()) -> JobConfig:
    """A GPT of two blocks of width 16 on a few kilobytes of text in `folder`."""
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    file = folder / "job.toml"
    file.write_text(TINY, encoding="utf-8")
    return load_job(file, overrides)
