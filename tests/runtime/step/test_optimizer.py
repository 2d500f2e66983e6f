"""The optimizers: torch's own results, and bits that depend on one parameter alone."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bamboo.config.tree import Group, Segment, TrainConfig
from bamboo.runtime.optim import optimizer as optimizer_module
from bamboo.runtime.optim.optimizer import Optimizer
from bamboo.runtime.optim.state import OptimizerState
from bamboo.runtime.step.norm import clip_factor, gradient_norm, mean_loss, squares

TRAIN = TrainConfig(steps=20, warmup_steps=4, learning_rate=1e-2, final_learning_rate=1e-3)
SHAPES = ((13, 17), (5,), (64, 33), (1,), (3, 3, 3))


NAMES = ("adamw", "adam", "sgd", "adagrad", "rmsprop", "adafactor")
EACH = [
    *({"optimizer": name} for name in NAMES),
    {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.0},
    {"optimizer": "sgd", "momentum": 0.9, "nesterov": True},
    {"optimizer": "rmsprop", "momentum": 0.5},
]
each = pytest.mark.parametrize("keys", EACH, ids=lambda x: "-".join(map(str, x.values())))


def _random(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def _named(params: list[Tensor]) -> dict[str, Tensor]:
    return {f"0.{i}": p for i, p in enumerate(params)}


def _kept(state: OptimizerState) -> list[Tensor]:
    return [x for own in state.tensors.values() for x in own.values()]


def _equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[kind], b[kind]) for kind in a)


def _theirs(train: TrainConfig, params: list[Tensor]) -> torch.optim.Optimizer:
    """The class of torch with the same settings; it takes one tensor at a time where it can."""
    optim, eps = torch.optim, train.epsilon
    groups: list[dict[str, Any]] = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (train.beta1, train.beta2)
    if train.optimizer == "adamw":
        return optim.AdamW(groups, betas=betas, eps=eps, fused=True)
    if train.optimizer == "adam":
        return optim.Adam(groups, betas=betas, eps=eps, fused=True)
    if train.optimizer == "sgd":
        own = {"momentum": train.momentum, "nesterov": train.nesterov}
        return optim.SGD(groups, lr=1.0, foreach=False, **own)
    if train.optimizer == "adagrad":
        return optim.Adagrad(groups, eps=eps, foreach=False)
    if train.optimizer == "rmsprop":
        own = {"alpha": train.beta2, "momentum": train.momentum}
        return optim.RMSprop(groups, eps=eps, foreach=False, **own)
    return optim.Adafactor(groups, foreach=False)


@each
def test_equals_torchs_own_class_bit_for_bit(keys: dict[str, Any]) -> None:
    train = replace(TRAIN, **keys)
    ours, theirs = _random(0), [p.requires_grad_() for p in _random(0)]
    optimizer, reference = Optimizer(train), _theirs(train, theirs)
    state = optimizer.new_state(_named(ours))
    for step in range(10):
        grads = _random(step + 1)
        optimizer.step(ours, grads, state, step=step, clip_factor=1.0)
        for parameter, grad in zip(theirs, grads, strict=True):
            parameter.grad = grad.clone()
        for group in reference.param_groups:
            group["lr"] = optimizer.learning_rate(step)
        reference.step()
    for name, mine, other in zip(_named(ours), ours, theirs, strict=True):
        assert torch.equal(mine, other.detach()), name
        kept = {k: x for k, x in reference.state[other].items() if k != "step" and x is not None}
        assert _equal(state.tensors[name], kept), name


def _elsewhere(value: Tensor) -> Tensor:
    """A copy that begins one float past an aligned start, as a view into received memory may."""
    return torch.empty(value.numel() + 1)[1:].view_as(value).copy_(value)


@each
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_bits_do_not_depend_on_neighbours_or_place_in_memory(
    factor: float, keys: dict[str, Any]
) -> None:
    together = _random(0)
    alone = list(map(_elsewhere, _random(0)))
    optimizer = Optimizer(replace(TRAIN, **keys))
    moments = optimizer.new_state(_named(together))
    apart = [optimizer.new_state(_named([p])) for p in alone]
    for step in range(5):
        grads = _random(step + 1)
        optimizer.step(together, grads, moments, step=step, clip_factor=factor)
        for p, g, m in reversed(list(zip(alone, grads, apart, strict=True))):
            optimizer.step([p], [_elsewhere(g)], m, step=step, clip_factor=factor)
    for i, (a, b) in enumerate(zip(together, alone, strict=True)):
        assert torch.equal(a, b)
        assert _equal(moments.tensors[f"0.{i}"], apart[i].tensors["0.0"])


@pytest.mark.parametrize("elements", [1, 40, 300])
def test_bits_do_not_depend_on_how_many_are_stepped_at_a_time(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for most in (optimizer_module.GROUP_ELEMENTS, elements):
        monkeypatch.setattr(optimizer_module, "GROUP_ELEMENTS", most)
        params, optimizer = _random(0), Optimizer(TRAIN)
        moments = optimizer.new_state(_named(params))
        for step in range(3):
            optimizer.step(params, _random(step + 1), moments, step=step, clip_factor=0.3)
        found.append([*params, *_kept(moments)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@each
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_gradients_are_untouched(factor: float, keys: dict[str, Any]) -> None:
    params, grads = _random(0), _random(1)
    optimizer = Optimizer(replace(TRAIN, **keys))
    optimizer.step(params, grads, optimizer.new_state(_named(params)), step=0, clip_factor=factor)
    assert all(torch.equal(a, b) for a, b in zip(grads, _random(1), strict=True))
    assert not torch.equal(params[0], _random(0)[0])


@each
def test_a_parameter_without_elements_changes_nothing(keys: dict[str, Any]) -> None:
    optimizer, found = Optimizer(replace(TRAIN, **keys)), []
    for empty in ([], [torch.empty(0, 3), torch.empty(3, 0), torch.empty(0)]):
        params = [*empty, torch.ones(2, 3)]
        state = optimizer.new_state(_named(params))
        grads = [torch.ones_like(p) for p in params]
        optimizer.step(params, grads, state, step=0, clip_factor=0.5)
        found.append(params[-1])
    assert torch.equal(*found)
    assert not found[0].equal(torch.ones(2, 3))


def test_a_factor_scales_the_gradients_as_though_they_had_come_so() -> None:
    optimizer = Optimizer(TRAIN)
    clipped, scaled = _random(0), _random(0)
    state = optimizer.new_state(_named(clipped))
    optimizer.step(clipped, _random(1), state, step=0, clip_factor=0.25)
    grads = [g * 0.25 for g in _random(1)]
    state = optimizer.new_state(_named(scaled))
    optimizer.step(scaled, grads, state, step=0, clip_factor=1.0)
    assert all(torch.equal(a, b) for a, b in zip(clipped, scaled, strict=True))


def test_only_matrices_decay() -> None:
    params = [torch.ones(2, 2), torch.ones(2)]
    optimizer = Optimizer(TRAIN)
    zeros = [torch.zeros_like(p) for p in params]
    optimizer.step(params, zeros, optimizer.new_state(_named(params)), step=0, clip_factor=1.0)
    assert torch.all(params[0] < 1)
    assert torch.all(params[1] == 1)


def test_learning_rate_warms_up_and_ends_where_it_should() -> None:
    optimizer = Optimizer(TRAIN)
    rates = [optimizer.learning_rate(step) for step in range(20)]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
    assert rates[4] == pytest.approx(0.01)
    assert rates[19] == pytest.approx(0.001)
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_a_linear_schedule_and_a_constant_one() -> None:
    linear = Optimizer(replace(TRAIN, schedule="linear"))
    rates = [linear.learning_rate(step) for step in range(20)]
    assert rates[:5] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01])
    drops = [a - b for a, b in itertools.pairwise(rates[4:])]
    assert drops == pytest.approx([0.009 / 15] * 15)
    assert rates[19] == pytest.approx(0.001)
    constant = Optimizer(replace(TRAIN, schedule="constant"))
    assert [constant.learning_rate(step) for step in range(3, 20)] == [0.01] * 17


def test_a_group_has_a_rate_and_a_decay_of_its_own() -> None:
    """The rest of them have the bits that they have without it."""
    groups = (
        Group(match="0.1", learning_rate_factor=0.5, weight_decay=0.2),
        Group(match="*.2", weight_decay=0.0),
    )
    found = {}
    for train in (
        TRAIN,
        replace(TRAIN, group=groups),
        replace(TRAIN, weight_decay=0.0),
    ):
        params, optimizer = _random(0), Optimizer(train)
        optimizer.step(
            params, _random(1), optimizer.new_state(_named(params)), step=7, clip_factor=1.0
        )
        found[train] = params
    plain, grouped, undecayed = found.values()
    assert [torch.equal(a, b) for a, b in zip(plain, grouped, strict=True)] == [1, 0, 0, 1, 1]
    assert torch.equal(grouped[2], undecayed[2])
    before, rate = _random(0)[1], Optimizer(TRAIN).learning_rate(7)
    without = plain[1] - before
    expected = before + 0.5 * without - 0.5 * rate * 0.2 * before
    torch.testing.assert_close(grouped[1], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (1, 10), (2, 1), (3, 0)])
def test_learning_rate_of_short_runs_is_within_its_bounds(steps: int, warmup: int) -> None:
    optimizer = Optimizer(TrainConfig(steps=steps, warmup_steps=warmup))
    for step in range(steps):
        assert 0 < optimizer.learning_rate(step) <= 1e-3


def test_a_segment_has_a_schedule_of_its_own_from_its_first_step() -> None:
    own = {"learning_rate": 1e-3, "warmup_steps": 2, "final_learning_rate": 1e-4}
    stopped = Segment(to_step=5, steps=9, **own)
    done = Segment(
        to_step=12, steps=12, learning_rate=2e-3, warmup_steps=0, final_learning_rate=0.0
    )
    last = {"learning_rate": 5e-4, "warmup_steps": 3, "final_learning_rate": 5e-5}
    rates = Optimizer(TrainConfig(steps=20, **last), (stopped, done))
    first = Optimizer(TrainConfig(steps=9, **own))
    second = Optimizer(
        TrainConfig(steps=7, learning_rate=2e-3, warmup_steps=0, final_learning_rate=0.0)
    )
    third = Optimizer(TrainConfig(steps=8, **last))
    alone = [
        *map(first.learning_rate, range(5)),
        *map(second.learning_rate, range(7)),
        *map(third.learning_rate, range(8)),
    ]
    assert list(map(rates.learning_rate, range(20))) == alone
    assert alone[-1] == pytest.approx(5e-5)

    # A schedule of the user's own may read all of `train`, also of the segments that are done.
    def by_batch(step: int, steps: int, train: TrainConfig) -> float:
        return train.learning_rate * train.batch + train.steps + steps / 100

    own_rates = Optimizer(
        TrainConfig(steps=20, batch=7, **last), (stopped, done), schedule=by_batch
    )
    found = [own_rates.learning_rate(step) for step in (4, 5, 12)]
    assert found == pytest.approx([9 + 0.09 + 0.007, 12 + 0.07 + 0.014, 20 + 0.08 + 0.0035])


def test_squares_and_norm() -> None:
    grads = _random(3)
    whole = torch.cat([g.flatten() for g in grads]).double()
    assert gradient_norm(squares(grads)) == pytest.approx(float(whole.norm()), rel=1e-7)


@pytest.mark.parametrize(
    "shape",
    [(), (1,), (4097,), (0, 5), (5, 0), (1, 1), (3, 4096), (999, 7), (1, 9_999), (6, 5, 4)],
)
@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e-22, 1e-14, 1e-3, 1.0, 1e18, 1e30])
def test_squares_of_whatever_size_and_shape(shape: tuple[int, ...], scale: float) -> None:
    grad = scale * torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    expected = float(grad.double().square().sum())
    assert squares([grad]) == [pytest.approx(expected, rel=1e-6, abs=0.0)]


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_squares_of_what_is_not_finite_are_not(wrong: float) -> None:
    grad = torch.ones(100, 100)
    grad[50, 70] = wrong
    assert not math.isfinite(squares([grad])[0])


@pytest.mark.parametrize("offset", range(1, 17))
def test_where_a_gradient_lies_in_memory_decides_no_bit(offset: int) -> None:
    """A reduced gradient is a view of the shard in which it came."""
    shape = (301, 19)
    numbers = torch.randn(math.prod(shape), generator=torch.Generator().manual_seed(7))
    memory = torch.empty(offset + numbers.numel())
    memory[offset:] = numbers
    optimizer, found = Optimizer(TrainConfig(steps=3)), []
    for grad in (numbers.clone().reshape(shape), memory[offset:].reshape(shape)):
        param = torch.ones(shape)
        moments = optimizer.new_state(_named([param]))
        optimizer.step([param], [grad], moments, step=0, clip_factor=0.7)
        optimizer.step([param], [grad], moments, step=1, clip_factor=1.0)
        found.append((squares([grad]), param, *_kept(moments)))
    (norm, *state), (other_norm, *other_state) = found
    assert norm == other_norm
    assert all(torch.equal(a, b) for a, b in zip(state, other_state, strict=True))


class Products:
    """An optimizer of one's own that multiplies gradients."""

    def state(self, shape: torch.Size) -> dict[str, tuple[int, ...]]:
        del shape
        return {}

    def step(self, params: Sequence[Tensor], grads: Sequence[Tensor], *_: Any, **__: Any) -> None:
        for parameter, grad in zip(params, grads, strict=True):
            parameter.sub_((grad.t() @ grad) @ grad.t())


