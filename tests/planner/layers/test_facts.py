"""The GPT's facts agree with the layers that are really built."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bamboo.config.tree import ModelConfig, TrainConfig
from bamboo.models import build_layer, named_parameters
from bamboo.models.gpt import gpt_workload
from bamboo.planner.layers.facts import gpt_facts
from bamboo.planner.layers.kept import OPTIMIZERS
from bamboo.runtime.optim.optimizer import Optimizer
from bamboo.runtime.optim.state import layout_of

MICROBATCH = 2


def saved_bytes(layer: torch.nn.Module, x: Tensor, targets: Tensor | None) -> tuple[int, int]:
    """Bytes that autograd holds after a forward, and bytes of the output."""
    own = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    held: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(x)
        if targets is not None:
            torch.nn.functional.cross_entropy(
                output.flatten(0, -2), targets.flatten(), reduction="sum"
            )
    return sum(t.untyped_storage().nbytes() for t in held.values()), 4 * output.numel()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_facts_agree_with_the_layers(dropout: float) -> None:
    model = ModelConfig(layers=2, width=64, heads=4, context=32, vocabulary=96, dropout=dropout)
    facts = gpt_facts(
        layers=2, width=64, context=32, vocabulary=96, microbatch=MICROBATCH, dropout=dropout
    )
    workload = gpt_workload(model)
    tokens = torch.zeros(MICROBATCH, 32, dtype=torch.int64)
    hidden = torch.randn(MICROBATCH, 32, 64, requires_grad=True)
    assert len(facts) == len(workload.layers)
    for index, fact in enumerate(facts):
        layer = build_layer(workload, index, seed=1)
        assert fact.parameters == sum(p.numel() for p in layer.parameters())
        last = index == len(facts) - 1
        held, output = saved_bytes(
            layer, tokens if index == 0 else hidden, tokens if last else None
        )
        assert fact.output_bytes == output
        # Means, deviations and log-sum-exps of the rows, a few floats a token, are left out.
        assert fact.activation_bytes <= held <= fact.activation_bytes * 1.05


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_bytes_of_what_an_optimizer_keeps_are_those_of_its_tensors(
    optimizer: str, momentum: float
) -> None:
    shape = {"layers": 1, "width": 64, "context": 32, "vocabulary": 96}
    facts = gpt_facts(
        **shape, microbatch=1, dropout=0.0, optimizer=optimizer, momentum=momentum > 0
    )
    workload = gpt_workload(ModelConfig(**shape, heads=4, dropout=0.0))
    steps = Optimizer(TrainConfig(optimizer=optimizer, momentum=momentum))
    for index, fact in enumerate(facts):
        layers = [(index, build_layer(workload, index, seed=1))]
        layout = layout_of(layers, steps.state)
        kept = steps.new_state(dict(named_parameters(layers)))
        made = sum(x.nbytes for own in kept.tensors.values() for x in own.values())
        assert fact.moment_bytes == layout.kept_bytes == made
        assert fact.state_bytes == layout.trained_bytes + made
    assert (sum(fact.moment_bytes for fact in facts) == 0) is (optimizer == "sgd" and not momentum)


def test_flops_of_a_block_are_those_of_its_products() -> None:
    facts = gpt_facts(layers=1, width=64, context=32, vocabulary=96, microbatch=1, dropout=0.0)
    tokens, width = 32, 64
    linear = 2 * tokens * (3 * width * width + width * width + 8 * width * width)
    attention = 2 * (2 * tokens * tokens * width)
    assert facts[1].forward_flops == linear + attention
    assert facts[1].cost == 3 * facts[1].forward_flops


def test_in_bf16_layers_send_half_as_much_and_all_else_is_as_in_fp32() -> None:
    sizes = {"layers": 1, "width": 64, "context": 32, "vocabulary": 96, "microbatch": 2}
    fp32 = gpt_facts(**sizes, dropout=0.1)
    bf16 = gpt_facts(**sizes, dropout=0.1, precision="bf16")
    assert [one.output_bytes * 2 for one in bf16[:-1]] == [one.output_bytes for one in fp32[:-1]]
    assert [replace(one, output_bytes=0) for one in bf16] == [
        replace(one, output_bytes=0) for one in fp32
    ]
