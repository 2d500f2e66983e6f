"""What was done with what a run has trained, as a line."""

from collections.abc import Mapping
from typing import Any

from bamboo.quantities import count, size


def exported_text(body: Mapping[str, Any]) -> str:
    """`12 files, 4.1 MB, of run r after step 100: out`."""
    return (
        f"{count(len(body['files']), 'file')}, {size(body['bytes'])}, of run {body['run']} after "
        f"step {body['step']}: {body['to']}"
    )


def evaluated_text(body: Mapping[str, Any]) -> str:
    """`run r after step 100: loss 2.1 per token, accuracy 0.9; 512 samples on cpu`."""
    metrics = "".join(f", {name} {value:.6g}" for name, value in body["metrics"].items())
    return (
        f"run {body['run']} after step {body['step']}: loss {body['loss']:.6f} per {body['unit']}"
        f"{metrics}; {count(body['samples'], 'sample')}, on {body['device']}"
    )
