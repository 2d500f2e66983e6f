"""A user's own model: an MLP that predicts the next byte from the last few ones.

`build(job)` returns the layers in order, as functions that make one layer each. Every stage of the
pipeline is a consecutive slice of this list. Layers draw random numbers from torch's default
generator only, and take and return one tensor here.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.config.tree import JobConfig

LOOK_BACK = 8
"""Tokens that a prediction sees."""


class Window(nn.Module):
    """tokens_BT -> x_BTC: the embeddings of the last LOOK_BACK tokens, mixed into one vector."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(LOOK_BACK * width, width)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC = F.pad(self.tokens(tokens_BT), (0, 0, LOOK_BACK - 1, 0))
        seen_BTCL = x_BTC.unfold(1, LOOK_BACK, 1)
        mixed_BTC: Tensor = self.mix(seen_BTCL.flatten(2))
        return mixed_BTC


class Residual(nn.Module):
    """x_BTC -> x_BTC: norm, one hidden layer, dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTC: Tensor) -> Tensor:
        hidden = torch.relu(self.expand(self.norm(x_BTC)))
        out_BTC: Tensor = x_BTC + self.dropout(self.contract(hidden))
        return out_BTC


def build(job: JobConfig) -> list[Callable[[], nn.Module]]:
    """Window, `model.layers` residual layers, projection on the vocabulary."""
    model = job.model
    return [
        lambda: Window(model.vocabulary, model.width),
        *[lambda: Residual(model.width, model.dropout)] * model.layers,
        lambda: nn.Linear(model.width, model.vocabulary),
    ]
