"""The GPT's facts agree with the layers that are really built."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bamboo.config.tree import ModelConfig, TrainConfig
from bamboo.models import build_layer, named_parameters, run_layers
from bamboo.models.gpt import gpt_workload, token_loss
from bamboo.planner.layers.facts import gpt_facts
from bamboo.planner.layers.kept import OPTIMIZERS
from bamboo.runtime.optim.optimizer import Optimizer
from bamboo.runtime.optim.state import layout_of

MICROBATCH = 2


def saved_bytes(
    layer: torch.nn.Module, x: Tensor, targets: Tensor | None, *, precision: str = "fp32"
) -> tuple[int, int]:
    """Bytes that autograd holds after a forward, the input included, and numbers of the output."""
    own = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    held: dict[int, Tensor] = {x.untyped_storage().data_ptr(): x}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        at = {"seed": 1, "step": 0, "microbatch": 0}
        (output,) = run_layers([(0, layer)], (x,), precision=precision, **at)
        if targets is not None:
            token_loss(output, targets)
    return sum(t.untyped_storage().nbytes() for t in held.values()), output.numel()


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
        assert fact.output_bytes == 4 * output
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


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast of a GPU casts the input of a norm to fp32."""
    norm = functional.layer_norm
    monkeypatch.setattr(functional, "layer_norm", lambda x, *rest: norm(x.float(), *rest))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("width", [32, 96])
def test_in_bf16_a_layer_holds_casts_of_its_weights_whatever_the_microbatch(
    width: int, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"width": width, "context": 32, "vocabulary": 96, "dropout": dropout}
    facts = gpt_facts(layers=1, microbatch=MICROBATCH, precision="bf16", **sizes)
    twice = gpt_facts(layers=1, microbatch=2 * MICROBATCH, precision="bf16", **sizes)
    workload = gpt_workload(ModelConfig(layers=1, heads=4, **sizes))
    tokens = torch.zeros(MICROBATCH, 32, dtype=torch.int64)
    hidden = torch.randn(MICROBATCH, 32, width).bfloat16().requires_grad_()
    for index, (fact, double) in enumerate(zip(facts, twice, strict=True)):
        layer = build_layer(workload, index, seed=1)
        given = (layer, tokens if index == 0 else hidden, tokens if index == 2 else None)
        on_cpu, output = saved_bytes(*given, precision="bf16")
        with monkeypatch.context() as patch:
            as_on_a_gpu(patch)
            on_gpu, _ = saved_bytes(*given, precision="bf16")
        assert fact.output_bytes == output * (4 if index == 2 else 2)
        assert on_cpu <= fact.activation_bytes * 1.02
        assert fact.activation_bytes <= on_gpu <= fact.activation_bytes * 1.05
        grows = double.activation_bytes - fact.activation_bytes
        assert grows == fact.activation_bytes - fact.cast_bytes
        weights = [p for p in layer.parameters() if p.dim() == 2]
        assert fact.cast_bytes == (0 if index == 0 else sum(2 * p.numel() for p in weights))
