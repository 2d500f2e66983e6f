"""From the metadata service's preemption notice to the event that the members decide on.

The deadline goes into the log as the cloud wrote it, in Unix time; store and cloud both keep that
clock. A notice that comes before the node has joined is said again until the node is known.
"""

import logging
import threading
from typing import Protocol

from bamboo.coord.driver import Appended
from bamboo.core.events import Event, NoticeReceived
from bamboo.errors import StoreUnavailable
from bamboo.ids import NodeId
from bamboo.ports import Metadata

log = logging.getLogger("bamboo.agent")


class Append(Protocol):
    """`Driver.append`."""

    def __call__(self, event: Event, *, deadline_s: float = ...) -> Appended: ...


class NoticeWatch:
    """Polls one instance's notice. `run` is a thread's body."""

    def __init__(self, *, node: NodeId, metadata: Metadata, append: Append, poll_s: float) -> None:
        self._node = node
        self._metadata = metadata
        self._append = append
        self._poll_s = poll_s
        self._told = ""

    def run(self, stop: threading.Event) -> None:
        """Look every `poll_s` until `stop`."""
        while not stop.wait(self._poll_s):
            self.look()

    def look(self) -> None:
        """One look; appends NoticeReceived once per notice that the members can act on."""
        notice = self._metadata.notice()
        if notice is None or notice.id == self._told:
            return
        event = NoticeReceived(node=self._node, deadline_s=notice.at_s)
        try:
            appended = self._append(event, deadline_s=2.0)
        except StoreUnavailable as error:
            log.warning("the notice is not in the log yet: %s", error)
            return
        if appended.state.node(self._node) is not None:
            self._told = notice.id
            log.info("preemption notice: %s", appended.reason)
