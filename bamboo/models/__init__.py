"""Models as plain lists of layers; each layer can be built and run alone, anywhere, alike."""

from bamboo.models.build import build_model
from bamboo.models.spec import (
    ModelSpec,
    TiedParameter,
    build_layer,
    build_shell,
    named_parameters,
    put_parameters,
    run_back,
    run_layers,
    tied_names,
)

__all__ = [
    "ModelSpec",
    "TiedParameter",
    "build_layer",
    "build_model",
    "build_shell",
    "named_parameters",
    "put_parameters",
    "run_back",
    "run_layers",
    "tied_names",
]
