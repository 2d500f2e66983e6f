"""Which call of which service a request is, and which calls a run makes of the mock of AWS. Pure.

Rule: a request that could be read in two ways is rejected. The library behind the mock reads more
fields than these, and offers pages of its own, so it gets only requests with one meaning.
"""

import re
from collections.abc import Collection, Mapping
from urllib.parse import unquote

from cloud.local.http_server import Request

RUN_CALLS = frozenset(
    {
        "ec2:CancelSpotInstanceRequests",
        "ec2:CreateFleet",
        "ec2:CreateTags",
        "ec2:DeleteFleets",
        "ec2:DeleteVolume",
        "ec2:DescribeFleets",
        "ec2:DescribeInstances",
        "ec2:DescribeSpotInstanceRequests",
        "ec2:DescribeSpotPriceHistory",
        "ec2:DescribeTags",
        "ec2:DescribeVolumes",
        "ec2:RunInstances",
        "ec2:TerminateInstances",
    }
)
"""The calls that `cloud.ec2.provider` makes, and no others."""
MOST_INSTANCES = 64
"""How many may exist at once by default: more than one machine has room for."""

_SIGNED_FOR = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[\w.-]+/\d{8}/[a-z0-9-]+/([a-z0-9-]+)/aws4_request,.*"
)
_PAGES_OF_MOTO = ("/moto-api", "/favicon.ico", "/latest/")
_TARGET = "x-amz-target"


def service_of(headers: Mapping[str, str]) -> str:
    """The service that a request is signed for; "" where that cannot be seen."""
    found = _SIGNED_FOR.fullmatch(headers.get("authorization", ""))
    return found[1] if found else ""


def call_of(request: Request, form: Mapping[str, list[str]]) -> str:
    """`service:Action` as a policy writes it, or `service:METHOD` for a service without actions; ""
    for a request that is neither. `form` has the fields of the body."""
    service, actions = service_of(request.headers), form.get("Action", [])
    target = request.headers.get(_TARGET, "")
    if not service or len(actions) + bool(target) > 1:
        return ""
    if unquote(request.path).startswith(_PAGES_OF_MOTO):
        return ""
    if not actions and not target:
        return f"{service}:{request.method}"
    if (request.method, request.path, request.query) != ("POST", "/", ""):
        return ""
    return f"{service}:{actions[0] if actions else target.rpartition('.')[2]}"


def is_among(call: str, calls: Collection[str]) -> bool:
    """Whether a call is allowed, by itself or with all of its service (`service:*`)."""
    service = call.partition(":")[0]
    return bool(call) and (call in calls or f"{service}:*" in calls)


def offers(service: str, calls: Collection[str]) -> bool:
    """Whether any call of that service is allowed."""
    return bool(service) and any(call.partition(":")[0] == service for call in calls)
