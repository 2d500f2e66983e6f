"""An encoder-decoder: three tensors pass from layer to layer.

`x_BTC` predicts the next byte, `source_BTC` is what the encoder makes of each chunk of CHUNK bytes,
and `seen_BTS` (bool) is a mask: which places of the source a position may look up, namely those of
earlier chunks that are no blanks. A layer hands through what it does not change.
"""

import torch
import torch.nn.functional as F
from torch import nn

CHUNK, BLANK = 8, ord(" ")


class Embed(nn.Module):
    """tokens_BT -> (x_BTC, source_BTC, seen_BTS)."""

    def __init__(self, vocabulary, context, width):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)

    def forward(self, tokens_BT):
        place_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTC = self.tokens(tokens_BT) + self.places(place_T)
        earlier_TS = (place_T // CHUNK)[:, None] > place_T // CHUNK
        return x_BTC, x_BTC, earlier_TS & (tokens_BT != BLANK)[:, None]


class Encode(nn.TransformerEncoderLayer):
    """Each place of the source looks at its whole chunk."""

    def forward(self, given):
        x_BTC, source_BTC, seen_BTS = given
        chunks = source_BTC.unflatten(1, (-1, CHUNK)).flatten(0, 1)
        return x_BTC, super().forward(chunks).view_as(source_BTC), seen_BTS


class Decode(nn.TransformerDecoderLayer):
    """Each position looks at those before it, then at what it sees of the source."""

    def forward(self, given):
        x_BTC, source_BTC, seen_BTS = given
        later_TT = torch.ones_like(seen_BTS[0]).triu(1)
        # A place of zeros comes first, so that each position sees something.
        hidden = F.pad(~seen_BTS, (1, 0)).repeat_interleave(self.self_attn.num_heads, 0)
        memory = F.pad(source_BTC, (0, 0, 1, 0))
        return super().forward(x_BTC, memory, later_TT, hidden), source_BTC, seen_BTS


class Predict(nn.Linear):
    """(x_BTC, ...) -> logits_BTV."""

    def forward(self, given):
        return super().forward(given[0])


def build(job):
    """Embedding, `model.layers` layers of the encoder, as many of the decoder, prediction."""
    m = job.model
    sizes = {"dim_feedforward": 4 * m.width, "dropout": m.dropout, "batch_first": True}
    return [
        lambda: Embed(m.vocabulary, m.context, m.width),
        *[lambda: Encode(m.width, m.heads, **sizes)] * m.layers,
        *[lambda: Decode(m.width, m.heads, **sizes)] * m.layers,
        lambda: Predict(m.width, m.vocabulary),
    ]
