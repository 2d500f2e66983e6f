"""Answers that the mock gives in place of moto, as text: errors, quotas, spot prices."""

import json
import uuid
from collections.abc import Mapping
from xml.sax.saxutils import escape

from cloud.local.faults import Market
from cloud.local.http_server import Answer

XML_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


def refusal(code: str, message: str, *, status: str = "") -> Answer:
    """An error of the EC2 API."""
    # Lack of capacity is the cloud's fault, hence a 5xx; other refusals are the caller's.
    status = status or ("500 Refused" if code.startswith("Insufficient") else "400 Refused")
    body = (
        f"<Response><Errors><Error><Code>{escape(code)}</Code><Message>{escape(message)}"
        f"</Message></Error></Errors><RequestID>{uuid.uuid4()}</RequestID></Response>"
    )
    return Answer(status=status, headers=(("Content-Type", "text/xml"),), body=body.encode())


def forbidden(code: str, message: str) -> Answer:
    """The refusal of a caller for which nothing is done."""
    return refusal(code, message, status="403 Forbidden")


def quota(quotas: Mapping[str, float], body: bytes) -> Answer:
    """The answer of GetServiceQuota; 0 for a code that is not listed."""
    asked = json.loads(body)
    value = quotas.get(asked["QuotaCode"], 0.0)
    text = json.dumps({"Quota": {**asked, "Unit": "None", "Value": value}})
    headers = (("Content-Type", "application/x-amz-json-1.1"),)
    return Answer(status="200 OK", headers=headers, body=text.encode())


def price_history(market: Market, form: Mapping[str, str]) -> Answer:
    """A page of DescribeSpotPriceHistory."""
    types = {value for key, value in form.items() if key.startswith("InstanceType.")}
    zone = form.get("AvailabilityZone")
    pools = [
        (kind, place, usd)
        for kind, place, usd in market.pools()
        if (not types or kind in types) and zone in (None, place)
    ]
    first = int(form.get("NextToken") or 0)
    stop = first + int(form.get("MaxResults") or len(pools))
    token = str(stop) if stop < len(pools) else ""
    items = "".join(
        f"<item><instanceType>{escape(kind)}</instanceType><productDescription>Linux/UNIX"
        f"</productDescription><spotPrice>{usd:.6f}</spotPrice>"
        f"<timestamp>{escape(form.get('EndTime', '2026-01-01T00:00:00Z'))}</timestamp>"
        f"<availabilityZone>{escape(place)}</availabilityZone></item>"
        for kind, place, usd in pools[first:stop]
    )
    body = (
        f'<DescribeSpotPriceHistoryResponse xmlns="{XML_NAMESPACE}"><requestId>{uuid.uuid4()}'
        f"</requestId><spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken>{token}</nextToken>"
        "</DescribeSpotPriceHistoryResponse>"
    )
    return Answer(status="200 OK", headers=(("Content-Type", "text/xml"),), body=body.encode())
