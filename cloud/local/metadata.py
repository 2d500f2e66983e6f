"""The metadata service of every local instance, with the contract of the real one.

`respond` is a plain function of a request and the present time; the server gives each instance a
path prefix of its own. Contract: PUT /latest/api/token needs the TTL header; a GET without a live
token is 401; what is not there (a notice, above all) is 404.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A status, a text body, and the headers beside the content type."""

    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFacts:
    """What an instance may know of itself. Notice times are Unix seconds, None: no notice."""

    instance: InstanceId
    zone: ZoneId
    region: str
    instance_type: str
    lifecycle: str
    private_ip: str
    user_data: str
    terminate_at_s: float | None = None
    rebalance_noticed_at_s: float | None = None


class MetadataService:
    """All instances' facts and tokens. Safe from several threads."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._facts: dict[str, InstanceFacts] = {}
        self._tokens: dict[str, tuple[str, float]] = {}

    def add(self, facts: InstanceFacts) -> str:
        """Serve an instance from now on; the path prefix, which only it is told."""
        key = f"{facts.instance}-{secrets.token_hex(8)}"
        with self._lock:
            self._facts[key] = facts
        return PREFIX + key

    def remove(self, instance: InstanceId) -> None:
        """Stop serving an instance."""
        with self._lock:
            self._facts = {k: f for k, f in self._facts.items() if f.instance != instance}

    def notice(self, instance: InstanceId, *, at_s: float) -> None:
        """Show `instance` that it will be terminated at `at_s` (Unix)."""
        noticed_s = self._now()
        with self._lock:
            for key, facts in self._facts.items():
                if facts.instance == instance:
                    self._facts[key] = replace(
                        facts, terminate_at_s=at_s, rebalance_noticed_at_s=noticed_s
                    )

    def advise(self, instance: InstanceId) -> None:
        """Show `instance` that it is at a raised risk, without a notice."""
        noticed_s = self._now()
        with self._lock:
            for key, facts in self._facts.items():
                if facts.instance == instance:
                    self._facts[key] = replace(facts, rebalance_noticed_at_s=noticed_s)

    def respond(self, method: str, path: str, headers: Mapping[str, str]) -> Response:
        """Answer one request; `headers` has lower-case names, `path` starts with PREFIX."""
        key, _, below = path.removeprefix(PREFIX).partition("/")
        with self._lock:
            facts = self._facts.get(key)
            if facts is None:
                return Response(status=404)
            if below == "latest/api/token":
                return self._token(key, method, headers)
            owner, expires_s = self._tokens.get(headers.get(TOKEN_HEADER, ""), ("", 0.0))
            if owner != key or expires_s <= self._now():
                return Response(status=401)
            if method != "GET":
                return Response(status=405)
        body = document(facts, below.removeprefix("latest/"), now_s=self._now())
        return Response(status=404) if body is None else Response(status=200, body=body)

    def _token(self, key: str, method: str, headers: Mapping[str, str]) -> Response:
        ttl = headers.get(TTL_HEADER, "")
        if method != "PUT":
            return Response(status=405)
        if not ttl.isdigit() or not 1 <= int(ttl) <= MAX_TTL_S:
            return Response(status=400)
        token, now_s = secrets.token_urlsafe(24), self._now()
        self._tokens = {t: v for t, v in self._tokens.items() if v[1] > now_s}
        self._tokens[token] = (key, now_s + int(ttl))
        return Response(status=200, body=token, headers={TTL_HEADER: ttl})


def document(facts: InstanceFacts, path: str, *, now_s: float) -> str | None:
    """The text below `/latest/` for an instance, or None where there is nothing (404)."""
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
        f"meta-data/iam/security-credentials/{ROLE}": _credentials(now_s),
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


def _credentials(now_s: float) -> str:
    """Role credentials in the real form; the mock takes any key, so these open nothing."""
    return json.dumps(
        {
            "Code": "Success",
            "LastUpdated": _timestamp(now_s),
            "Type": "AWS-HMAC",
            "AccessKeyId": "ASIALOCALBAMBOO00000",
            "SecretAccessKey": "local",
            "Token": "local",
            "Expiration": _timestamp(now_s + 6 * 3600),
        }
    )


def _timestamp(unix_s: float) -> str:
    """Whole seconds in UTC, as the real service writes them; rounded down: never too late."""
    whole = int(unix_s)
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