@pytest.mark.parametrize("factor", [1.0, 0.7])
def test_nor_do_the_strides_that_autograd_gave_it(factor: float) -> None:
    """A dimension of one element may have any stride, and a product with it another last bit."""
    column = torch.randn(257, 1, generator=torch.Generator().manual_seed(7))
    optimizer, found = Optimizer(TrainConfig(steps=3), own=Products()), []
    for grad in (column, column.as_strided((257, 1), (1, 257))):
        param = torch.ones(1, 257)
        state = optimizer.new_state(_named([param]))
        optimizer.step([param], [grad], state, step=0, clip_factor=factor)
        found.append(param)
    assert torch.equal(*found)


def test_squares_leave_wide_gradients_as_they_are() -> None:
    grad = torch.tensor([3.0, -4.0], dtype=torch.float64)
    assert squares([grad]) == [25.0]
    assert grad.tolist() == [3.0, -4.0]


def test_clip_factor() -> None:
    assert clip_factor([9.0, 16.0], 2.5) == 0.5
    assert clip_factor([9.0, 16.0], 5.0) == 1.0
    assert clip_factor([9.0, 16.0], 10.0) == 1.0
    assert clip_factor([9.0, 16.0], 0.0) == 1.0
    assert clip_factor([0.0], 1.0) == 1.0
    assert math.isnan(clip_factor([math.nan], 1.0))


def test_sums_follow_the_order_given() -> None:
    values = [1.0, 1e100, 1.0, -1e100]
    assert mean_loss(values, 2) == 0.0
    assert mean_loss(sorted(values, reverse=True), 2) == 0.0
    assert mean_loss([1.0, 2.0, 3.0], 4) == 1.5
