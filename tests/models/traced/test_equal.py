"""A module that is traced and cut, against the module itself: outputs and gradients bit for bit."""

import json
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from bamboo.models import BatchNorms, Workload, build_layer, build_shell, put_parameters, run_layers
from bamboo.models.evaluating import evaluate
from bamboo.models.traced.layer import Drawn, Factory
from bamboo.models.traced.plan import LayerPlan
from bamboo.models.traced.tracing import run_plainly, trace
from bamboo.models.traced.workload import ties_of
from tests.models.traced.modules import Cnn, Draws, Encoder, Mlp, UNet

SEED = 3


@cache
def cut(kind: type[nn.Module]) -> tuple[Workload, Drawn]:
    """The layers as a node reads them, and the values of the module that they were cut out of."""
    drawn = Drawn(kind, SEED)
    found = trace(drawn, [kind.inputs])  # type: ignore[attr-defined]
    assert found.equal
    drawn.sums = found.sums
    text = json.dumps([plan.to_dict() for plan in found.plans])
    plans = [LayerPlan.from_dict(plan) for plan in json.loads(text)]
    layers = [Factory(plan, found.tensors, drawn) for plan in plans]
    workload = Workload(layers=layers, loss=torch.sum, tied=ties_of(plans), plain=True)
    return workload, drawn


@pytest.mark.parametrize("kind", [Cnn, Mlp, Encoder, UNet])
def test_layers_have_the_bits_and_the_names_of_the_module(kind: type[nn.Module]) -> None:
    workload, drawn = cut(kind)
    inputs: tuple[Tensor, ...] = kind.inputs  # type: ignore[attr-defined]
    count = len(workload.layers)
    assert count > 2
    layers = [(i, build_layer(workload, i, SEED)) for i in range(count)]
    names = {name for _, layer in layers for name in layer.state_dict()}
    module = drawn.module()
    assert names == set(module.state_dict())
    taken = []
    for index, layer in layers:  # as a node that takes over does
        shell = build_shell(workload, index, SEED)
        assert all(parameter.is_meta for parameter in shell.parameters())
        put_parameters(shell, {name: p.detach() for name, p in layer.named_parameters()})
        taken.append((index, shell))
    BatchNorms(taken)
    wanted = module(*inputs)
    wanted.backward(torch.ones_like(wanted))
    for recomputed in (range(0), range(count)):
        for _, layer in taken:
            layer.zero_grad()
        (output,) = run_layers(taken, inputs, recomputed, seed=1, step=0, microbatch=0)
        output.backward(torch.ones_like(output))
        assert torch.equal(output, wanted)
        owned = dict(module.named_parameters(remove_duplicate=False))
        ours: dict[int, Tensor] = {}
        for _, layer in taken:
            for name, parameter in layer.named_parameters():
                if parameter.grad is not None:
                    key = id(owned[name])
                    ours[key] = ours[key] + parameter.grad if key in ours else parameter.grad
        for parameter in module.parameters():
            assert (parameter.grad is None) == (id(parameter) not in ours)
            assert parameter.grad is None or torch.equal(ours[id(parameter)], parameter.grad)


def test_a_cut_lets_few_tensors_cross() -> None:
    workload, _ = cut(UNet)
    layers = [build_layer(workload, i, SEED) for i in range(len(workload.layers))]
    x: tuple[Tensor, ...] = UNet.inputs
    crossing = []
    for layer in layers[:-1]:
        x = run_layers([(0, layer)], x, seed=1, step=0, microbatch=0)
        crossing.append(len(x))
    assert max(crossing) == 2
    assert all(abs(a - b) < 2 for a, b in pairwise(crossing))


def test_what_is_drawn_follows_the_key_of_the_layer_and_is_off_in_an_evaluation() -> None:
    workload, drawn = cut(Draws)
    layers = [(i, build_layer(workload, i, SEED)) for i in range(len(workload.layers))]
    first, again, other = (
        run_layers(layers, Draws.inputs, seed=1, step=0, microbatch=microbatch)[0]
        for microbatch in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for inputs in (Draws.inputs, (Draws.inputs[0][:1],)):
        (evaluated,) = evaluate(layers, inputs, seed=1, microbatch=0)
        with torch.no_grad():  # another kernel
            assert torch.equal(evaluated, drawn.module().eval()(*inputs))
    torch.manual_seed(5)
    whole = drawn.module()(*Draws.inputs)
    torch.manual_seed(5)
    assert torch.equal(run_plainly([layer for _, layer in layers], Draws.inputs), whole)
