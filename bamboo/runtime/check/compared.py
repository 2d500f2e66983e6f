"""What a run recorded of its steps and evaluations, beside what its calm run found."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bamboo.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A step or an evaluation as a run recorded it, or as the calm run took it."""

    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)


def compare(
    step: int, calm: Recorded, found: Sequence[Recorded], *, what: str = ""
) -> dict[str, Any]:
    """What differs first between the calm run's numbers and all that the run recorded of them, as
    fields of the result; {} when all are equal. `what` stands before the name of each number."""
    losses = [one.loss.hex() for one in found]
    if not found or any(one != calm.loss.hex() for one in losses):
        return difference(step, f"{what}loss", calm.loss.hex(), losses)
    for name in sorted({name for one in (calm, *found) for name in one.metrics}):
        ours, *theirs = (_hex(one.metrics.get(name)) for one in (calm, *found))
        if any(one != ours for one in theirs):
            return difference(step, f"{what}metric {name}", ours, theirs)
    return {}


def _hex(value: float | None) -> str | None:
    return None if value is None else value.hex()


def difference(step: int, tensor: str, calm: object, run: object) -> dict[str, Any]:
    """The fields of the result that say what differs first."""
    first = {"step": step, "tensor": tensor, "calm": calm, "run": run}
    return {"equal": False, "first_difference": first}


def recorded_of(text: str, kind: str = "step") -> dict[int, list[Recorded]]:
    """Everything that the run recorded of its steps, or of another kind; it may be there twice."""
    out: dict[int, list[Recorded]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(
                f"metrics.jsonl: line {number} is not JSON ({error}); the file is damaged"
            ) from error
        if isinstance(record, dict) and record.get("kind", "step") == kind:
            metrics = {name: float(value) for name, value in record.get("metrics", {}).items()}
            found = Recorded(loss=float(record["loss"]), metrics=metrics)
            out.setdefault(int(record["step"]), []).append(found)
    return out
