"""Workloads as plain lists of layers; each layer can be built and run alone, anywhere, alike."""

from bamboo.models.build import build_model
from bamboo.models.layers import build_layer, build_shell, named_parameters, put_parameters
from bamboo.models.running import (
    BadBoundary,
    Gradients,
    Tensors,
    as_leaves,
    run_back,
    run_layers,
    unpacked,
)
from bamboo.models.workload import TiedParameter, Workload, tied_names

__all__ = [
    "BadBoundary",
    "Gradients",
    "Tensors",
    "TiedParameter",
    "Workload",
    "as_leaves",
    "build_layer",
    "build_model",
    "build_shell",
    "named_parameters",
    "put_parameters",
    "run_back",
    "run_layers",
    "tied_names",
    "unpacked",
]
