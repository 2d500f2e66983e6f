"""Factors of a linear layer's gradient: formed again from a message, it has autograd's bits."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bamboo.models import run_back, run_layers
from bamboo.runtime.step.exchange import Exchange
from bamboo.runtime.step.exchange_plan import ExchangePlan
from bamboo.runtime.step.factors import (
    Factors,
    Record,
    Recorder,
    packed,
    summed,
    unpacked,
    use_that_forbids,
)
from bamboo.runtime.step.shipping import COUNT, gradient_shipped
from bamboo.runtime.wire.frames import to_buffer, to_gradient
from bamboo.runtime.wire.messages import Mailbox, Message
from bamboo.runtime.wire.operands import Operand, operand_in
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from bamboo.topology.sync import FACTORS, SyncEntry

SHAPES = [(5, 8), (1, 8), (64, 48), (2, 5, 8), (3, 1, 16), (16, 32, 24), (2, 3, 4, 8)]
NAME = "0.linear.weight"


class Layer(nn.Module):
    """One linear layer, with what comes before and after it."""

    def __init__(
        self,
        columns: int,
        rows: int,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        after: Callable[[Tensor], Tensor] = lambda y: y,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(columns, rows, bias=bias)
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.linear(self.before(x)))


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(torch.int32)


def sent(found: Sequence[Factors | None], shape: Sequence[int]) -> list[Factors | None]:
    """The factors as another node has them, whose tensors lie anywhere in a frame."""
    tensors, meta = packed({NAME: found})
    came = []
    for tensor in tensors:
        buffer = to_buffer(tensor)
        frame = bytearray(8) + bytearray(buffer.data.cast("B"))
        came.append(
            to_gradient(
                type(buffer)(dtype=buffer.dtype, shape=buffer.shape, data=memoryview(frame)[8:])
            )
        )
    return unpacked(came, meta, {NAME: shape})[NAME]


def forward(
    recorder: Recorder,
    layers: list[tuple[int, nn.Module]],
    x: Tensor,
    again: Sequence[int] = (),
    precision: str = "fp32",
) -> tuple[Record | None, tuple[Tensor, ...]]:
    with recorder.forward() as record:
        y = run_layers(layers, (x,), again, seed=1, step=0, microbatch=0, precision=precision)
    return record, y


def trained_alike(
    layer: nn.Module,
    inputs: Sequence[Tensor],
    *,
    again: Sequence[int] = (),
    precision: str = "fp32",
    name: str = NAME,
) -> Sequence[Factors | None]:
    """Run these microbatches, all forward and then all backward, and hold the bits of the weight's
    gradient to autograd's."""
    layers = [(0, layer)]
    recorder = Recorder(layers, again)
    recorder.record([name])
    runs = [forward(recorder, layers, x, again, precision) for x in inputs]
    for record, y in runs:
        assert record is not None
        assert (record[name].input is None) == (0 in again)  # or it would be held until then
        with recorder.backward(record):
            run_back(y, tuple(torch.randn_like(one) for one in y))
    weight = layer.get_parameter(name.partition(".")[2])
    (found,) = recorder.take([name]).values()
    assert recorder.take([name]) == {name: []}
    assert weight.grad is not None
    assert bits(summed(sent(found, weight.shape), weight.shape)).equal(bits(weight.grad))
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_weight_and_bias_have_the_bits_of_autograd(shape: tuple[int, ...], precision: str) -> None:
    torch.manual_seed(0)
    layer = Layer(shape[-1], 40)
    (found,) = trained_alike(layer, [torch.randn(shape, requires_grad=True)], precision=precision)
    assert found is not None
    rows = found.gradient.lying()
    assert bits(rows.sum(0).float()).equal(bits(layer.linear.bias.grad))  # type: ignore[arg-type]
    wide = 4 if precision == "fp32" else 2
    tensors, _ = packed({NAME: [found]})
    assert sum(t.nbytes for t in tensors) == wide * len(rows) * (40 + shape[-1])


ODD: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "an expanded gradient": (lambda x: x, lambda y: y.sum(0, keepdim=True)),
    "a transposed gradient": (lambda x: x, lambda y: y.transpose(0, 1)),
    "one number as gradient": (lambda x: x, lambda y: y.sum().reshape(1)),
    "an input by columns": (lambda x: x[0].t().contiguous().t(), lambda y: y),
    "an expanded input": (lambda x: x[:1].expand(x.shape), lambda y: y),
    "a transposed input": (lambda x: x.transpose(0, 1), lambda y: y),
    "a part of a row": (lambda x: torch.cat((x, x), 2)[..., 3:27], lambda y: y),
    "the first of each sample": (lambda x: x[:, 0], lambda y: y),
    "written over afterwards": (lambda x: x, lambda y: y.relu_()),
    "no row": (lambda x: x[:0], lambda y: y),
}


