"""What operations are counted as: products by their flops, all by their bytes, views as nothing."""

import torch
from torch import nn

from bamboo.config.tree import ModelConfig
from bamboo.models import build_layer
from bamboo.models.gpt import gpt_workload
from bamboo.planner.layers.facts import gpt_facts
from bamboo.runtime.device.work import WorkCounter


def test_a_product() -> None:
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    with WorkCounter() as counter:
        a @ b
    assert counter.work.product_flops == 2 * 3 * 5 * 7
    assert counter.work.product_bytes == 4 * (3 * 5 + 5 * 7 + 3 * 7)
    assert counter.work.other_bytes == 0
    assert counter.work.kernels == 1


def test_other_kernels_move_bytes_and_views_nothing() -> None:
    x = torch.ones(10, 10)
    with WorkCounter() as counter:
        torch.empty(1000)
        y = x.view(100)[:50].reshape(5, 10).transpose(0, 1)
        y + 1
    assert counter.work.kernels == 1
    assert counter.work.other_bytes == 4 * (50 + 50)
    with WorkCounter() as counter:
        x.add_(1)  # reads and writes
    assert counter.work.other_bytes == 2 * 4 * 100


def test_what_is_picked_is_not_the_whole_table() -> None:
    table, rows = torch.ones(1000, 8), torch.tensor([1, 2])
    with WorkCounter() as counter:
        nn.functional.embedding(rows, table)
    assert counter.work.other_bytes == 2 * 8 + 2 * 4 * 16


def test_what_is_spread_is_as_large_as_its_memory() -> None:
    one, many = torch.ones(1), torch.ones(100)
    with WorkCounter() as counter:
        torch.add(many, one.expand(100))
    assert counter.work.other_bytes == 4 * (100 + 1 + 100)


def test_a_block_has_the_flops_of_its_shape() -> None:
    model = ModelConfig(layers=1, width=64, heads=4, context=32, vocabulary=96, dropout=0.0)
    facts = gpt_facts(layers=1, width=64, context=32, vocabulary=96, microbatch=2, dropout=0.0)
    block = build_layer(gpt_workload(model), 1, seed=1)
    x = torch.randn(2, 32, 64, requires_grad=True)
    with WorkCounter() as forward:
        y = block(x)
    with WorkCounter() as backward:
        y.backward(y.detach())
    assert forward.work.product_flops == facts[1].forward_flops
    # Twice as much, and the attention's scores once more.
    scores = 2 * 2 * 32 * 32 * 64
    assert backward.work.product_flops == 2 * facts[1].forward_flops + scores
    assert backward.work.kernels > forward.work.kernels > 5
    assert forward.work.other_bytes > 2 * x.numel() * 4
