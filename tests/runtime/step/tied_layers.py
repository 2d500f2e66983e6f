"""A user's own model with parameters tied across stages that are no neighbours."""

import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.config.tree import JobConfig
from bamboo.models import TiedParameter, Workload
from bamboo.models.gpt import token_loss

WIDTH = 8


class Mix(nn.Module):
    """A residual linear layer with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(F.gelu(self.mix(x)), 0.1, self.training)


def build(job: JobConfig) -> Workload:
    """Embedding, five mixing layers, head; layers 1, 3 and 5, and 2 and 4, share a matrix."""
    ties = ((1, 3), (1, 5), (2, 4))
    return Workload(
        layers=(
            lambda: nn.Embedding(job.model.vocabulary, WIDTH),
            *([Mix] * 5),
            lambda: nn.Linear(WIDTH, job.model.vocabulary),
        ),
        loss=token_loss,
        tied=tuple(
            TiedParameter(
                owner_layer=owner, owner_name="mix.weight", user_layer=user, user_name="mix.weight"
            )
            for owner, user in ties
        ),
    )
