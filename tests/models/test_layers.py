"""Layers: keyed initial values and randomness, whoever builds and runs them, and the GPT itself."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bamboo.config.tree import JobConfig, ModelConfig
from bamboo.data.dataset import load_data
from bamboo.errors import InputError
from bamboo.models import (
    TiedParameter,
    Untrained,
    Workload,
    build_layer,
    build_model,
    named_parameters,
    run_back,
    run_layers,
    tied_names,
)
from bamboo.models.gpt import token_loss
from bamboo.topology.keys import keyed_seed
from tests.jobs import tiny_job

TOKENS_BT = torch.arange(16).view(2, 8)


def _workload(tied: bool = False) -> Workload:
    return build_model(
        JobConfig(
            model=ModelConfig(
                layers=2, width=16, heads=2, context=8, vocabulary=20, dropout=0.5, tied=tied
            )
        )
    )


def _layers(workload: Workload, seed: int = 1) -> list[tuple[int, nn.Module]]:
    return [(i, build_layer(workload, i, seed)) for i in range(len(workload.layers))]


def _same_values(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_a_layer_is_built_alike_by_anyone_in_any_order() -> None:
    workload = _workload()
    forth = {i: build_layer(workload, i, 1) for i in range(4)}
    torch.manual_seed(99)
    back = {i: build_layer(workload, i, 1) for i in reversed(range(4))}
    assert all(_same_values(forth[i], back[i]) for i in range(4))
    assert not _same_values(forth[1], forth[2])
    assert not _same_values(forth[1], build_layer(workload, 1, 2))


def test_building_leaves_the_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_layer(_workload(), 1, 1)
    assert torch.equal(torch.rand(3), expected)


def test_global_names_and_order() -> None:
    names = [name for name, _ in named_parameters(_layers(_workload()))]
    assert names[:2] == ["0.positions", "0.tokens.weight"]
    assert names[-3:] == ["3.norm.weight", "3.norm.bias", "3.vocabulary.weight"]
    assert len(names) == len(set(names))
    layers = _layers(_workload())
    assert [n for n, _ in named_parameters(layers[1:3])] == [
        n for n in names if n.startswith(("1.", "2."))
    ]


def test_dropout_depends_on_step_microbatch_and_layer_not_on_the_slice() -> None:
    layers = _layers(_workload())
    x = TOKENS_BT
    (whole,) = run_layers(layers, (x,), seed=1, step=3, microbatch=4)
    for piece in ([0], [1, 2], [3]):
        torch.rand(7)
        (y,) = run_layers([layers[i] for i in piece], (x,), seed=1, step=3, microbatch=4)
        x = y.detach()
    assert torch.equal(whole, x)
    for other in ((1, 3, 5), (1, 4, 4), (2, 3, 4)):
        seed, step, microbatch = other
        (changed,) = run_layers(layers, (TOKENS_BT,), seed=seed, step=step, microbatch=microbatch)
        assert not torch.equal(whole, changed), other
    hidden = torch.arange(256.0).sin().view(2, 8, 16)
    block = layers[1][1]
    (one,), (other_layer,) = (
        run_layers([(i, block)], (hidden,), seed=1, step=0, microbatch=0) for i in (1, 2)
    )
    assert not torch.equal(one, other_layer)


def test_single_tensors_have_the_bits_of_a_plain_loop() -> None:
    x, layers = TOKENS_BT, _layers(_workload())
    for index, layer in layers:
        torch.manual_seed(keyed_seed(1, "layer", 3, 4, index))
        x = layer(x).contiguous()
        x.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    x.square().sum().backward()  # type: ignore[no-untyped-call]
    expected = [p.grad for _, p in named_parameters(layers)]
    again = _layers(_workload())
    (y,) = run_layers(again, (TOKENS_BT,), seed=1, step=3, microbatch=4)
    run_back((y.square().sum(),), None)
    assert torch.equal(x, y)
    for plain, (_, p) in zip(expected, named_parameters(again), strict=True):
        assert plain is not None
        assert p.grad is not None
        assert torch.equal(plain, p.grad)


def test_a_forward_without_a_graph_gives_the_same_bits() -> None:
    layers = _layers(_workload())
    (with_graph,) = run_layers(layers, (TOKENS_BT,), seed=1, step=0, microbatch=0)
    with torch.no_grad():
        (without,) = run_layers(layers, (TOKENS_BT,), seed=1, step=0, microbatch=0)
    assert torch.equal(with_graph, without)


def test_each_position_sees_only_what_came_before() -> None:
    layers = [(i, layer.eval()) for i, layer in _layers(_workload())]
    changed_BT = TOKENS_BT.clone()
    changed_BT[:, 5] = 0
    one, other = (
        run_layers(layers, (x,), seed=1, step=0, microbatch=0)[0] for x in (TOKENS_BT, changed_BT)
    )
    assert one.shape == (2, 8, 20)
    assert torch.equal(one[:, :5], other[:, :5])
    assert not torch.equal(one[:, 5:], other[:, 5:])


def test_the_loss_is_a_sum_over_tokens() -> None:
    logits_BTV = torch.zeros(2, 3, 20)
    targets_BT = torch.ones(2, 3, dtype=torch.int64)
    loss = token_loss(logits_BTV, targets_BT)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(6 * math.log(20))


def test_the_first_loss_is_that_of_a_uniform_guess(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    workload, ((inputs,), (targets,)) = build_model(job), load_data(job).microbatch(0, 0)
    (output,) = run_layers(_layers(workload), (inputs,), seed=1, step=0, microbatch=0)
    loss = workload.loss(output, targets).item() / targets.numel()
    assert loss == pytest.approx(math.log(256), rel=0.02)


def test_a_tied_copy_starts_with_the_owners_values() -> None:
    workload = _workload(tied=True)
    named = dict(named_parameters(_layers(workload)))
    assert tied_names(workload) == {"3.vocabulary.weight": "0.tokens.weight"}
    owner, user = named["0.tokens.weight"], named["3.vocabulary.weight"]
    assert torch.equal(owner, user)
    assert owner.data_ptr() != user.data_ptr()


@pytest.mark.parametrize(
    ("user_name", "message"),
    [("nothing", "has no 'nothing'"), ("norm.weight", "differ in shape")],
)
def test_a_tie_that_cannot_be_is_refused(user_name: str, message: str) -> None:
    workload = _workload()
    tie = TiedParameter(
        owner_layer=0, owner_name="tokens.weight", user_layer=3, user_name=user_name
    )
    tied = Workload(layers=workload.layers, loss=workload.loss, tied=(tie,))
    with pytest.raises(InputError, match=message):
        build_layer(tied, 3, 1)


class _Sideways(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 5).t())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_parameters_lie_in_one_order_in_memory() -> None:
    layer = build_layer(Workload(layers=(_Sideways,), loss=token_loss), 0, 1)
    assert all(p.is_contiguous() for p in layer.parameters())


def _replace_buffer(norm: nn.Module) -> None:
    norm.running_mean = norm.running_mean + 1.0


def _replace_parameter(norm: nn.Module) -> None:
    norm.weight = nn.Parameter(torch.zeros(3))


def _freeze(norm: nn.Module) -> None:
    norm.bias.requires_grad_(False)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (_replace_buffer, "buffer/4.running_mean"),
        (_replace_parameter, "param/4.weight"),
        (_freeze, "param/4.bias"),
    ],
)
def test_a_tensor_that_is_replaced_while_a_layer_runs_is_named(
    change: Callable[[nn.Module], None], name: str
) -> None:
    """The preflight cannot see what happens in a later step alone."""
    norm = nn.BatchNorm1d(3).eval()
    untrained = Untrained([(4, norm)])
    assert untrained.take() == []
    change(norm)
    with pytest.raises(ValueError, match=f"in the place of its {name}"):
        untrained.take()
