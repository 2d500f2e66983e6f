"""One line of a node's log for people: an event in words, any other line as it is."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from bamboo.errors import InputError
from bamboo.runs.books import DUTY
from bamboo.telemetry.records import EventRecord


def log_line(source: str, line: str) -> str:
    """`launcher  12:00:01.250  step 3  generation 1  PeerLost  reason=…`, or source and line."""
    try:
        event = EventRecord.from_json(line)
    except InputError:
        return f"{source}  {line}"
    at = datetime.fromtimestamp(event.t_s, UTC).strftime("%H:%M:%S.%f")[:-3]
    step = "-" if event.step is None else str(event.step)
    data = " ".join(f"{key}={_short(value)}" for key, value in _plain(event).items())
    line = f"{source}  {at}  step {step}  generation {event.generation}  {event.kind}  {data}"
    return line.rstrip()


def log_body(source: str, line: str) -> dict[str, Any]:
    """The value of one line of `bamboo logs --json`: `event` or `line`, with its source."""
    try:
        EventRecord.from_json(line)
    except InputError:
        return {"source": source, "line": line}
    return {"source": source, "event": json.loads(line)}


def _plain(event: EventRecord) -> Mapping[str, Any]:
    """The event's data; for a change of duties, the instances with their duties."""
    if event.kind != DUTY:
        return event.data
    return {str(one["instance"]): one["duty"] for one in event.data.get("changed", ())}


def _short(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
