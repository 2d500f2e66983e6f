"""Regression on a table: ten measurements of a patient say how diabetes went on within a year.

Shapes: B patients of a microbatch. The last HELD_OUT patients are not trained on.
"""

import hashlib

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from bamboo.config.tree import JobConfig
from bamboo.models import Workload

HELD_OUT = 42


class Patients:
    """((measurements_B10,), (progress_B1,)), scaled to about 1; each patient counts 1."""

    def __init__(self) -> None:
        x, y = load_diabetes(return_X_y=True)
        self.x = torch.tensor(x[:-HELD_OUT] * 21, dtype=torch.float32)
        self.y = torch.tensor(y[:-HELD_OUT, None] / 77 - 2, dtype=torch.float32)
        self.samples, self.unit = len(self.x), "patient"
        self.digest = hashlib.sha256(
            self.x.numpy().tobytes() + self.y.numpy().tobytes()
        ).hexdigest()

    def batch(self, indices: list[int], keys: list[int]) -> tuple[tuple[Tensor], tuple[Tensor]]:
        return (self.x[indices],), (self.y[indices],)


def loss(predicted_B1: Tensor, progress_B1: Tensor) -> Tensor:
    return (predicted_B1 - progress_B1).square().sum()


def metrics(predicted_B1: Tensor, progress_B1: Tensor) -> dict[str, tuple[Tensor, int]]:
    return {"error": ((predicted_B1 - progress_B1).abs().sum(), len(progress_B1))}


def build(job: JobConfig) -> Workload:
    layers = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
    return Workload(layers=layers, loss=loss, data=Patients(), metrics=metrics)
