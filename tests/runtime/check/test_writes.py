"""What a layer, a loss and metrics write into, seen even where no number changes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bamboo.errors import InputError
from bamboo.models import Workload
from bamboo.runtime.check.loss_contract import check_metrics, loss_gradient
from bamboo.runtime.check.one_layer import OneLayer, Place

Call = Callable[[nn.Module, Tensor], object]


class Writing(nn.Module):
    """Calls `what` before it does its work."""

    def __init__(self, what: Call) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3, 3), 0.5))
        self.register_buffer("scale", torch.ones(3))
        self.scratch = torch.zeros(3)
        self._what = what

    def forward(self, x: Tensor) -> Tensor:
        self._what(self, x)
        y: Tensor = x @ self.weight * self.scale
        return y


CALLS: dict[str, tuple[Call, str]] = {
    "its own": (lambda m, x: torch.zeros(3).add_(1.0), ""),
    "a clamp": (lambda m, x: m.weight.data.clamp_(-9.0, 9.0), "changes its parameter 'weight'"),  # type: ignore[operator,union-attr]
    "a buffer": (lambda m, x: m.scale.mul_(1.0), "changes its buffer 'scale'"),  # type: ignore[operator,union-attr]
    "its input": (lambda m, x: x.data.clamp_(-9.0, 9.0), "writes into its input"),
    "as out": (lambda m, x: torch.add(x.detach()[0], 1.0, out=m.scratch), "into its 'scratch'"),  # type: ignore[call-overload]
}


def _refusal(layer: nn.Module, x: Tensor) -> str:
    workload = Workload(layers=(lambda: layer,), loss=nn.functional.mse_loss)
    try:
        one = OneLayer(workload, Place(file="job.toml", index=0), seed=1)
        one.forward((x,), 0, 0, checked=True)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("call", "says"), CALLS.values(), ids=CALLS)
def test_a_layer_that_writes_into_what_was_there_is_refused(call: Call, says: str) -> None:
    said = _refusal(Writing(call), torch.ones(2, 3, requires_grad=True))
    assert says in said
    assert bool(said) is bool(says)


def test_a_norm_that_is_not_reached_yet_is_refused() -> None:
    """Later in a run it is, and then each pipeline would change other rows."""
    said = _refusal(nn.Embedding(9, 3, max_norm=1e6), torch.tensor([1, 2]))
    assert (
        "layer 0 (Embedding) changes its parameter 'weight' while it runs (max_norm does)" in said
    )


def _with(
    loss: Callable[[Tensor, Tensor], Tensor] = lambda o, t: (o - t).square().sum(),
    metrics: Callable[[Tensor, Tensor], dict[str, tuple[object, object]]] = lambda o, t: {},
) -> tuple[Workload, tuple[Tensor], tuple[Tensor]]:
    return Workload(layers=(), loss=loss, metrics=metrics), (torch.ones(2),), (torch.zeros(2),)


@pytest.mark.parametrize(
    ("loss", "part"),
    [
        (lambda o, t: (o.sub_(t)).square().sum(), "outputs"),
        (lambda o, t: (o - t.mul_(1.0)).square().sum(), "targets"),
        (lambda o, t: o.data.add_(1.0).sum() + o.square().sum(), "outputs"),
    ],
)
def test_a_loss_that_writes_is_refused(loss: Callable[..., Tensor], part: str) -> None:
    workload, (output,), targets = _with(loss)
    with pytest.raises(InputError, match=f"the {part} are written into by the loss; compute out"):
        loss_gradient("job.toml", workload, (output.requires_grad_(),), targets, 1)


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        (lambda o, t: {"a": (o.mul_(1.0).sum(), 1)}, "the outputs are written into by the metrics"),
        (lambda o, t: {"a": (torch.rand(()), 1)}, "the metric 'a' differs when it is asked again"),
        (
            lambda o, t: {"a": (torch.set_flush_denormal(True), 1)},
            "metrics function changes how torch treats denormal numbers",
        ),
    ],
)
def test_metrics_that_do_more_than_measure_are_refused(
    metrics: Callable[..., dict[str, tuple[object, object]]], says: str
) -> None:
    workload, output, targets = _with(metrics=metrics)
    try:
        with pytest.raises(InputError, match=says):
            check_metrics("job.toml", workload, output, targets)
    finally:
        torch.set_flush_denormal(False)
