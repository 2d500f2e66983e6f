"""How long a failover stood still, in its parts, from the times of killer and successor."""

from collections.abc import Mapping
from typing import Any

PAUSE_MOMENTS = {
    "disconnect": ("killed_s", "seen_s"),
    "decision": ("seen_s", "decided_s"),
    "promotion": ("decided_s", "promoted_s"),
    "first operation": ("promoted_s", "first_operation_s"),
}


def pause_parts_s(record: Mapping[str, Any]) -> dict[str, float]:
    """The parts of a failover's pause, from the times that its successor stamped."""
    return {
        name: float(record[end]) - float(record[begin])
        for name, (begin, end) in PAUSE_MOMENTS.items()
        if begin in record and end in record
    }


def with_kill_stamp(record: Mapping[str, Any], stamps_s: Mapping[str, float]) -> Mapping[str, Any]:
    """A failover record with the time just before the kill, where the killer noted it. The pause
    then counts from there. `stamps_s`: instance -> the same machine's monotonic clock."""
    instance = str(record.get("victim", "")).rpartition(".")[0]
    if record.get("planned") or instance not in stamps_s:
        return record
    return {**record, "killed_s": stamps_s[instance]}
