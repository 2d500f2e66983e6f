"""A decoder-only GPT as a plain list of layers: embedding, blocks, head.

Shapes: B sequences, T tokens, C width, H heads, D width of a head, V vocabulary. Blocks are
pre-norm, and the projections that add to the residual stream have smaller initial values, as in
GPT-2 (Radford et al., 2019).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.config.tree import ModelConfig
from bamboo.models.workload import TiedParameter, Workload

INITIAL_STD = 0.02


class Embedding(nn.Module):
    """Token plus position embedding: tokens_BT int64 -> x_BTC."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocabulary, model.width)
        self.positions = nn.Parameter(torch.empty(model.context, model.width))
        self.dropout = model.dropout
        nn.init.normal_(self.tokens.weight, std=INITIAL_STD)
        nn.init.normal_(self.positions, std=INITIAL_STD)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC: Tensor = self.tokens(tokens_BT) + self.positions[: tokens_BT.shape[1]]
        return F.dropout(x_BTC, self.dropout, self.training)


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each pre-norm and residual."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        width = model.width
        self.heads = model.heads
        self.dropout = model.dropout
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_feed = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        residual_std = INITIAL_STD / math.sqrt(2 * model.layers)
        for linear, std in (
            (self.qkv, INITIAL_STD),
            (self.project, residual_std),
            (self.expand, INITIAL_STD),
            (self.contract, residual_std),
        ):
            nn.init.normal_(linear.weight, std=std)
            nn.init.zeros_(linear.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self._drop(self._attend(self.norm_attention(x_BTC)))
        hidden = F.gelu(self.expand(self.norm_feed(x_BTC)))
        return x_BTC + self._drop(self.contract(hidden))

    def _attend(self, x_BTC: Tensor) -> Tensor:
        b, t, c = x_BTC.shape
        qkv_3BHTD = (
            self.qkv(x_BTC).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        )
        q_BHTD, k_BHTD, v_BHTD = qkv_3BHTD.unbind(0)
        # There is no dropout inside: with it the CPU takes another kernel, which is slower.
        out_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        projected: Tensor = self.project(out_BHTD.transpose(1, 2).reshape(b, t, c))
        return projected

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class Head(nn.Module):
    """Final norm and projection on the vocabulary: x_BTC -> logits_BTV."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(model.width)
        self.vocabulary = nn.Linear(model.width, model.vocabulary, bias=False)
        nn.init.normal_(self.vocabulary.weight, std=INITIAL_STD)

    def forward(self, x_BTC: Tensor) -> Tensor:
        logits_BTV: Tensor = self.vocabulary(self.norm(x_BTC))
        return logits_BTV


def token_loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Cross entropy in nats, summed over all B*T tokens: float32 scalar."""
    return F.cross_entropy(logits_BTV.float().flatten(0, -2), targets_BT.flatten(), reduction="sum")


def gpt_workload(model: ModelConfig) -> Workload:
    """`model.layers` blocks between embedding and head; the head's weight tied where asked."""
    head = model.layers + 1
    tie = TiedParameter(
        owner_layer=0, owner_name="tokens.weight", user_layer=head, user_name="vocabulary.weight"
    )
    return Workload(
        layers=(
            lambda: Embedding(model),
            *([lambda: Block(model)] * model.layers),
            lambda: Head(model),
        ),
        loss=token_loss,
        tied=(tie,) if model.tied else (),
        plain=True,
    )
