"""When an instance was killed, by the clock that all processes of this machine share."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bamboo.telemetry.records import Tail


def kill_stamps_s(kills: Path) -> Mapping[str, float]:
    """Instance -> time.monotonic() just before its kill, from a run's `kills.jsonl`.

    The local cloud names the instance; a worker that kills its own instance names its node. A
    damaged line is skipped, and the pause then counts from the disconnect.
    """
    stamps_s: dict[str, float] = {}
    for line in Tail(kills).lines():
        with suppress(KeyError, TypeError, ValueError, AttributeError, RecursionError):
            record = json.loads(line)
            node = str(record.get("node", ""))
            instance = str(record.get("instance") or node.rpartition(".")[0])
            stamps_s[instance] = record["t_monotonic_ns"] / 1e9
    return stamps_s
