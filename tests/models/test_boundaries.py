"""Boundaries of several tensors: random layers with skips, masks and unused outputs have the same
bits under every cut, and faults at a boundary are seen."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.ids import NodeId
from bamboo.models import (
    Gradients,
    Tensors,
    Workload,
    as_leaves,
    build_layer,
    run_back,
    run_layers,
    running,
    unpacked,
)
from bamboo.ports import MessageKey
from bamboo.runtime.step.operations import act_meta, gradient_message, gradients_in, output_in
from bamboo.runtime.wire.frames import decode, encode, to_buffer, to_tensor
from bamboo.runtime.wire.messages import Message
from bamboo.topology.slots import Slot

WIDTH = 6
MOST_LAYERS = 4
SEEDS = 8
"""Of these, fp32 and bf16 each take half, and so do layers that are computed again."""


@dataclass(frozen=True)
class Recipe:
    """How a layer makes one of its outputs of its inputs."""

    kind: str
    takes: tuple[int, ...]


class Drawn(nn.Module):
    """A layer of drawn recipes, with one weight for each; some of the weights are frozen."""

    def __init__(self, recipes: Sequence[Recipe], draw: random.Random) -> None:
        super().__init__()
        self.recipes = recipes
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(WIDTH, WIDTH) / 2, requires_grad=draw.random() < 0.8)
            for _ in recipes
        )

    def forward(self, x: Tensor | Tensors) -> Tensor | Tensors:
        given = (x,) if isinstance(x, Tensor) else x
        return unpacked(
            tuple(
                self._one(recipe, weight, given)
                for recipe, weight in zip(self.recipes, self.weights, strict=True)
            )
        )

    def _one(self, recipe: Recipe, weight: Tensor, given: Tensors) -> Tensor:
        first, *others = (given[place] for place in recipe.takes)
        if recipe.kind == "hand":
            return first
        if recipe.kind in ("bool", "u1", "i4"):
            kind = {"bool": torch.bool, "u1": torch.uint8, "i4": torch.int32}[recipe.kind]
            return (first.detach().float() > 0).to(kind)
        made = torch.tanh(first.float() @ weight)
        for other in others:  # several uses of one tensor within a layer
            made = made + made * other.float() + torch.sin(other.float()) * first.float()
        if recipe.kind == "half":
            return made.half()
        if recipe.kind == "double":
            return made.double()
        if recipe.kind == "constant":
            return made.detach()
        if recipe.kind == "turned":  # not contiguous
            return F.dropout(made, 0.2).t().contiguous().t()
        return made


KINDS = ("hand", "hand", "hand", "mix", "mix", "mix", "turned", "bool", "u1", "i4")
RARE = ("half", "double", "constant")


def drawn(seed: int) -> tuple[list[tuple[int, nn.Module]], tuple[float, ...]]:
    """Layers, and the weights of their outputs in the loss: some outputs are never used."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    layers: list[tuple[int, nn.Module]] = []
    inputs = 2
    for index in range(draw.randint(3, MOST_LAYERS)):
        outputs = draw.choice((1, 2, 3, 4)) if index else 3
        kinds = ["mix", *(draw.choice((*KINDS, *RARE)) for _ in range(outputs - 1))]
        draw.shuffle(kinds)
        takes = (tuple(draw.choices(range(inputs), k=draw.randint(1, 3))) for _ in kinds)
        recipes = [Recipe(kind, taken) for kind, taken in zip(kinds, takes, strict=True)]
        if draw.random() < 0.5:  # one tensor in two places, as (x, x)
            recipes += [Recipe("hand", (draw.randrange(inputs),))] * 2
        layers.append((index, Drawn(recipes, draw)))
        inputs = len(recipes)
    return layers, (*(draw.choice((0.0, 0.5, 1.5)) for _ in range(inputs - 1)), 1.0)


def data(microbatch: int) -> Tensors:
    """Numbers and a mask; each microbatch has a shape of its own."""
    draw = torch.Generator().manual_seed(microbatch)
    rows = 3 + 2 * microbatch
    numbers = torch.randn(rows, WIDTH, generator=draw)
    return numbers, numbers.flip(0) > 0


def loss_of(output: Tensors, weights: Sequence[float]) -> Tensor:
    used = [
        (t.float() * weight).square().sum()
        for t, weight in zip(output, weights, strict=True)
        if weight
    ]
    return torch.stack(used).sum()


def carried(tensors: Sequence[Tensor], meta: dict[str, object]) -> Message:
    """The message as another node gets it, by the bytes of its one frame."""
    slot = Slot(pipeline=0, stage=0)
    (frame,) = encode(
        MessageKey(kind="act", to=slot, source=slot, step=0),
        sender=NodeId("a"),
        generation=0,
        meta=meta,
        buffers=[to_buffer(t) for t in tensors],
    )
    came = decode(memoryview(bytearray(frame))).message
    return Message(tensors=tuple(map(to_tensor, came.buffers)), meta=came.meta)


Carry = Callable[[Sequence[Tensor], dict[str, object]], Message]


