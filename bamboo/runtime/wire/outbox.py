"""Where a trainer says things: events for the log, records for the streams."""

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
    """Records that are to be said again: the newest, which are the ones that nobody may have heard,
    before the older ones, each part in its own order. Who says them may not live long."""
    everything = list(records)
    return everything[-URGENT:] + everything[:-URGENT]
