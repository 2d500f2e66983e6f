"""Turns the metadata service's preemption notice, or its advice, into the event that the members
decide on.

The deadline goes into the log as the cloud wrote it, in Unix time, which is the clock of both store
and cloud. A notice that comes before the node has joined is repeated until the node is known.
"""

import logging
import threading
from typing import Protocol

from bamboo.coord.driver import Appended
from bamboo.core.events import Event, NoticeReceived, RebalanceAdvised
from bamboo.errors import StoreUnavailable
from bamboo.ids import NodeId
from bamboo.ports import Metadata

log = logging.getLogger("bamboo.agent")


class Append(Protocol):
    """`Driver.append`."""

    def __call__(self, event: Event, *, deadline_s: float = ...) -> Appended: ...


class NoticeWatch:
    """Polls one instance's notice and advice. `run` is a thread's body."""

    def __init__(self, *, node: NodeId, metadata: Metadata, append: Append, poll_s: float) -> None:
        self._node = node
        self._metadata = metadata
        self._append = append
        self._poll_s = poll_s
        self._told = ""
        self._told_advice = False

    def run(self, stop: threading.Event) -> None:
        """Look every `poll_s` until `stop`."""
        while not stop.wait(self._poll_s):
            self.look()

    def look(self) -> None:
        """Look once: append NoticeReceived once per notice that the members can act on, and
        RebalanceAdvised once per life, unless a notice has told more already."""
        notice = self._metadata.notice()
        if notice is not None and notice.id != self._told:
            if self._say(NoticeReceived(node=self._node, deadline_s=notice.at_s)):
                self._told = notice.id
        elif notice is None and not self._told_advice and self._metadata.advised():
            self._told_advice = self._say(RebalanceAdvised(node=self._node))

    def _say(self, event: Event) -> bool:
        """Append an event; returns whether it is in the log, for a node that the members know."""
        kind = type(event).__name__
        try:
            appended = self._append(event, deadline_s=2.0)
        except StoreUnavailable as error:
            log.warning("%s is not in the log yet: %s", kind, error)
            return False
        known = appended.state.node(self._node) is not None
        if known:
            log.info("%s: %s", kind, appended.reason)
        return known
