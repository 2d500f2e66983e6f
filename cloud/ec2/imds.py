"""The metadata service as an instance sees it: its identity, and whether it will be taken.

It uses the token form (IMDSv2) only. The endpoint is the real one, or the one in
AWS_EC2_METADATA_SERVICE_ENDPOINT, which AWS's own libraries follow too.

Rule: one exchange lasts DEADLINE_S at most, however slowly the answer comes, and no answer is read
beyond LONGEST_ANSWER_BYTES. An answer that such a service would not give counts as none.
"""

import hashlib
import http.client
import io
import ipaddress
import json
import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import SplitResult, urlsplit

from bamboo.errors import InputError
from bamboo.ids import InstanceId, ZoneId
from bamboo.ports import Identity, Notice

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
REAL_ENDPOINT = "http://169.254.169.254"
DEADLINE_S = 2.0
TOKEN_TTL_S = 21600
LONGEST_ANSWER_BYTES = 64 << 10
"""With its headers. The longest answer that we ask for is a short address."""
_TOKEN_PATH = "/latest/api/token"
_ACTION_PATH = "/latest/meta-data/spot/instance-action"
_ADVICE_PATH = "/latest/meta-data/events/recommendations/rebalance"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
"""Instance and zone become names of files and sockets."""
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
"""What a header may contain."""
_ACTIONS = ("terminate", "stop", "hibernate")


class Imds:
    """A client of one metadata service, over one kept connection. Safe from several threads."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise InputError(
                f"{ENDPOINT_VARIABLE} = {endpoint!r} is no http address; unset it or correct it"
            )
        port = _port(parts, endpoint)
        # Its path may hold the key of this instance, which must not be shown.
        self._shown = f"http://{parts.hostname}:{port}"
        self._base = parts.path.rstrip("/")
        self._connection = _Connection(parts.hostname, port)
        self._token = ""
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Imds":
        """The service that this machine should use."""
        return cls(environment.get(ENDPOINT_VARIABLE) or REAL_ENDPOINT)

    def identity(self) -> Identity:
        """Instance, zone and address. Raises InputError when there is no metadata service."""
        instance = self.get("/latest/meta-data/instance-id")
        zone = self.get("/latest/meta-data/placement/availability-zone")
        if not instance or not zone:
            raise InputError(
                f"no metadata service answers at {self._shown}; an agent runs on an instance: "
                "start nodes with `bamboo launch`"
            )
        for what, name in (("instance", instance), ("zone", zone)):
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"the metadata service at {self._shown} calls the {what} {name[:80]!r}, "
                    f"which is no name of one; see who answers there ({ENDPOINT_VARIABLE})"
                )
        address = self.get("/latest/meta-data/local-ipv4") or ""
        if address and not _is_address(address):
            raise InputError(
                f"the metadata service at {self._shown} calls the address {address[:80]!r}, "
                f"which is none; see who answers there ({ENDPOINT_VARIABLE})"
            )
        return Identity(instance=InstanceId(instance), zone=ZoneId(zone), address=address)

    def notice(self) -> Notice | None:
        """The pending preemption notice; None when there is none, or no answer within 2 s."""
        text = self.get(_ACTION_PATH)
        return None if text is None else read_notice(text, now_s=time.time())

    def advised(self) -> bool:
        """Whether there is rebalance advice; False without an answer within 2 s."""
        return self.get(_ADVICE_PATH) is not None

    def get(self, path: str) -> str | None:
        """The text at a path, or None: it does not exist (404), was refused, or came too late."""
        with self._lock:
            for _ in range(2):
                if not self._token:
                    self._token = self._new_token() or ""
                if not self._token:
                    return None
                answer = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
                if answer is None:
                    return None
                status, text = answer
                if status == 200:
                    return text
                if status != 401:
                    return None
                self._token = ""  # it has expired: fetch another, once
            return None

    def close(self) -> None:
        """Close the kept connection; the next call opens another."""
        with self._lock:
            self._connection.close()

    def _new_token(self) -> str | None:
        header = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        answer = self._ask("PUT", _TOKEN_PATH, header)
        if answer is None or answer[0] != 200 or not _TOKEN.fullmatch(answer[1]):
            return None
        return answer[1]

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """One request. A kept connection that the other side has closed is reopened once."""
        for fresh in (False, True):
            if fresh:
                self._connection.close()
            try:
                self._connection.limit(DEADLINE_S, LONGEST_ANSWER_BYTES)
                self._connection.request(method, self._base + path, headers=dict(headers))
                response = self._connection.getresponse()
                return response.status, response.read().decode(errors="replace")
            except (TimeoutError, _TooLong):
                break
            except (OSError, http.client.HTTPException, ValueError):
                continue  # the library raises ValueError for a length that is not a number
        self._connection.close()
        return None


def read_notice(text: str, *, now_s: float) -> Notice | None:
    """The notice in an answer of the service; None where it is not one. The same notice has the
    same id, however it is written. A notice with an unreadable time, which the cloud has never sent
    so far, is taken to be due now (Unix time): being early costs a hand-over, being late a
    stage."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or raw.get("action") not in _ACTIONS:
        return None
    try:
        at_s = datetime.strptime(raw["time"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (ValueError, KeyError, TypeError, OverflowError):
        at_s = now_s
    content = json.dumps([raw["action"], raw.get("time")])
    return Notice(id=hashlib.sha256(content.encode()).hexdigest()[:16], at_s=at_s)


def _is_address(text: str) -> bool:
    try:
        return isinstance(ipaddress.ip_address(text), ipaddress.IPv4Address)
    except ValueError:
        return False


def _port(parts: SplitResult, endpoint: str) -> int:
    try:
        return parts.port or 80
    except ValueError as error:
        raise InputError(
            f"{ENDPOINT_VARIABLE} = {endpoint!r} has no port that could be; correct it"
        ) from error


class _TooLong(Exception):
    """An answer beyond the limit, which is not read to its end."""


class _Connection(http.client.HTTPConnection):
    """A connection on which every exchange has one deadline and one limit of bytes."""

    def limit(self, within_s: float, most_bytes: int) -> None:
        """Set the time and the bytes of the exchange that begins now."""
        self.timeout = within_s
        self.end_s = time.monotonic() + within_s
        self.left_bytes = most_bytes
        if self.sock is not None:
            self.sock.settimeout(within_s)

    def connect(self) -> None:
        super().connect()
        self.sock = _Limited(self.sock, self)


class _Limited:
    """A socket, as the library uses one, that reads within its connection's limits."""

    def __init__(self, inner: socket.socket, limits: _Connection) -> None:
        self._inner = inner
        self._limits = limits

    def makefile(self, mode: str, *_: object, **__: object) -> io.BufferedReader:
        """The stream from which the library reads an answer."""
        assert mode == "rb"
        return io.BufferedReader(_Answer(self._inner, self._limits))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Answer(io.RawIOBase):
    """The bytes of an answer as they come."""

    def __init__(self, inner: socket.socket, limits: _Connection) -> None:
        self._inner = inner
        # It keeps the socket open while an answer is read whose connection the other side ends.
        self._raw = inner.makefile("rb", buffering=0)
        self._limits = limits

    def close(self) -> None:
        self._raw.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        left_s = self._limits.end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer takes too long")
        if self._limits.left_bytes <= 0:
            raise _TooLong
        self._inner.settimeout(left_s)
        count = self._raw.readinto(into) or 0
        self._limits.left_bytes -= count
        return count
