"""The result of `bamboo verify`, as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from bamboo.quantities import count


def verify_text(run: str, body: Mapping[str, Any]) -> str:
    """One line when equal; otherwise the first step and tensor that differ, with both values."""
    if body["equal"]:
        return (
            f"{run}: bitwise equal to a calm run of the same semantics "
            f"({body['semantic_hash']}): {count(body['steps'], 'loss', 'losses')}"
            f"{_measured(body)} and {count(body['tensors'], 'tensor')} of the final state"
            + (f", {among}" if (among := in_segments(body.get("segments", ()))) else "")
        )
    first = body["first_difference"]
    return (
        f"{run}: differs first in step {first['step']}, {first['tensor']}\n"
        f"  calm run: {first['calm']}\n  this run: {first['run']}"
    )


def _measured(body: Mapping[str, Any]) -> str:
    """` with accuracy and error`: the model's own metrics, each of every step."""
    names, evaluations = " and ".join(body.get("metrics", ())), body.get("evaluations", 0)
    words = f" with {names}" if names else ""
    return words + (f", {count(evaluations, 'evaluation')}" if evaluations else "")


def in_segments(segments: Sequence[Mapping[str, Any]]) -> str:
    """Which steps of a run with several segments had which learning rate."""
    if len(segments) < 2:
        return ""
    each = (
        f"steps {one['from_step']} to {one['to_step'] - 1} ({one['semantic_hash']})"
        for one in segments
    )
    return f"in {len(segments)} segments: {', '.join(each)}"


def segment_text(run: str, body: Mapping[str, Any]) -> str:
    """Which steps were compared, from which state; or what differs first."""
    first, stop = body["segment"]
    here = f"step {first}" if stop == first + 1 else f"steps {first} to {stop - 1}"
    start = body["from_checkpoint"]
    origin = f"the checkpoint of step {start}" if start else "the initial state"
    if body["equal"]:
        text = (
            f"{run}: {here} bitwise equal to a calm run of the same semantics "
            f"({body['semantic_hash']}) from {origin} on: {count(body['steps'], 'loss', 'losses')}"
            f"{_measured(body)}"
        )
        if body["tensors"]:
            kept = " and ".join(_of(name, stop) for name in body["compared_with"])
            text += f" and {count(body['tensors'], 'tensor')} of {kept}"
        else:
            text += f"; nothing was kept of step {stop} to compare its tensors with"
    else:
        difference = body["first_difference"]
        of = f" of {_of(difference['of'], stop)}" if "of" in difference else ""
        text = (
            f"{run}: differs first in step {difference['step']}, {difference['tensor']}{of}\n"
            f"  calm run from {origin} on: {difference['calm']}\n  this run: {difference['run']}"
        )
    return "\n  passed over: ".join([text, *body["passed_over"]])


def _of(kept: str, step: int) -> str:
    return "the final state" if kept == "final" else f"the checkpoint of step {step}"


def samples_text(run: str, body: Mapping[str, Any]) -> str:
    """How many samples were used, each once; or the first step that used others."""
    if not body["equal"]:
        return f"{run}: {body['first_difference']['sentence']}"
    whole, rest = body["epochs"], body["samples_of_last_epoch"]
    each = f"{body['samples_in_epoch']:,}"
    parts = [f"{count(whole, 'whole data epoch')} of {each}"] if whole else []
    if rest:
        parts.append(f"{rest:,} of {'the next' if whole else f'its {each}'}")
    text = (
        f"{run}: {count(body['steps'], 'step')} used {count(body['samples'], 'sample')}, "
        f"each exactly once in its data epoch: {' and '.join(parts)}"
    )
    if body["undone_steps"]:
        text += f"\n  {count(body['undone_steps'], 'step')} recorded beyond them were taken back"
    return text


def decisions_text(body: Mapping[str, Any]) -> str:
    """How many decisions were recomputed, or the first that differs."""
    if not body["equal"]:
        return f"{body['run']}: {body['first_difference']}"
    parts, unsaved = body["parts"], body["unsaved_parts"]
    of_parts = f" of {count(len(parts), 'part')}" if len(parts) + len(unsaved) > 1 else ""
    lines = [
        f"{body['run']}: {count(body['decisions'], 'decision')}{of_parts} recomputed, each with "
        "the same state, effects and reason"
    ]
    lines += [
        f"  {_of_part(part, of_parts)}from version {part['first_version']} on: the store lost the "
        "run once, and its members gave back no more than the end of the log"
        for part in parts
        if part["first_version"]
    ]
    lines += [
        f"  part {number} was killed with its store: its log is not saved" for number in unsaved
    ]
    return "\n".join(lines)


def _of_part(part: Mapping[str, Any], of_parts: str) -> str:
    return f"part {part['part']}, " if of_parts else ""
