"""Runs layers as an evaluation does: forward alone, in eval mode, and nothing of them changes.

Rule: dropout is off, and batch norms normalise by their running statistics, as torch has it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from bamboo.models.running import Tensors, run_layers
from bamboo.models.untrained import takes_statistics
from bamboo.topology.keys import keyed_seed


def evaluate(
    layers: Sequence[tuple[int, nn.Module]],
    x: Tensors,
    *,
    seed: int,
    microbatch: int,
    precision: str = "fp32",
) -> Tensors:
    """Run consecutive layers, given as (global index, layer), on one microbatch of an evaluation.

    What a layer draws all the same depends on the seed, the microbatch and its own index, so it is
    the same in every evaluation. Raises as `run_layers` does."""
    with _in_eval_mode(layers), torch.no_grad():
        return run_layers(
            layers,
            x,
            seed=keyed_seed(seed, "evaluation"),
            step=0,
            microbatch=microbatch,
            precision=precision,
        )


@contextmanager
def _in_eval_mode(layers: Sequence[tuple[int, nn.Module]]) -> Iterator[None]:
    """The layers in eval mode, then as they were. The flags are set, and no `train` or `eval` is
    called, since a user's may do more than that."""
    there = [module for _, layer in layers for module in layer.modules()]
    training = [module for module in there if module.training]
    norms = {module: module.__dict__.pop("forward") for module in there if takes_statistics(module)}
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
        for module, forward in norms.items():
            module.__dict__["forward"] = forward
