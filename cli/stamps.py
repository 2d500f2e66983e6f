"""The moments of a failover, by the clock that all processes of this machine share: from the kill,
where whoever killed noted it, to the first operation of the successor."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bamboo.telemetry.reader import Tail

PAUSE_MOMENTS = {
    "disconnect": ("killed_s", "seen_s"),
    "decision": ("seen_s", "decided_s"),
    "promotion": ("decided_s", "promoted_s"),
    "first operation": ("promoted_s", "first_operation_s"),
}


def kill_stamps_s(kills: Path) -> Mapping[str, float]:
    """Instance -> time.monotonic() just before its kill, from a run's `kills.jsonl`.

    The local cloud names the instance, a worker that takes its own instance away names its node.
    """
    stamps_s: dict[str, float] = {}
    for line in Tail(kills).lines():
        record = json.loads(line)
        node = str(record.get("node", ""))
        instance = str(record.get("instance") or node.rpartition(".")[0])
        stamps_s[instance] = record["t_monotonic_ns"] / 1e9
    return stamps_s


def pause_parts_s(record: Mapping[str, Any]) -> dict[str, float]:
    """The parts of a failover's pause, from the moments its successor stamped on its own clock."""
    return {
        name: float(record[end]) - float(record[begin])
        for name, (begin, end) in PAUSE_MOMENTS.items()
        if begin in record and end in record
    }


def with_kill_stamp(record: Mapping[str, Any], stamps_s: Mapping[str, float]) -> Mapping[str, Any]:
    """A failover record with the moment before the kill, where the killer noted it: the pause then
    counts from there. `stamps_s`: instance -> the same machine's monotonic clock."""
    instance = str(record.get("victim", "")).rpartition(".")[0]
    if record.get("planned") or instance not in stamps_s:
        return record
    return {**record, "killed_s": stamps_s[instance]}
