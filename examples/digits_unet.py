"""A U-Net takes the noise out of handwritten digits: an ordinary module, which Bamboo traces and
cuts, skips and all. Shapes: B images of 8 x 8.
"""

import torch
import torch.nn.functional as F
from digits_cnn import Digits
from torch import Tensor, nn

from bamboo.config.tree import JobConfig
from bamboo.models import Workload


class NoisyDigits(Digits):
    def batch(self, indices: list[int], keys: list[int]) -> tuple[tuple[Tensor], tuple[Tensor]]:
        ((clean_B188,), _) = super().batch(indices, keys)
        noise = [torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(k)) for k in keys]
        return (clean_B188 + 0.3 * torch.stack(noise),), (clean_B188,)


def block(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU())


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse, self.bottom = block(1, 16), block(16, 32), block(32, 32)
        self.back, self.out = block(64, 16), nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        coarse = self.coarse(F.max_pool2d(fine, 2))
        bottom = F.interpolate(self.bottom(F.max_pool2d(coarse, 2)), scale_factor=2.0)
        back = F.interpolate(self.back(torch.cat((bottom, coarse), 1)), scale_factor=2.0)
        out: Tensor = self.out(torch.cat((back, fine), 1))
        return out


def loss(out_B188: Tensor, clean_B188: Tensor) -> Tensor:
    return F.mse_loss(out_B188, clean_B188, reduction="sum") / 64


def build(job: JobConfig) -> Workload:
    return Workload(layers=[UNet], loss=loss, data=NoisyDigits())