@pytest.mark.parametrize("how", ODD)
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_operands_lie_as_they_lay(how: str, trained: bool, bias: bool) -> None:
    torch.manual_seed(0)
    layer = Layer(24, 40, *ODD[how], bias=bias)
    x = torch.randn(6, 33, 24, requires_grad=trained)
    trained_alike(layer, [x])


def test_several_microbatches_in_flight_add_in_the_order_of_their_backwards() -> None:
    torch.manual_seed(0)
    layer = Layer(24, 40)
    found = trained_alike(layer, [torch.randn(7, 24) for _ in range(4)])
    assert not bits(summed(found, layer.linear.weight.shape)).equal(
        bits(summed(found[::-1], layer.linear.weight.shape))
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_of_a_layer_that_is_computed_again_the_second_input_counts(precision: str) -> None:
    torch.manual_seed(0)
    layer = Layer(24, 40, lambda x: F.dropout(x, 0.5), torch.tanh)
    inputs = [torch.randn(7, 24, requires_grad=True) for _ in range(2)]
    trained_alike(layer, inputs, again=[0], precision=precision)


def test_a_microbatch_without_a_gradient_adds_nothing_and_none_at_all_is_zero() -> None:
    layer = Layer(2, 2, after=lambda y: y if y.sum() > 0 else y.detach().requires_grad_())
    nn.init.eye_(layer.linear.weight)
    nn.init.zeros_(layer.linear.bias)
    negative, positive = -torch.ones(1, 2), torch.tensor([[0.0, 1.0]])
    layers, recorder = [(0, layer)], Recorder([(0, layer)])
    recorder.record([NAME])
    for x in (negative, positive, negative):
        record, y = forward(recorder, layers, x)
        with recorder.backward(record):
            run_back(y, (torch.tensor([[-1.0, 0.0]]),))
    found = recorder.take([NAME])[NAME]
    assert [one is None for one in found] == [True, False, True]
    total = summed(found, layer.linear.weight.shape)
    assert layer.linear.weight.grad is not None
    assert bits(total).equal(bits(layer.linear.weight.grad))
    nothing = summed([None], layer.linear.weight.shape)
    assert bits(nothing).equal(bits(torch.zeros(2, 2)))


@settings(max_examples=12)
@given(
    sizes=st.tuples(*[st.integers(1, 40)] * 4),
    order=st.permutations(range(3)),
    after=st.sampled_from(sorted(ODD)[:4]),
    bias=st.booleans(),
    microbatches=st.integers(1, 3),
)
def test_any_small_shape_has_the_bits_of_autograd(
    sizes: tuple[int, ...], order: list[int], after: str, bias: bool, microbatches: int
) -> None:
    torch.manual_seed(sum(sizes))
    shape = [sizes[place] for place in order]
    back = [order.index(place) for place in range(3)]
    layer = Layer(sizes[2], sizes[3], lambda x: x.permute(back), ODD[after][1], bias=bias)
    trained_alike(layer, [torch.randn(shape) for _ in range(microbatches)])


class NoFactorsCame:
    """A mailbox in which the other pipeline's message has no factor of any microbatch."""

    def post(self, *_: object, **__: object) -> None:
        pass

    def has(self, *_: object) -> bool:
        return True

    def take(self, *_: object) -> Message:
        return Message(tensors=(), meta={FACTORS: {NAME: [None]}})


def test_zeros_in_place_of_factors_lie_where_the_gradients_do() -> None:
    elsewhere = torch.device("meta")  # stands for a GPU, which adds nothing that lies on the host
    two = ExchangePlan(
        slot=Slot(pipeline=0, stage=0),
        grid=Grid(pipelines=2, stages=1),
        leaves=2,
        blocks=(range(1), range(1, 2)),
        shapes=(torch.Size((4, 2)),),
        names=(NAME,),
        counts_in_norm=(True,),
        ties=(),
        entries=(SyncEntry(exchange=FACTORS, ship=FACTORS),),
    )
    mailbox = cast(Mailbox, NoFactorsCame())
    found = next(one for one in Exchange(two, step=0).sums if one.bucket.way == FACTORS)
    found.add_leaf(0, [torch.ones(4, 2, device=elsewhere)])
    found.send(mailbox)
    found.advance(mailbox)
    assert found.gradient is not None
    assert found.gradient[0].device == elsewhere
    ship = Message(tensors=(), meta={COUNT: 0, FACTORS: {NAME: [None, None]}})
    assert gradient_shipped(two, ship, elsewhere)[0].device == elsewhere
    for nonsense in ({}, {COUNT: 0, FACTORS: {NAME: [None]}}):
        with pytest.raises(ValueError, match=r"sums|factors"):
            gradient_shipped(two, Message(tensors=(), meta=nonsense))


class Sub(nn.Linear):
    pass


class Uses(nn.Module):
    """Uses of weights that are no plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.sub = Sub(4, 4)
        self.table = nn.Embedding(4, 4)
        self.alone = nn.Parameter(torch.ones(4, 4))
        self.hooked = nn.Linear(4, 4)
        self.hooked.register_forward_hook(lambda m, x, y: y * 2)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.still = nn.Linear(4, 4).requires_grad_(False)
        self.twin = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.other.weight = self.twin.weight


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("linear.weight", ""),
        ("linear.bias", "is no matrix: its shape is (4,)"),
        ("sub.weight", "is used by Sub, a subclass of torch.nn.Linear"),
        ("table.weight", "is used by Embedding"),
        ("alone", "is used by Uses, which is no torch.nn.Linear"),
        ("hooked.weight", "is used by a torch.nn.Linear that has hooks, or a forward of its own"),
        (
            "normed.parametrizations.weight.original1",
            "is used by ParametrizationList, which is no torch.nn.Linear",
        ),
        ("still.weight", "is not trained"),
        ("twin.weight", "has a second name in its layer, other.weight"),
    ],
)
def test_the_use_that_forbids_factors_is_named(name: str, why: str) -> None:
    assert use_that_forbids(Uses(), name) == why


def test_what_shows_only_when_it_runs_has_no_factors() -> None:
    twice = Layer(4, 4)
    twice.forward = lambda x: twice.linear(twice.linear(x))  # type: ignore[method-assign]
    recorder = Recorder([(0, twice)])
    with pytest.raises(ValueError, match=r"0.linear.bias cannot be sent as factors: it is no matr"):
        recorder.record(["0.linear.bias"])
    recorder.record([NAME])
    recorder.record([NAME])  # its own hooks are none that forbid it
    record, y = forward(recorder, [(0, twice)], torch.ones(1, 4))
    with recorder.backward(record):
        run_back(y, (torch.ones(1, 4),))
    assert recorder.take([NAME]) == {}
    assert recorder.take([NAME]) == {NAME: []}, "nothing of it is left"
    recorder.record([])
    assert forward(recorder, [(0, twice)], torch.ones(1, 4))[0] is None


def instead(linear: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, linear.weight)


def beside(linear: nn.Linear, x: Tensor) -> Tensor:
    y: Tensor = linear(x) + linear.weight.square().sum()
    return y


def before(linear: nn.Linear, x: Tensor) -> Tensor:
    y: Tensor = linear.weight.square().sum() + linear(x)
    return y


def unseen(linear: nn.Linear, x: Tensor) -> Tensor:
    y: Tensor = checkpoint(linear, x.clone().requires_grad_(), use_reentrant=True)
    return y


def written(linear: nn.Linear, x: Tensor) -> Tensor:
    x = x + 1
    y: Tensor = linear(x)
    x.mul_(2)  # under autocast the product has a copy
    return y


def by_one_cast(linear: nn.Linear, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):  # it keeps what it has cast the weight to
        y: Tensor = linear(x) + F.linear(x.cos(), linear.weight)
    return y


def penalised(linear: nn.Linear, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y: Tensor = linear(x)
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return y + slope.square().sum()


def differentiated(linear: nn.Linear, x: Tensor) -> Tensor:
    torch.autograd.grad(linear(x).sum(), linear.weight)
    return x + linear.bias


def backwards_before(linear: nn.Linear, x: Tensor) -> Tensor:
    F.linear(x, linear.weight).sum().backward()  # type: ignore[no-untyped-call]
    y: Tensor = linear(x)
    return y


def doubled(linear: nn.Linear, x: Tensor) -> Tensor:
    linear.weight.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]
    y: Tensor = linear(x)
    return y


def double(weight: Tensor) -> None:
    assert weight.grad is not None
    weight.grad.mul_(2)


def doubled_afterwards(linear: nn.Linear, x: Tensor) -> Tensor:
    linear.weight.register_post_accumulate_grad_hook(double)
    y: Tensor = linear(x)
    return y


def doubled_on_the_way(linear: nn.Linear, x: Tensor) -> Tensor:
    y: Tensor = linear(x)
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda made, _: (*made[:-1], made[-1] * 2))
    return y


def kept_in_low_precision(linear: nn.Linear, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()):
        y: Tensor = linear(x)
    return y


BY_ANOTHER = "is used by a function other than its torch.nn.Linear"
SAVED = "has an input that hooks on saved tensors may change"
HOOKED = "has hooks that its layer adds while it runs"


UNSEEN = {
    instead: BY_ANOTHER,
    beside: BY_ANOTHER,
    before: BY_ANOTHER,
    unseen: BY_ANOTHER,
    by_one_cast: BY_ANOTHER,
    penalised: BY_ANOTHER,
    differentiated: BY_ANOTHER,
    backwards_before: BY_ANOTHER,
    doubled: HOOKED,
    doubled_afterwards: HOOKED,
    doubled_on_the_way: BY_ANOTHER,
    kept_in_low_precision: SAVED,
}


def recorded(
    use: Callable[[nn.Linear, Tensor], Tensor], again: Sequence[int], precision: str = "fp32"
) -> tuple[Recorder, Record]:
    """A microbatch of a layer that uses its weight so."""
    layer = Layer(4, 4)
    layer.forward = partial(use, layer.linear)  # type: ignore[method-assign]
    recorder = Recorder([(0, layer)], again)
    recorder.record([NAME])
    record, y = forward(recorder, [(0, layer)], torch.ones(2, 4), again, precision)
    with recorder.backward(record):
        run_back(y, (torch.ones_like(y[0]),))
    assert record is not None
    return recorder, record


@pytest.mark.parametrize(
    ("use", "precision", "why"),
    [
        *((use, "fp32", why) for use, why in UNSEEN.items()),
        (before, "bf16", BY_ANOTHER),
        (by_one_cast, "bf16", BY_ANOTHER),
        (written, "bf16", "has an input that is written into after the product"),
    ],
)
def test_a_use_that_no_look_at_the_model_has_shown_has_no_factors(
    use: Callable[[nn.Linear, Tensor], Tensor], precision: str, why: str
) -> None:
    """Another node would form a gradient without it, and go on with other bits."""
    recorder, record = recorded(use, (), precision)
    with pytest.raises(ValueError, match=why):
        record[NAME].factors()
    assert recorder.take([NAME]) == {}


@pytest.mark.parametrize("use", UNSEEN)
def test_nor_has_it_in_a_layer_that_is_computed_again(
    use: Callable[[nn.Linear, Tensor], Tensor],
) -> None:
    recorder, _ = recorded(use, (0,))
    assert recorder.take([NAME]) == {}


def test_nonsense_in_a_message_is_refused() -> None:
    good = Factors(input=Operand.of(torch.ones(3, 2)), gradient=Operand.of(torch.ones(3, 4)))
    tensors, meta = packed({NAME: [good, None]})
    shapes = {NAME: (4, 2)}
    assert unpacked(tensors, meta, shapes)[NAME][1] is None
    for bad_tensors, bad_meta, bad_shapes in (
        (tensors, meta, {NAME: (2, 4)}),
        (tensors, meta, {"1.other": (4, 2)}),
        (tensors[:1], meta, shapes),
        ([*tensors, *tensors], meta, shapes),
        (tensors, {NAME: 3}, shapes),
        (tensors, {NAME: [[1, 2]]}, shapes),
        ([tensors[0].double(), tensors[1]], meta, shapes),
        ([tensors[0].bfloat16(), tensors[1]], meta, shapes),
    ):
        with pytest.raises(ValueError, match=r"factors|operand"):
            unpacked(bad_tensors, bad_meta, bad_shapes)
    numbers = torch.ones(6)
    assert operand_in(numbers, [[3, 2], [2, 1], 0]).lying().equal(torch.ones(3, 2))
    for lies in (
        [[3, 2], [2, 1]],
        [[3, 2], [2, 1], -1],
        [[3, 2], [2, 1], 16],
        [[3, 2], [2, -1], 0],
        [[3, 2], [2, 1.0], 0],
        [[3, 3], [2, 1], 0],
        [[3, 2], [1 << 40, 1], 0],
        [[], [], 0],
        [[3, 2], [6], 0],
        None,
    ):
        with pytest.raises(ValueError, match=r"operand"):
            operand_in(numbers, lies)
