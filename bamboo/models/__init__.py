"""Workloads as plain lists of layers; each layer can be built and run alone, anywhere, alike."""

from bamboo.models.build import build_model
from bamboo.models.layers import build_layer, build_shell, named_parameters, put_parameters
from bamboo.models.running import run_back, run_layers
from bamboo.models.workload import TiedParameter, Workload, tied_names

__all__ = [
    "TiedParameter",
    "Workload",
    "build_layer",
    "build_model",
    "build_shell",
    "named_parameters",
    "put_parameters",
    "run_back",
    "run_layers",
    "tied_names",
]
