"""Layers whose parameters are known already are made without drawing any."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from bamboo.config.tree import JobConfig, ModelConfig
from bamboo.models import Workload, build_layer, build_model, build_shell, put_parameters
from bamboo.models.gpt import token_loss

JOB = JobConfig(model=ModelConfig(layers=2, width=16, heads=2, context=8, vocabulary=32))
TOKENS = torch.arange(8).view(1, 8)
IMPORTS_OF_A_SHELL = """
import sys
from bamboo.config.tree import JobConfig, ModelConfig
from bamboo.models import build_model, build_shell
workload = build_model(JobConfig(model=ModelConfig(layers=1, width=16, heads=2, context=8)))
before = set(sys.modules)
for index in range(len(workload.layers)):
    build_shell(workload, index, 5)
print(len(set(sys.modules) - before))
"""


class _Counted(nn.Module):
    """Has a buffer that is computed when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("scale", torch.arange(3.0) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * self.scale


def test_a_shell_with_the_parameters_of_a_layer_computes_what_it_does() -> None:
    workload = build_model(JOB)
    assert workload.plain
    x_real, x_shell = TOKENS, TOKENS
    for index in range(len(workload.layers)):
        layer, shell = build_layer(workload, index, 5), build_shell(workload, index, 5)
        assert all(parameter.is_meta for parameter in shell.parameters())
        own = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
        put_parameters(shell, own)
        assert [n for n, _ in shell.named_parameters()] == list(own)
        for name, parameter in shell.named_parameters():
            assert parameter.data_ptr() == own[name].data_ptr()
            assert parameter.requires_grad
        torch.manual_seed(1)
        x_real = layer(x_real)
        torch.manual_seed(1)
        x_shell = shell(x_shell)
        assert torch.equal(x_real, x_shell)


def test_layers_of_a_plain_model_have_no_tensors_but_parameters() -> None:
    workload = build_model(JOB)
    for index in range(len(workload.layers)):
        layer = build_layer(workload, index, 5)
        held = {id(p) for p in layer.parameters()}
        assert not list(layer.buffers())
        for module in layer.modules():
            values = [v for v in vars(module).values() if isinstance(v, torch.Tensor)]
            assert all(id(value) in held for value in values)


def test_a_model_that_is_not_plain_is_built_whole() -> None:
    workload = Workload(layers=(_Counted,), loss=token_loss)
    shell = build_shell(workload, 0, 5)
    weight = torch.tensor([1.0, 2.0, 3.0])
    put_parameters(shell, {"weight": weight})
    assert torch.equal(shell(torch.ones(3)), torch.tensor([1.0, 4.0, 9.0]))


def test_a_parameter_of_another_shape_is_refused() -> None:
    shell = build_shell(Workload(layers=(_Counted,), loss=token_loss), 0, 5)
    with pytest.raises(ValueError, match=r"weight has shape \(3,\), not \(4,\)"):
        put_parameters(shell, {"weight": torch.zeros(4)})


def test_the_first_shell_of_a_process_imports_next_to_nothing() -> None:
    """It is made in the middle of a recovery, where a second of imports is a second of all."""
    said = subprocess.run(
        [sys.executable, "-c", IMPORTS_OF_A_SHELL],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(said.stdout) < 20
