"""Layers of the shape of a Llama of 1 B parameters, as a model of a user's own.

With 16 blocks of width 2048 they have the shape of Llama 3.2 1B: a quarter as many heads of keys
and values as of queries, a feed-forward network four times as wide, rotary positions. Tokens are
bytes, so there is no large vocabulary. Shapes: B sequences, T tokens, C width, H heads, K heads of
keys and values, D width of a head, F inner width.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.config.tree import JobConfig

STD = 0.02
QUERIES_A_KEY = 4
WIDER = 4
BASE = 500_000.0


class Tokens(nn.Module):
    """tokens_BT int64 -> x_BTC."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        nn.init.normal_(self.weight, std=STD)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return F.embedding(tokens_BT, self.weight)


class Block(nn.Module):
    """Causal attention with grouped keys, and a gated feed-forward network, each pre-norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.keys = heads, max(heads // QUERIES_A_KEY, 1)
        self.head_width = width // heads
        inner = WIDER * width
        self.norm_attention, self.norm_feed = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, self.keys * self.head_width, bias=False)
        self.value = nn.Linear(width, self.keys * self.head_width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.expand = nn.Linear(width, inner, bias=False)
        self.contract = nn.Linear(inner, width, bias=False)
        for linear in self.modules():
            if isinstance(linear, nn.Linear):
                nn.init.normal_(linear.weight, std=STD)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self._attend(self.norm_attention(x_BTC))
        y_BTC = self.norm_feed(x_BTC)
        return x_BTC + self.contract(F.silu(self.gate(y_BTC)) * self.expand(y_BTC))

    def _attend(self, x_BTC: Tensor) -> Tensor:
        b, t, c = x_BTC.shape
        q_BHTD = self.query(x_BTC).view(b, t, self.heads, -1).transpose(1, 2)
        k_BKTD = self.key(x_BTC).view(b, t, self.keys, -1).transpose(1, 2)
        v_BKTD = self.value(x_BTC).view(b, t, self.keys, -1).transpose(1, 2)
        more = self.heads // self.keys
        k_BHTD = _rotated(k_BKTD).repeat_interleave(more, dim=1)
        v_BHTD = v_BKTD.repeat_interleave(more, dim=1)
        out_BHTD = F.scaled_dot_product_attention(_rotated(q_BHTD), k_BHTD, v_BHTD, is_causal=True)
        out: Tensor = self.project(out_BHTD.transpose(1, 2).reshape(b, t, c))
        return out


class Head(nn.Module):
    """Final norm and projection on the vocabulary: x_BTC -> logits_BTV."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.vocabulary = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.vocabulary.weight, std=STD)

    def forward(self, x_BTC: Tensor) -> Tensor:
        logits_BTV: Tensor = self.vocabulary(self.norm(x_BTC))
        return logits_BTV


def _rotated(x_BHTD: Tensor) -> Tensor:
    """Rotary positions (Su et al., 2021), in the type of the input."""
    t, d = x_BHTD.shape[-2:]
    powers = torch.arange(0, d, 2, device=x_BHTD.device, dtype=torch.float32) / d
    places = torch.arange(t, device=x_BHTD.device, dtype=torch.float32)
    angles_TE = torch.outer(places, BASE**-powers)
    cos_TE, sin_TE = angles_TE.cos().to(x_BHTD.dtype), angles_TE.sin().to(x_BHTD.dtype)
    first, second = x_BHTD.chunk(2, dim=-1)
    turned = (first * cos_TE - second * sin_TE, second * cos_TE + first * sin_TE)
    return torch.cat(turned, dim=-1)


def build(job: JobConfig) -> list[Callable[[], nn.Module]]:
    """The list of layers of a job."""
    model = job.model
    block = partial(Block, model.width, model.heads)
    return [
        partial(Tokens, model.vocabulary, model.width),
        *([block] * model.layers),
        partial(Head, model.vocabulary, model.width),
    ]
