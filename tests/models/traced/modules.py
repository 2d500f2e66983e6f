"""Small modules that are traced: a CNN with batch norms, an encoder with a tied head, a U-Net, and
one that draws, whose code has both modes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Writes over what it computed, adds its input, and normalises."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.second(self.relu(self.norm(self.first(x)))) + x)
        return y


class Cnn(nn.Module):
    inputs = (torch.rand(4, 1, 8, 8),)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.head = nn.Linear(8, 10)
        self.same = self.head.bias

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)).view(x.shape[0], -1))
        return scores


class Mlp(nn.Sequential):
    inputs = (torch.rand(4, 8),)

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 16), nn.Linear(16, 3))


class Encoder(nn.Module):
    inputs = (torch.randint(50, (4, 12)),)

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Parameter(torch.randn(12, 16))
        self.register_buffer("scale", torch.tensor(4.0), persistent=False)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(tokens) * self.scale + self.places[:length]
        logits: Tensor = self.head(self.encoder(x, mask=mask, is_causal=True))
        return logits


class UNet(nn.Module):
    inputs = (torch.rand(4, 1, 8, 8),)

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.coarse = nn.Conv2d(8, 16, 3, padding=1)
        self.bottom = nn.Conv2d(16, 16, 3, padding=1)
        self.back = nn.ConvTranspose2d(32, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        coarse = self.coarse(F.max_pool2d(fine, 2)).relu()
        both = torch.cat((coarse, self.bottom(coarse)), 1)
        out: Tensor = self.out(torch.cat((self.back(both), fine), 1))
        return out


class Draws(nn.Module):
    inputs = (torch.rand(4, 6, 8),)

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 8), nn.Linear(8, 2)
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True, dropout=0.2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:  # operations of one mode alone
            x = x * torch.empty(x.shape[1:]).bernoulli_(0.5).div_(0.5)
        x, _ = self.lstm(F.dropout(self.into(x), 0.3, self.training))
        x = F.scaled_dot_product_attention(x, x, x, dropout_p=0.2 if self.training else 0.0)
        out: Tensor = self.out(x)
        return out
