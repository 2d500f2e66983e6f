"""Batch norm: statistics of each microbatch from the kernel itself, one step of momentum a step."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bamboo.models import BatchNorms, run_back, run_layers, step_statistics

KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.BatchNorm1d(3), (4, 3)),
    "1d of sequences": (lambda: nn.BatchNorm1d(3, momentum=0.25), (4, 3, 5)),
    "2d": (lambda: nn.BatchNorm2d(3, eps=1e-3), (2, 3, 4, 4)),
    "3d without weights": (lambda: nn.BatchNorm3d(3, affine=False), (2, 3, 2, 2, 2)),
}


class _Twice(nn.Module):
    """Runs its batch norm `times` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.norm(x)
        return x


def _inputs(shape: tuple[int, ...], count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(shape, generator=generator) * 3 + 1 for _ in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_microbatch_is_normalised_as_torch_does_it(kind: str) -> None:
    make, shape = KINDS[kind]
    plain, own = make(), make()
    norms = BatchNorms([(7, own)])
    kept = {name: buffer.clone() for name, buffer in norms.buffers.items()}
    for x in _inputs(shape, 3):
        plain.reset_running_stats()  # type: ignore[operator]
        plain.momentum = 1.0  # type: ignore[assignment]
        norms.begin()
        assert torch.equal(own(x), plain(x))
        mean, variance = norms.taken()
        assert torch.equal(mean, plain.running_mean)  # type: ignore[arg-type]
        assert torch.equal(variance, plain.running_var)  # type: ignore[arg-type]
    assert all(torch.equal(buffer, kept[name]) for name, buffer in norms.buffers.items())


def test_one_microbatch_a_step_is_plain_torch() -> None:
    """Then the mean over the microbatches is the one microbatch's, as in an ordinary loop."""
    plain, own = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    norms = BatchNorms([(0, own)])
    for x in _inputs((2, 3, 4, 4), 5):
        plain(x)
        norms.begin()
        own(x)
        step_statistics(norms.momenta, norms.buffers, norms.taken(), microbatches=1)
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(norms.buffers[f"0.{name}"], buffer)


def test_a_step_moves_them_once_to_the_mean_of_its_microbatches() -> None:
    own = nn.BatchNorm1d(2, momentum=0.5)
    norms = BatchNorms([(4, own)])
    sums = [torch.tensor([4.0, 8.0]), torch.tensor([12.0, 4.0])]
    step_statistics(norms.momenta, norms.buffers, sums, microbatches=4)
    assert norms.buffers["4.running_mean"].tolist() == [0.5, 1.0]
    assert norms.buffers["4.running_var"].tolist() == [2.0, 1.0]
    assert norms.buffers["4.num_batches_tracked"].item() == 1
    assert own.running_mean is norms.buffers["4.running_mean"]


def test_a_layer_that_is_computed_again_changes_nothing() -> None:
    layer = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    norms = BatchNorms([(1, layer)])
    x, later = _inputs((4, 3), 2)
    norms.begin()
    (once,) = run_layers([(1, layer)], (x,), seed=1, step=0, microbatch=0)
    found = norms.taken()
    norms.begin()
    (y,) = run_layers([(1, layer)], (x,), (1,), seed=1, step=0, microbatch=0)
    again = norms.taken()
    run_back((y,), (torch.ones_like(y),))
    assert torch.equal(once, y)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    norms.begin()
    run_layers([(1, layer)], (later,), seed=1, step=0, microbatch=1)
    assert not torch.equal(norms.taken()[0], found[0]), "of the microbatch that has just run"


@pytest.mark.parametrize("times", [0, 2])
def test_each_runs_once_a_microbatch(times: int) -> None:
    layer = _Twice(times)
    norms = BatchNorms([(5, layer)])
    norms.begin()
    layer(_inputs((4, 3), 1)[0])
    with pytest.raises(ValueError, match=f"the batch norm 5.norm ran {times} times"):
        norms.taken()


def test_what_has_no_running_statistics_of_its_own_is_left_alone() -> None:
    """Also a batch norm in eval mode, whose buffers are constant."""
    layers = nn.ModuleList([nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3).eval()])
    norms = BatchNorms([(0, layers)])
    assert not norms.names
    assert not norms.buffers
    assert not norms.taken()