def trained(
    seed: int, cut: Sequence[int], *, precision: str, again: bool, carry: Carry = carried
) -> list[Tensor | None]:
    """The outputs of two microbatches, then the gradients of all parameters, by stages of `cut`."""
    layers, weights = drawn(seed)
    stages = [layers[first:stop] for first, stop in itertools.pairwise((0, *cut, len(layers)))]
    computed_again = range(len(layers) - 1) if again else range(0)
    out: list[Tensor | None] = []
    for microbatch in range(2):
        x = data(microbatch)
        ends: list[tuple[Tensors, Tensors]] = []
        for number, stage in enumerate(stages):
            leaves = as_leaves(x)
            y = run_layers(
                stage,
                leaves,
                computed_again,
                seed=1,
                step=0,
                microbatch=microbatch,
                precision=precision,
            )
            ends.append((leaves, y))
            if number < len(stages) - 1:
                x = output_in(carry(y, act_meta(y)))
        out += [t.detach() for t in y]
        loss = loss_of(y, weights)
        gradients: Gradients | None = None
        for leaves, y in reversed(ends):
            if gradients is None:
                run_back((loss,), None) if loss.requires_grad else None
            else:
                run_back(y, gradients_in(carry(*gradient_message(gradients)), y))
            gradients = tuple(leaf.grad for leaf in leaves)
    return out + [p.grad for _, layer in layers for p in layer.parameters()]


