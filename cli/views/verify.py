"""What `bamboo verify` found, as text."""

from collections.abc import Mapping
from typing import Any

from cli.views.quantities import count


def verify_text(run: str, body: Mapping[str, Any]) -> str:
    """One line when equal; else the first step and tensor that differ, with both values."""
    if body["equal"]:
        return (
            f"{run}: bitwise equal to a calm run of the same semantics "
            f"({body['semantic_hash']}): {count(body['steps'], 'loss', 'losses')} and "
            f"{count(body['tensors'], 'tensor')} of parameters and optimizer"
        )
    first = body["first_difference"]
    return (
        f"{run}: differs first in step {first['step']}, {first['tensor']}\n"
        f"  calm run: {first['calm']}\n  this run: {first['run']}"
    )


def decisions_text(body: Mapping[str, Any]) -> str:
    """How many decisions were recomputed, or the first that comes out otherwise."""
    if body["equal"]:
        return (
            f"{body['run']}: {count(body['decisions'], 'decision')} recomputed, each with the "
            "same state, effects and reason"
        )
    return f"{body['run']}: {body['first_difference']}"
