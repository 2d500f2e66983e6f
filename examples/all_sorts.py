"""All sorts at once: frozen layers, a tied weight, tensors that are handed through, an output that
nobody uses, masks, a batch norm, and sentences of unequal length. The label of each token is the
token before it, which a layer finds by its place.

Shapes: B sentences, T tokens of the longest one in the microbatch, W width, V vocabulary.
"""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.models import TiedParameter, Workload

V, W, LONGEST = 16, 24, 12


class Sentences:
    """Random sentences: ((tokens_BT, mask_BT), labels_BT); a label of -1 does not count."""

    samples, unit, digest = 512, "token", "sentences-2"

    def _tokens(self, index: int) -> list[int]:
        draw = random.Random(index)
        return [draw.randrange(1, V) for _ in range(draw.randint(3, LONGEST))]

    def batch(self, indices, keys):
        rows = [torch.tensor(self._tokens(i)) for i in indices]
        tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        before = [F.pad(row[:-1], (1, 0), value=-1) for row in rows]
        labels = nn.utils.rnn.pad_sequence(before, batch_first=True, padding_value=-1)
        return (tokens, tokens > 0), (labels,)

    def count(self, index, key):
        return len(self._tokens(index)) - 1


class Embed(nn.Module):
    """(tokens, mask) -> (x, places, mask); the places are handed through to the last layer."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(V, W)
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.places = nn.Embedding(LONGEST, W).bfloat16().requires_grad_(requires_grad=False)

    def forward(self, inputs):
        tokens, mask = inputs
        places = self.places.weight[: tokens.shape[1]].expand(*tokens.shape, W)
        return self.tokens(tokens), places, mask


class Mix(nn.Module):
    """(x, places, mask) -> the same with a new x; the first one adds an output for nobody."""

    def __init__(self, unused):
        super().__init__()
        self.norm, self.unused = nn.BatchNorm1d(W), nn.Linear(W, 3) if unused else None
        self.keys, self.out = nn.Linear(W, 2 * W), nn.Linear(W, W)

    def forward(self, inputs):
        x, places, mask, *rest = inputs
        x = self.norm(x.flatten(0, 1)).view_as(x)
        q, k = self.keys(x + places).chunk(2, -1)
        scores = (q @ k.transpose(1, 2)).masked_fill(~mask[:, None], -1e4).softmax(-1)
        rest = [self.unused(x)] if self.unused else []
        return (x + F.dropout(self.out(scores @ x), 0.1, self.training), places, mask, *rest)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(W, V)

    def forward(self, inputs):
        x, places, mask = inputs
        return self.out(x + places) * mask.unsqueeze(-1)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="sum")


def build(job):
    tie = TiedParameter(
        owner_layer=0, owner_name="tokens.weight", user_layer=5, user_name="out.weight"
    )
    mixes = [lambda: Mix(unused=True), *[lambda: Mix(unused=False)] * 3]
    return Workload(layers=(Embed, *mixes, Head), loss=loss, data=Sentences(), tied=(tie,))