def equal(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    """All bits; a gradient that there is not is one of zeros."""

    def same(a: Tensor | None, b: Tensor | None) -> bool:
        if a is None or b is None:
            return a is b or not bool((b if a is None else a).any())  # type: ignore[union-attr]
        one, other = (t.contiguous().view(-1).view(torch.uint8) for t in (a, b))  # NaN too
        return a.dtype == b.dtype and torch.equal(one, other)

    return all(same(a, b) for a, b in zip(one, other, strict=True))


def cuts(layers: int) -> list[tuple[int, ...]]:
    places = range(1, layers)
    return [c for count in range(1, layers) for c in itertools.combinations(places, count)]


def differing(
    seeds: Sequence[int], carry: Carry = carried
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The seeds and cuts that have other bits than the model in one piece."""
    for seed in seeds:
        how = {"precision": "bf16" if seed % 2 else "fp32", "again": seed % 4 > 1}
        whole = trained(seed, (), **how)  # type: ignore[arg-type]
        assert any(t is not None and bool(t.any()) for t in whole)
        for cut in cuts(len(drawn(seed)[0])):
            if not equal(trained(seed, cut, carry=carry, **how), whole):  # type: ignore[arg-type]
                yield seed, cut


def test_every_cut_of_random_layers_has_the_same_bits() -> None:
    assert [*differing(range(SEEDS))] == []


def test_recomputed_layers_have_the_bits_of_kept_ones() -> None:
    for seed in range(6):
        for precision in ("fp32", "bf16"):
            kept, again = (trained(seed, (1,), precision=precision, again=x) for x in (False, True))
            assert equal(kept, again)


class Parts(nn.Module):
    """Returns parts of its input, which lie anywhere in memory."""

    def forward(self, x: Tensor) -> Tensors:
        return x[1:], x[:1]


class Scored(nn.Module):
    """A product of each part, as one tensor: their gradients are parts of one, too."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(33, 1)

    def forward(self, x: Tensors) -> Tensor:
        return torch.cat([self.score(part) for part in reversed(x)])


def test_a_part_of_a_tensor_has_the_bits_of_one_that_was_received() -> None:
    """A product of rows of 33 numbers differs in its last bit where they are not aligned."""
    torch.manual_seed(2)
    layers: list[tuple[int, nn.Module]] = [(0, nn.Linear(33, 33)), (1, Parts()), (2, Scored())]
    x, at = (torch.randn(9, 33),), {"seed": 1, "step": 0, "microbatch": 0}
    (whole,) = run_layers(layers, x, **at)
    sent = carried(run_layers(layers[:2], x, **at), {})
    (cut,) = run_layers(layers[2:], output_in(sent), **at)
    assert torch.equal(whole, cut)


class Turned(nn.Module):
    """Returns a column of which torch says that it is contiguous, with the strides of a row."""

    def forward(self, x: Tensor) -> Tensor:
        return x.t()


def test_a_column_has_the_strides_of_one_that_was_received() -> None:
    """A dimension of one element may have any stride, and a product with it another last bit."""
    torch.manual_seed(2)
    last = nn.Linear(1, 1)
    layers: list[tuple[int, nn.Module]] = [(0, nn.Linear(5, 8)), (1, Turned()), (2, last)]
    x, at = (torch.randn(1, 5),), {"seed": 1, "step": 0, "microbatch": 0}
    found = []
    for cut in (False, True):
        before = run_layers(layers[:2], x, **at)
        y = run_layers(layers[2:], output_in(carried(before, {})) if cut else before, **at)
        run_back(y, (torch.linspace(-1.0, 0.7, 8).reshape(8, 1),))
        found.append((*y, *(p.grad for p in last.parameters())))
        last.zero_grad()
    assert equal(*found)


@pytest.mark.parametrize(
    "shape",
    [(1, 8), (8, 1), (1, 1), (2, 1, 3), (4, 1, 5, 1), (0, 1), (1, 0), (0, 3), (3, 0), (2, 0, 3)],
)
def test_what_crosses_a_boundary_has_the_strides_of_its_shape(shape: tuple[int, ...]) -> None:
    usual = torch.empty(shape)
    sizes = zip(shape, usual.stride(), strict=True)
    odd = [7 if size == 1 or 0 in shape else stride for size, stride in sizes]
    tensor = torch.empty(200).as_strided(shape, odd).requires_grad_()
    back: list[Tensor] = []
    tensor.register_hook(back.append)
    (y,) = run_layers([(0, nn.Identity())], (tensor,), seed=1, step=0, microbatch=0)
    run_back((y,), (torch.empty(200).as_strided(shape, odd),))
    assert y.stride() == back[0].stride() == usual.stride()


class Shifted(nn.Module):
    """Its parameter is a part of a larger tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1 + 4 * 9)[1:].view(4, 9))


class Joined(nn.Module):
    """Puts its tensors together, so their gradients are parts of one."""

    def forward(self, x: Tensors) -> Tensor:
        return torch.cat(x)


def test_what_is_trained_handed_on_or_sent_back_is_aligned() -> None:
    layer = build_layer(Workload(layers=(Shifted,), loss=F.mse_loss), 0, 1)
    x = as_leaves((torch.randn(3, 5, requires_grad=True), torch.randn(1, 5, requires_grad=True)))
    joined = run_layers([(0, Joined())], x, seed=1, step=0, microbatch=0)
    parts = run_layers([(0, Parts())], joined, seed=1, step=0, microbatch=0)
    run_back(joined, (torch.randn(4, 5),))
    back = [t.grad for t in x if t.grad is not None]
    found = [*layer.parameters(), *parts, *back]
    assert [t.data_ptr() % running.ALIGNMENT_BYTES for t in found] == [0] * 5


class Apart(nn.Module):
    """Returns its input, and what does not depend on it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensors:
        return x, self.weight * 2


def test_a_layer_before_what_is_unused_gets_no_gradient() -> None:
    first, apart = nn.Linear(WIDTH, WIDTH), Apart()
    layers: list[tuple[int, nn.Module]] = [(0, first), (1, apart)]
    _, used = run_layers(layers, data(0)[:1], seed=1, step=0, microbatch=0)
    run_back((used.sum(),), None)
    assert first.weight.grad is None
    assert apart.weight.grad is not None


def test_a_message_says_only_what_its_tensors_do_not() -> None:
    number, mask = torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.bool)
    gradient, fixed = torch.ones(2), torch.ones(2)
    assert act_meta((number,)) == act_meta((number, mask)) == {}
    assert act_meta((mask, fixed, number)) == {"trained": [2]}
    assert gradient_message((gradient,)) == ([gradient], {})
    assert gradient_message((None, gradient)) == ([gradient], {"of": [1]})
    assert gradient_message((None,)) == ([], {"of": []})


# ---------------------------------------------------------------- planted faults


def test_swapped_tensors_are_seen() -> None:
    def swapped(tensors: Sequence[Tensor], meta: dict[str, object]) -> Message:
        found = [*carried(tensors, meta).tensors]
        alike = [place for place, t in enumerate(found) if t.dtype == found[0].dtype]
        if len(alike) > 1:
            found[alike[0]], found[alike[-1]] = found[alike[-1]], found[alike[0]]
        return Message(tensors=tuple(found), meta=meta)

    assert any(differing(range(SEEDS), swapped))


def test_a_lost_mask_is_seen() -> None:
    def lost(tensors: Sequence[Tensor], meta: dict[str, object]) -> Message:
        return carried([torch.ones_like(t) if t.dtype == torch.bool else t for t in tensors], meta)

    assert any(differing(range(SEEDS), lost))


def test_another_order_of_addition_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a node for the boundary, the gradients of a tensor in two places add in an order that
    follows the cut."""
    monkeypatch.setattr(running, "_bounded", lambda x: tuple(t.contiguous() for t in x))
    assert any(differing(range(SEEDS)))


class _Looking(nn.Module):
    """Notes what it can see of where its input comes from."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.seen: list[tuple[bool, str]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((x.is_leaf, type(x.grad_fn).__name__))
        return x * self.weight


def test_a_layer_cannot_see_whether_a_stage_begins_with_it() -> None:
    layers: list[tuple[int, nn.Module]] = [(0, _Looking()), (1, second := _Looking())]
    x: Tensors = (torch.ones(3),)
    run_layers(layers, x, seed=1, step=0, microbatch=0)
    sent = run_layers(layers[:1], x, seed=1, step=0, microbatch=0)
    run_layers(layers[1:], as_leaves(sent), seed=1, step=0, microbatch=0)
    assert second.seen[0] == second.seen[1]
