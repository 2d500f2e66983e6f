"""Layers that leave odd memory layouts behind give the same bits wherever the cut is."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from bamboo.models import Workload, build_layer, named_parameters, run_layers
from bamboo.models.gpt import token_loss

WIDTH = 48


class _Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x_BTC: Tensor) -> Tensor:
        y_BTC: Tensor = self.convolve(x_BTC.transpose(1, 2)).transpose(1, 2)
        return y_BTC


class _Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BTC: Tensor) -> Tensor:
        y_BTC: Tensor = self.linear(x_BTC).mean(1, keepdim=True)
        return y_BTC.expand(-1, x_BTC.shape[1], -1)


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x_BTC: Tensor) -> Tensor:
        return (x_BTC * self.weight).transpose(1, 2).flip(1).transpose(1, 2)


def _linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


SPEC = Workload(
    layers=(
        lambda: nn.Embedding(256, WIDTH),
        _linear,
        _Convolution,
        _linear,
        _Mean,
        _linear,
        _Scale,
        _Convolution,
        lambda: nn.Linear(WIDTH, 256),
    ),
    loss=token_loss,
)


def _gradients(cut: list[int]) -> list[Tensor | None]:
    """Stage by stage, as though each stage ran elsewhere: only copies pass between them."""
    layers = [(i, build_layer(SPEC, i, 1)) for i in range(len(SPEC.layers))]
    tokens_BT = torch.arange(42).view(3, 14) * 37 % 256
    x, targets_BT = tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous()
    ends: list[tuple[Tensor, Tensor]] = []
    for lo, hi in itertools.pairwise([*cut, len(layers)]):
        if lo:
            x = x.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
        (y,) = run_layers(layers[lo:hi], (x,), seed=1, step=0, microbatch=0)
        ends.append((x, y))
        x = y
    gradient: Tensor | None = None
    SPEC.loss(x, targets_BT).backward()  # type: ignore[no-untyped-call]
    for (below, _), (_, y) in zip(reversed(ends[1:]), reversed(ends[:-1]), strict=True):
        gradient = below.grad
        assert gradient is not None
        y.backward(gradient.clone(memory_format=torch.contiguous_format))  # type: ignore[no-untyped-call]
    return [p.grad for _, p in named_parameters(layers)]


@pytest.mark.parametrize("cut", [list(range(9)), [0, 3], [0, 2, 5], [0, 4, 7]])
def test_gradients_do_not_depend_on_the_cut(cut: list[int]) -> None:
    for whole, piecewise in zip(_gradients([0]), _gradients(cut), strict=True):
        assert whole is not None
        assert piecewise is not None
        assert torch.equal(whole, piecewise)
