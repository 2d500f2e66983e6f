"""Messages put together of their frames: delivered whole, or not at all."""

from collections.abc import Callable
from dataclasses import replace

from bamboo.ids import NodeId
from bamboo.ports import YIELDING, Delivered
from bamboo.runtime.wire import Frame, Malformed


class Assembly:
    """What has come of messages that are not whole yet: of each sender at most one on either of
    its connections, for there its frames come one after the other."""

    def __init__(self) -> None:
        self._unfinished: dict[tuple[NodeId, bool], list[Frame]] = {}

    def take(self, frame: Frame) -> Delivered | None:
        """The message that is whole with this frame. The first frame of one begins anew. Raises
        Malformed for any other than the next one, and forgets what it would have belonged to."""
        came = frame.message
        connection = (came.sender, came.key.kind in YIELDING)
        before = self._unfinished.pop(connection, [])
        if not frame.number:
            before = []
        if frame.number != len(before) or not all(_belong(frame, other) for other in before[:1]):
            raise Malformed(f"frame {frame.number} of {frame.count} is not the next one")
        before.append(frame)
        if len(before) < frame.count:
            self._unfinished[connection] = before
            return None
        if len(before) == 1:
            return came
        buffers = tuple(buffer for one in before for buffer in one.message.buffers)
        return replace(before[0].message, buffers=buffers)

    def keep(self, hears: Callable[[Delivered], bool]) -> None:
        """Forget what is not whole of those who are not heard any more."""
        for connection, frames in list(self._unfinished.items()):
            if not hears(frames[0].message):
                del self._unfinished[connection]


def _belong(frame: Frame, first: Frame) -> bool:
    """Whether both are of one message."""
    one, other = frame.message, first.message
    return (one.key, one.generation, frame.due, frame.count) == (
        other.key,
        other.generation,
        first.due,
        first.count,
    )
