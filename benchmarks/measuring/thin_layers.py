"""A model that hardly computes, for virtual devices.

The device is told how long an operation takes. On two cores, real arithmetic of many nodes, which
otherwise do not wait for each other, would delay each other's messages.
"""

from collections.abc import Callable

from torch import nn

from bamboo.config.tree import JobConfig

BUILD = f"{__file__}:build"


def build(job: JobConfig) -> list[Callable[[], nn.Module]]:
    """An embedding, `model.layers` linear layers, a projection on the vocabulary."""
    model = job.model
    return [
        lambda: nn.Embedding(model.vocabulary, model.width),
        *[lambda: nn.Linear(model.width, model.width)] * model.layers,
        lambda: nn.Linear(model.width, model.vocabulary),
    ]
