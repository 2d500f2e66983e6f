"""A user's own model with parameters of all sorts: frozen ones, some in bfloat16, tied over layers,
constant buffers, and batch norms."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.config.tree import JobConfig
from bamboo.models import TiedParameter, Workload
from bamboo.models.gpt import token_loss

WIDTH = 8


class Mix(nn.Module):
    """A residual linear layer, a batch norm over the sequence, a constant scale, dropout, and
    frozen numbers in bfloat16."""

    def __init__(self, momentum: float = 0.1) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH, momentum=momentum)
        self.frozen = nn.Linear(WIDTH, WIDTH, bias=False).bfloat16().requires_grad_(False)
        self.norm.bias.requires_grad_(False)
        self.register_buffer("scale", torch.rand(WIDTH) + 0.5)
        self.register_buffer("kept", torch.arange(3) > 1)
        self.register_buffer("made", torch.ones(WIDTH), persistent=False)
        self.scale: Tensor
        self.made: Tensor

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.mix(x).transpose(1, 2)).transpose(1, 2)
        hidden = F.linear(hidden, self.frozen.weight.float()) * self.scale * self.made
        return x + F.dropout(F.gelu(hidden), 0.1, self.training)


class Slow(Mix):
    """The same with another momentum."""

    def __init__(self) -> None:
        super().__init__(momentum=0.02)


class Still(nn.Module):
    """A layer that is frozen as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.mix(x))


def build(job: JobConfig) -> Workload:
    """Embedding, mixing layers, head. Layers 1 and 5 share a trained matrix, and layers 2 and 4 a
    frozen bias."""
    ties = ((1, "mix.weight", 5, "mix.weight"), (2, "mix.bias", 4, "mix.bias"))
    return Workload(
        layers=(
            lambda: nn.Embedding(job.model.vocabulary, WIDTH),
            Mix,
            Still,
            Slow,
            Still,
            Mix,
            lambda: nn.Linear(WIDTH, job.model.vocabulary),
        ),
        loss=token_loss,
        tied=tuple(
            TiedParameter(owner_layer=o, owner_name=n, user_layer=u, user_name=m)
            for o, n, u, m in ties
        ),
    )


class Adapted(nn.Module):
    """A trained linear layer beside a wide frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, 600, bias=False).requires_grad_(False)
        self.back = nn.Linear(600, WIDTH, bias=False).requires_grad_(False)
        self.own = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.own(x) + self.back(torch.tanh(self.wide(x)))


def mostly_frozen(job: JobConfig) -> Workload:
    """More than 90 % of all parameters are frozen."""
    return Workload(
        layers=(
            lambda: nn.Embedding(job.model.vocabulary, WIDTH),
            *([Adapted] * 6),
            lambda: nn.Linear(WIDTH, job.model.vocabulary),
        ),
        loss=token_loss,
    )
