"""The metadata service of every local instance, with the contract of the real one.

`respond` is a plain function of a request and the present time; the server gives each instance a
path prefix of its own, which contains a key that only the instance gets. Contract: PUT
/latest/api/token needs the TTL header; a GET without a live token is 401; what does not exist
(above all a notice) is 404.
"""

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from bamboo.ids import InstanceId, ZoneId

TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "x-aws-ec2-metadata-token"
MAX_TTL_S = 21600
ROLE = "bamboo-node"
PREFIX = "/imds/"
MOST_TOKENS = 16
"""For one instance at a time; the oldest are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A status, a text body, and the headers besides the content type."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFacts:
    """What an instance may know of itself. Notice times are Unix seconds; None: no notice."""

    instance: InstanceId
    zone: ZoneId
    region: str
    instance_type: str
    lifecycle: str
    private_ip: str
    user_data: str
    terminate_at_s: float | None = None
    rebalance_noticed_at_s: float | None = None


@dataclass(slots=True, kw_only=True)
class _Served:
    """One instance: the key of its path, and its tokens with their ends (Unix)."""

    facts: InstanceFacts
    key: str
    tokens: dict[str, float] = field(default_factory=dict)


class MetadataService:
    """All instances' facts and tokens. Safe from several threads. `role_token` is the session token
    in the credentials of the instances' role, which the mock of AWS requires of each caller."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._served: dict[str, _Served] = {}
        self.role_token = secrets.token_urlsafe(32)

    def add(self, facts: InstanceFacts) -> str:
        """Serve an instance from now on. Returns its path prefix, which only the instance gets."""
        served = _Served(facts=facts, key=secrets.token_hex(16))
        with self._lock:
            self._served[facts.instance] = served
        return f"{PREFIX}{facts.instance}-{served.key}"

    def remove(self, instance: InstanceId) -> None:
        """Stop serving an instance."""
        with self._lock:
            self._served.pop(instance, None)

    def notice(self, instance: InstanceId, *, at_s: float) -> None:
        """Show `instance` that it will be terminated at `at_s` (Unix)."""
        now_s = self._now()
        self._show(
            instance,
            lambda facts: replace(facts, terminate_at_s=at_s, rebalance_noticed_at_s=now_s),
        )

    def advise(self, instance: InstanceId) -> None:
        """Give `instance` rebalance advice, without a notice."""
        now_s = self._now()
        self._show(instance, lambda facts: replace(facts, rebalance_noticed_at_s=now_s))

    def knows(self, path: str) -> bool:
        """Whether the path starts with the prefix of an instance that is served."""
        with self._lock:
            return self._of(path)[0] is not None

    def respond(self, method: str, path: str, headers: Mapping[str, str]) -> Response:
        """Answer one request; `headers` has lower-case names, `path` starts with PREFIX."""
        with self._lock:
            served, below = self._of(path)
            if served is None:
                return Response(status=404)
            if below == "latest/api/token":
                return self._new_token(served, method, headers)
            if not self._is_live(headers.get(TOKEN_HEADER, ""), served):
                return Response(status=401)
            if method != "GET":
                return Response(status=405)
            facts = served.facts
        body = document(
            facts, below.removeprefix("latest/"), now_s=self._now(), role_token=self.role_token
        )
        return Response(status=404) if body is None else Response(status=200, body=body)

    def _show(self, instance: InstanceId, change: Callable[[InstanceFacts], InstanceFacts]) -> None:
        with self._lock:
            if served := self._served.get(instance):
                served.facts = change(served.facts)

    def _of(self, path: str) -> tuple[_Served | None, str]:
        """The instance of a path, and the rest of the path below its prefix."""
        name, _, below = path.removeprefix(PREFIX).partition("/")
        instance, _, key = name.rpartition("-")
        served = self._served.get(instance)
        known = secrets.compare_digest(key.encode(), (served.key if served else "").encode())
        return (served if known else None), below

    def _is_live(self, token: str, served: _Served) -> bool:
        now_s, given = self._now(), token.encode()
        return any(
            secrets.compare_digest(given, one.encode()) and end_s > now_s
            for one, end_s in served.tokens.items()
        )

    def _new_token(self, served: _Served, method: str, headers: Mapping[str, str]) -> Response:
        ttl = headers.get(TTL_HEADER, "")
        if method != "PUT":
            return Response(status=405)
        plain = ttl.isascii() and ttl.isdigit() and len(ttl) <= len(str(MAX_TTL_S))
        if not plain or not 1 <= int(ttl) <= MAX_TTL_S:
            return Response(status=400)
        token, now_s = secrets.token_urlsafe(24), self._now()
        live = [(one, end_s) for one, end_s in served.tokens.items() if end_s > now_s]
        served.tokens = dict([*live, (token, now_s + int(ttl))][-MOST_TOKENS:])
        return Response(status=200, body=token, headers={TTL_HEADER: ttl})


def document(facts: InstanceFacts, path: str, *, now_s: float, role_token: str) -> str | None:
    """The text below `/latest/` for an instance, or None where there is none (404)."""
    identity = {
        "instanceId": facts.instance,
        "availabilityZone": facts.zone,
        "region": facts.region,
        "instanceType": facts.instance_type,
        "privateIp": facts.private_ip,
    }
    texts: dict[str, str | None] = {
        "meta-data/instance-id": facts.instance,
        "meta-data/instance-type": facts.instance_type,
        "meta-data/instance-life-cycle": facts.lifecycle,
        "meta-data/local-ipv4": facts.private_ip,
        "meta-data/placement/availability-zone": facts.zone,
        "meta-data/placement/region": facts.region,
        "meta-data/iam/security-credentials/": ROLE,
        f"meta-data/iam/security-credentials/{ROLE}": _credentials(now_s, role_token),
        "meta-data/spot/instance-action": _instance_action(facts),
        "meta-data/events/recommendations/rebalance": _rebalance(facts),
        "dynamic/instance-identity/document": json.dumps(identity),
        "user-data": facts.user_data or None,
    }
    return texts.get(path)


def _instance_action(facts: InstanceFacts) -> str | None:
    if facts.terminate_at_s is None:
        return None
    return json.dumps({"action": "terminate", "time": _timestamp(facts.terminate_at_s)})


def _rebalance(facts: InstanceFacts) -> str | None:
    if facts.rebalance_noticed_at_s is None:
        return None
    return json.dumps({"noticeTime": _timestamp(facts.rebalance_noticed_at_s)})


def _credentials(now_s: float, token: str) -> str:
    """Role credentials in the real form; the mock of this run accepts this token and no other."""
    return json.dumps(
        {
            "Code": "Success",
            "LastUpdated": _timestamp(now_s),
            "Type": "AWS-HMAC",
            "AccessKeyId": "ASIALOCALBAMBOO00000",
            "SecretAccessKey": "local",
            "Token": token,
            "Expiration": _timestamp(now_s + 6 * 3600),
        }
    )


def _timestamp(unix_s: float) -> str:
    """Whole seconds in UTC, as the real service writes them; rounded down, so never too late."""
    whole = int(unix_s)
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
