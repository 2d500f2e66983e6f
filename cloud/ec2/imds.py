"""The metadata service as an instance sees it: who am I, and is my time up?

Speaks the token form (IMDSv2) only. The endpoint is the real one, or whatever
AWS_EC2_METADATA_SERVICE_ENDPOINT names: the same variable that AWS's own libraries follow.
"""

import hashlib
import http.client
import json
import os
import threading
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import urlsplit

from bamboo.errors import InputError
from bamboo.ids import InstanceId, ZoneId
from bamboo.ports import Identity, Notice

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
REAL_ENDPOINT = "http://169.254.169.254"
DEADLINE_S = 2.0
TOKEN_TTL_S = 21600
_TOKEN_PATH = "/latest/api/token"
_ACTION_PATH = "/latest/meta-data/spot/instance-action"
_ADVICE_PATH = "/latest/meta-data/events/recommendations/rebalance"


class Imds:
    """A client of one metadata service, over one kept connection. Safe from several threads."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme != "http" or not parts.hostname:
            raise InputError(
                f"{ENDPOINT_VARIABLE} = {endpoint!r} is no http address; unset it or correct it"
            )
        self._endpoint = endpoint
        self._base = parts.path.rstrip("/")
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port or 80, timeout=DEADLINE_S
        )
        self._token = ""
        self._lock = threading.Lock()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Imds":
        """The service that this machine should ask."""
        return cls(environment.get(ENDPOINT_VARIABLE) or REAL_ENDPOINT)

    def identity(self) -> Identity:
        """Instance and zone. Raises InputError when there is no metadata service."""
        instance = self.get("/latest/meta-data/instance-id")
        zone = self.get("/latest/meta-data/placement/availability-zone")
        if not instance or not zone:
            raise InputError(
                f"no metadata service answers at {self._endpoint}; an agent runs on an instance: "
                "start nodes with `bamboo launch`"
            )
        return Identity(instance=InstanceId(instance), zone=ZoneId(zone))

    def notice(self) -> Notice | None:
        """The pending preemption notice; None when there is none, or no answer within 2 s."""
        text = self.get(_ACTION_PATH)
        if text is None:
            return None
        try:
            raw = json.loads(text)
            at = datetime.strptime(raw["time"], "%Y-%m-%dT%H:%M:%S%z")
        except (ValueError, KeyError, TypeError):
            return None
        return Notice(id=hashlib.sha256(text.encode()).hexdigest()[:16], at_s=at.timestamp())

    def advised(self) -> bool:
        """Whether there is a rebalance recommendation; not without an answer within 2 s."""
        return self.get(_ADVICE_PATH) is not None

    def get(self, path: str) -> str | None:
        """The text at a path, or None: not there (404), refused, or no answer in time."""
        with self._lock:
            for _ in range(2):
                if not self._token:
                    self._token = self._new_token() or ""
                answer = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
                if answer is None:
                    return None
                status, text = answer
                if status == 200:
                    return text
                if status != 401:
                    return None
                self._token = ""  # it ran out: fetch another, once
            return None

    def close(self) -> None:
        """Close the kept connection; the next call opens another."""
        with self._lock:
            self._connection.close()

    def _new_token(self) -> str | None:
        header = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        answer = self._ask("PUT", _TOKEN_PATH, header)
        return answer[1] if answer is not None and answer[0] == 200 else None

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """One request; a kept connection that the other side has closed is opened once again."""
        for fresh in (False, True):
            if fresh:
                self._connection.close()
            try:
                self._connection.request(method, self._base + path, headers=dict(headers))
                response = self._connection.getresponse()
                return response.status, response.read().decode(errors="replace")
            except TimeoutError:
                break
            except (OSError, http.client.HTTPException):
                continue
        self._connection.close()
        return None
