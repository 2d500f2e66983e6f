"""Workloads as plain lists of layers; each layer can be built and run alone, anywhere, alike."""

from bamboo.models.build import build_model, data_beside
from bamboo.models.datasets import data_of
from bamboo.models.evaluating import evaluate
from bamboo.models.layers import (
    build_layer,
    build_shell,
    named_parameters,
    put_parameters,
    saved_buffers,
)
from bamboo.models.running import (
    BadBoundary,
    Gradients,
    Tensors,
    as_leaves,
    run_back,
    run_layers,
    unpacked,
)
from bamboo.models.untrained import BatchNorms, Untrained, step_statistics
from bamboo.models.workload import (
    Optimizer,
    TiedParameter,
    Workload,
    mean_metrics,
    measured,
    tied_names,
    whole_name,
)

__all__ = [
    "BadBoundary",
    "BatchNorms",
    "Gradients",
    "Optimizer",
    "Tensors",
    "TiedParameter",
    "Untrained",
    "Workload",
    "as_leaves",
    "build_layer",
    "build_model",
    "build_shell",
    "data_beside",
    "data_of",
    "evaluate",
    "mean_metrics",
    "measured",
    "named_parameters",
    "put_parameters",
    "run_back",
    "run_layers",
    "saved_buffers",
    "step_statistics",
    "tied_names",
    "unpacked",
    "whole_name",
]
