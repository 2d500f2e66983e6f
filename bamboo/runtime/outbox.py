"""Where a trainer says things: events for the log, records for the streams."""

from collections.abc import Mapping
from typing import Any, Protocol

from bamboo.core.events import Event


class Outbox(Protocol):
    """Calls return at once and keep their order."""

    def event(self, event: Event) -> None: ...

    def metric(self, record: Mapping[str, Any]) -> None: ...
