"""An evaluation of layers: torch's own eval mode, and the layers as they were before."""

import copy

import torch
from torch import nn

from bamboo.models import BatchNorms, evaluate, run_layers


class Once(nn.Module):
    """A layer whose own `train` and `eval` are not to be called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def train(self, mode: bool = True) -> "Once":
        raise AssertionError(f"train({mode})")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


def test_it_is_torchs_own_eval_mode_and_leaves_no_trace() -> None:
    torch.manual_seed(3)
    layers: list[tuple[int, nn.Module]] = [(0, nn.Linear(3, 4)), (1, Once()), (2, nn.Dropout(0.1))]
    layers[1][1].get_submodule("inner.2").training = False  # one part is in eval mode for good
    norms = BatchNorms(layers)
    norm = layers[1][1].get_submodule("inner.1")
    with torch.no_grad():
        norm.running_mean.add_(0.3)  # type: ignore[union-attr, operator]
    plain = copy.deepcopy(layers)
    x, at = torch.randn(5, 3), {"seed": 1, "step": 2, "microbatch": 0}
    norms.begin()
    before = run_layers(layers, (x,), **at)  # type: ignore[arg-type]
    modes = [m.training for _, layer in layers for m in layer.modules()]
    kept = {n: t.clone() for _, layer in layers for n, t in layer.state_dict().items()}

    (y,) = evaluate(layers, (x,), seed=1, microbatch=4)

    with torch.no_grad():
        wanted = x
        for _, layer in plain:
            for module in layer.modules():
                module.training = False
                module.__dict__.pop("forward", None)
            wanted = layer(wanted)
    assert torch.equal(y, wanted)
    assert not y.requires_grad
    assert [m.training for _, layer in layers for m in layer.modules()] == modes
    for _, layer in layers:
        for name, tensor in layer.state_dict().items():
            assert torch.equal(tensor, kept[name])
    norms.begin()
    again = run_layers(layers, (x,), **at)  # type: ignore[arg-type]
    assert torch.equal(before[0], again[0])
    assert len(norms.taken()) == 2
