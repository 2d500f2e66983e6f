"""Where a trainer reports: events for the log, records for the streams."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

from bamboo.core.events import Event

T = TypeVar("T")
URGENT = 32


class Outbox(Protocol):
    """Calls return at once and keep their order."""

    def event(self, event: Event) -> None: ...

    def metric(self, record: Mapping[str, Any]) -> None: ...


def urgent_first(records: Iterable[T]) -> list[T]:
    """Order records that are written again: first the newest, which the store may never have
    received, then the older ones, each part in its own order. The node that writes them may not
    live long."""
    everything = list(records)
    return everything[-URGENT:] + everything[:-URGENT]
