"""A CNN with batch norm and a wide classifier, on images that are drawn: a model file.

    model = "<this file>:build"

Shapes: B images of 8 x 8. `model.width` is the number of channels of the first convolution; the
layers of the classifier have `WIDER` times as many values.
"""

import hashlib
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.config.tree import JobConfig
from bamboo.models import Workload

SIDE = 8
CLASSES = 10
SAMPLES = 512
WIDER = 64


class Images:
    """((images_B188,), (classes_B,)): noise on one picture for each class."""

    samples = SAMPLES
    unit = "image"

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(1)
        pictures = torch.randn(CLASSES, 1, SIDE, SIDE, generator=draw)
        self.classes = torch.randint(CLASSES, (SAMPLES,), generator=draw)
        noise = torch.randn(SAMPLES, 1, SIDE, SIDE, generator=draw)
        self.images = pictures[self.classes] + noise
        self.digest = hashlib.sha256(self.images.numpy().tobytes()).hexdigest()

    def batch(
        self, indices: Sequence[int], keys: Sequence[int]
    ) -> tuple[tuple[Tensor], tuple[Tensor]]:
        """See `bamboo.models.Data`."""
        del keys
        return (self.images[list(indices)],), (self.classes[list(indices)],)


def _convolved(channels: int, out: int, *rest: nn.Module) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU(), *rest)


def _wide(given: int, out: int, *before: nn.Module) -> nn.Sequential:
    return nn.Sequential(*before, nn.Linear(given, out), nn.ReLU())


def _loss(scores_BC: Tensor, classes_B: Tensor) -> Tensor:
    return F.cross_entropy(scores_BC.float(), classes_B, reduction="sum")


def build(job: JobConfig) -> Workload:
    """Two convolutions, two wide layers and the last one."""
    channels = job.model.width
    wide, seen = WIDER * channels, 2 * channels * (SIDE // 2) ** 2
    layers = (
        lambda: _convolved(1, channels),
        lambda: _convolved(channels, 2 * channels, nn.MaxPool2d(2)),
        lambda: _wide(seen, wide, nn.Flatten()),
        partial(_wide, wide, wide),
        partial(nn.Linear, wide, CLASSES),
    )
    return Workload(layers=layers, loss=_loss, data=Images())
