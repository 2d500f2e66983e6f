"""A user's file with data of its own: rows of unequal length, some labels of which do not count."""

from collections.abc import Sequence
from pathlib import Path

from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig

SOURCE = """
import random
import torch
import torch.nn.functional as F
from torch import nn
from bamboo.models import Workload

class Rows:
    samples, unit, digest = 21, "word", "rows-1"
    def _row(self, index):
        draw = random.Random(index)
        return [draw.randrange(9) for _ in range(draw.randint(1, 5))]
    def batch(self, indices, keys):
        rows = [torch.tensor(self._row(i)) for i in indices]
        words = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        labels = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        return (words, words >= 0), (labels,)
    def count(self, index, key):
        return len(self._row(index))

class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 8)
    def forward(self, x):
        words, there = x
        return self.table(words) * there.unsqueeze(-1)

def loss(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-1,
                           reduction="sum")

def metrics(outputs, targets):
    there = targets >= 0
    right = (outputs.argmax(-1) == targets) & there
    return {"accuracy": (right.sum(), there.sum()), "rows": (len(targets), 1)}

def layers(job): return [First, nn.Linear(8, 8), lambda: nn.Linear(8, 9)]
def build(job): return Workload(layers=layers(job), loss=loss, data=Rows(),
                                metrics=metrics)
"""
JOB = """
[model]
model = "mine.py:build"
[train]
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


def own_job(folder: Path, source: str = SOURCE, overrides: Sequence[str] = ()) -> JobConfig:
    """A job whose model and data are this file."""
    (folder / "mine.py").write_text(source, encoding="utf-8")
    (folder / "job.toml").write_text(JOB, encoding="utf-8")
    return load_job(folder / "job.toml", overrides)
