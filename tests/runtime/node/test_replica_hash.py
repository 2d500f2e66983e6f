"""The hash by which owner and shadow are compared is of every tensor, whatever its type."""

from dataclasses import replace
from pathlib import Path

import torch

from bamboo.runtime.node.records import run_hash
from bamboo.topology.slots import Slot
from testbed.simulated import builder_of
from tests.runtime import sorts_layers
from tests.runtime.test_interleavings import job


def test_a_change_of_any_tensor_changes_the_hash() -> None:
    settings = job(stages=2)
    model = replace(settings.model, model=f"{Path(sorts_layers.__file__)}:build")
    builder = builder_of(replace(settings, model=model))
    run = builder.build(Slot(pipeline=0, stage=0), owner=True)
    seen = {run_hash(run)}
    types = {tensor.dtype for tensor in run.tensors().values()}
    assert types == {torch.float32, torch.bfloat16, torch.int64, torch.bool}
    for tensor in run.tensors().values():
        first = tensor.data.view(-1)[:1]
        first.copy_(~first if tensor.dtype is torch.bool else first + 1)
        seen.add(run_hash(run))
    assert len(seen) == len(run.tensors()) + 1
