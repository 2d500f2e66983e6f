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


def samples_text(run: str, body: Mapping[str, Any]) -> str:
    """How many samples were used, each once; or the first step that used others."""
    if not body["equal"]:
        return f"{run}: {body['first_difference']['sentence']}"
    whole, rest = body["epochs"], body["samples_of_last_epoch"]
    each = f"{body['samples_in_epoch']:,}"
    parts = [f"{count(whole, 'whole data epoch')} of {each}"] if whole else []
    if rest:
        parts.append(f"{rest:,} of the {'next' if whole else each}")
    text = (
        f"{run}: {count(body['steps'], 'step')} used {count(body['samples'], 'sample')}, "
        f"each exactly once in its data epoch: {' and '.join(parts)}"
    )
    if body["undone_steps"]:
        text += f"\n  {count(body['undone_steps'], 'step')} recorded beyond them were taken back"
    return text


def decisions_text(body: Mapping[str, Any]) -> str:
    """How many decisions were recomputed, or the first that comes out otherwise."""
    if body["equal"]:
        text = (
            f"{body['run']}: {count(body['decisions'], 'decision')} recomputed, each with the "
            "same state, effects and reason"
        )
        if body["first_version"]:
            text += (
                f"\n  from version {body['first_version']} on: the store lost the run once, and "
                "its members gave back no more than the end of the log"
            )
        return text
    return f"{body['run']}: {body['first_difference']}"
