"""The local cloud's control socket: JSON lines over a unix socket in the run's 0700 directory.

Requests: `{"op": "preempt", "instance": …, "notice_s": …, "cause": …}`, `{"op": "instances"}`,
`{"op": "refuse", "code": …, "zone": …, "instance_type": …, "count": …, "grant": …}`, `{"op":
"relent"}`, `{"op": "notice", "instance": …, "notice_s": …}`, `{"op": "advise", "instance": …}`,
`{"op": "services"}`, `{"op": "token"}`, `{"op": "hold", "alone_s": …, "until_s": …}`, `{"op":
"shutdown"}`. Answers: `{"ok": true, …}` or `{"ok": false, "error": …}`.

A caller that sends `hold` is a launcher while its connection is open. The kernel closes it when the
launcher ends, however it ends.
"""

import json
import math
import selectors
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from bamboo.errors import BambooError, InputError
from bamboo.ids import InstanceId
from bamboo.local_sockets import accept_own, listen_privately

CALL_DEADLINE_S = 5.0
_LINE_LIMIT_BYTES = 1 << 16
_MOST_CALLERS = 32
"""Apart from those that hold. Each sends one request; of too many the oldest is closed."""

Answer: TypeAlias = Mapping[str, Any]


def seconds_of(request: Mapping[str, Any], name: str) -> float:
    """A time in a request. Raises ValueError where it is not one, KeyError where it is missing."""
    value = float(request[name])
    if not math.isfinite(value):
        raise ValueError(f"{name} = {value} is no time; give a finite number of seconds")
    return value


class ControlServer:
    """Serves the socket from the host's main loop; `handle` must not block for long."""

    def __init__(
        self,
        *,
        path: Path,
        selector: selectors.BaseSelector,
        handle: Callable[[Mapping[str, Any]], Answer],
        alone: Callable[[], None],
    ) -> None:
        """`alone` is called when the last caller that held has gone."""
        self._selector = selector
        self._handle = handle
        self._alone = alone
        self._holders: set[socket.socket] = set()
        self._received: dict[socket.socket, bytes] = {}
        self._listener = listen_privately(path, backlog=16)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._received):
            self._drop(connection)
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection = accept_own(self._listener)
        except BlockingIOError:
            return  # it has gone meanwhile
        if connection is None:
            return
        waiting = [one for one in self._received if one not in self._holders]
        if len(waiting) >= _MOST_CALLERS:
            self._drop(waiting[0])
        connection.settimeout(CALL_DEADLINE_S)
        self._received[connection] = b""
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._serve(connection))

    def _serve(self, connection: socket.socket) -> None:
        try:
            part = connection.recv(65536)
            received = self._received[connection] + part
            if not part or len(received) > _LINE_LIMIT_BYTES:
                self._drop(connection)
                return
            *lines, self._received[connection] = received.split(b"\n")
            for line in lines:
                answer = self._answer(line, connection)
                connection.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            self._drop(connection)

    def _answer(self, line: bytes, connection: socket.socket) -> Answer:
        try:
            request = json.loads(line)
            answer = self._handle(request)
            if request["op"] == "hold":
                self._holders.add(connection)
            return answer
        except (InputError, ValueError, KeyError, TypeError, RecursionError) as error:
            return {"ok": False, "error": str(error) or repr(error)}

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._received[connection]
        connection.close()
        if connection in self._holders:
            self._holders.remove(connection)
            if not self._holders:
                self._alone()


class ControlClient:
    """One call per connection. Every method raises BambooError when the local cloud does not
    answer within 5 s, and InputError when it refuses."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def preempt(
        self, instance: InstanceId, *, notice_s: float = 0.0, cause: str = "preempt"
    ) -> None:
        """Take an instance, at once or after a notice of `notice_s`. Returns when it is killed, or
        when the notice is shown."""
        self._call({"op": "preempt", "instance": instance, "notice_s": notice_s, "cause": cause})

    def advise(self, instance: InstanceId) -> None:
        """Give an instance rebalance advice; nothing else happens."""
        self._call({"op": "advise", "instance": instance})

    def instances(self) -> tuple[Mapping[str, Any], ...]:
        """All instances ever started: instance, zone, instance_type, market, state (`running` or
        `terminated`), pid (of its agent, None when that has ended), agent_status (its exit status
        or None), launched_at, ended_at (Unix seconds, None while it runs), log."""
        return tuple(self._call({"op": "instances"})["instances"])

    def refuse(
        self, *, code: str, zone: str = "", instance_type: str = "", count: int = 1, grant: int = 0
    ) -> None:
        """Refuse the next `count` launches into a pool with an EC2 error code, or give them only
        `grant` instances if that is not 0."""
        self._call(
            {
                "op": "refuse",
                "code": code,
                "zone": zone,
                "instance_type": instance_type,
                "count": count,
                "grant": grant,
            }
        )

    def relent(self) -> None:
        """Refuse nothing any more."""
        self._call({"op": "relent"})

    def notice(self, instance: InstanceId, *, notice_s: float) -> None:
        """Show an instance a notice, and do not take it."""
        self._call({"op": "notice", "instance": instance, "notice_s": notice_s})

    def services(self) -> Mapping[str, int | None]:
        """Process ids of the helpers besides the instances: `store` (None: it is not the cloud's),
        `fork-server`."""
        answer: Mapping[str, int | None] = self._call({"op": "services"})["services"]
        return answer

    def token(self) -> str:
        """The session token that the mock of AWS requires."""
        return str(self._call({"op": "token"})["token"])

    def hold(self, *, alone_s: float, until_s: float = 0.0) -> socket.socket:
        """Be a launcher of this cloud until the socket is closed. From the first such call on the
        cloud outlives its launchers: for `alone_s` after the last one has gone, or until the Unix
        time `until_s` if that is given."""
        connection = self._connect()
        try:
            self._ask({"op": "hold", "alone_s": alone_s, "until_s": until_s}, connection)
        except BambooError:
            connection.close()
            raise
        return connection

    def shutdown(self) -> None:
        """Ask for the end; returns when it is under way."""
        self._call({"op": "shutdown"})

    def _call(self, request: Mapping[str, Any]) -> Answer:
        with self._connect() as connection:
            return self._ask(request, connection)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(CALL_DEADLINE_S)
        try:
            connection.connect(str(self._path))
        except OSError as error:
            connection.close()
            raise self._silent(error) from error
        return connection

    def _silent(self, error: OSError) -> BambooError:
        return BambooError(
            f"the local cloud at {self._path} does not answer: {error}; is the run still on?"
        )

    def _ask(self, request: Mapping[str, Any], connection: socket.socket) -> Answer:
        received = b""
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            while not received.endswith(b"\n"):
                part = connection.recv(1 << 20)
                if not part:
                    raise ConnectionError("it hung up")
                received += part
        except OSError as error:
            raise self._silent(error) from error
        answer: Answer = json.loads(received)
        if not answer["ok"]:
            raise InputError(str(answer["error"]))
        return answer
