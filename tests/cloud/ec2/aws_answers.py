"""Answers of AWS in place of the mock's, for one call of one client: real clients parse them."""

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

from botocore.awsrequest import AWSResponse


class _Raw(BytesIO):
    """A body as urllib3 hands it over."""

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        while chunk := self.read(4096):
            yield chunk


def answer(body: str, *, status: int = 200) -> AWSResponse:
    """One HTTP answer."""
    return AWSResponse("http://mock", status, {}, _Raw(body.encode()))


def ec2_error(code: str, *, status: int = 400) -> AWSResponse:
    """An error of the EC2 API."""
    return answer(
        f"<Response><Errors><Error><Code>{code}</Code><Message>said so</Message></Error></Errors>"
        "<RequestID>r</RequestID></Response>",
        status=status,
    )


def json_error(code: str) -> AWSResponse:
    """An error of a service that speaks JSON."""
    return answer(json.dumps({"__type": code, "message": "said so"}), status=400)


def quota(vcpus: float) -> AWSResponse:
    """What GetServiceQuota says."""
    return answer(json.dumps({"Quota": {"ServiceCode": "ec2", "Value": vcpus}}))


def instead(client: Any, action: str, give: Callable[[], AWSResponse | None]) -> list[str]:
    """Have `give` answer the calls of an action; where it gives None the mock is asked. The list
    that comes back grows by one for each call."""
    calls: list[str] = []

    def before_send(request: Any, **_: object) -> AWSResponse | None:
        calls.append(str(request.url))
        return give()

    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"before-send.{service}.{action}", before_send)
    return calls
