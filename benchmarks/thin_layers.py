"""A model that hardly computes, for virtual devices: what an operation takes is given there, and on
two cores the arithmetic of many nodes, which wait for nobody else, delays each other's messages.
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
