"""What a stranger on this machine gets from the mock of AWS of somebody's local run.

`.venv/bin/python -m tests.security.local_cloud http://127.0.0.1:PORT` tries what such a server
should never do for who has no credentials of the run, and says what got through; its exit status is
1 if anything did, 2 if nobody listens there. The address of a run that goes on is `endpoint_url` in
its endpoint.json. An attack that gets through does what it says: do not point it at a run you need.
"""

import argparse
import http.client
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from urllib.parse import urlencode, urlsplit

ANSWER_S = 5.0
SLOW_S = 12.0
"""So long a request may drip before its sender is hung up on."""
HUGE_BYTES = 64 << 20
IDLE = 300
_INSTANCES = {
    "Action": "RunInstances",
    "Version": "2016-11-15",
    "ImageId": "ami-12345678",
    "MinCount": "60",
    "MaxCount": "60",
}
_FORM = "application/x-www-form-urlencoded"


class Mock:
    """The server that is attacked."""

    def __init__(self, url: str, *, slow_s: float = SLOW_S) -> None:
        place = urlsplit(url)
        self.host, self.port = place.hostname or "", place.port or 80
        self.slow_s = slow_s

    def ask(
        self, method: str, path: str, *, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str]]:
        """Status and headers of one answer; 0 where there is none."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_S)
        try:
            connection.request(method, path, body=body, headers=dict(headers or {}))
            answer = connection.getresponse()
            answer.read()
            return answer.status, dict(answer.getheaders())
        except (OSError, http.client.HTTPException):
            return 0, {}
        finally:
            connection.close()

    def call(self, service: str, form: Mapping[str, str], **more: str) -> int:
        """The status of a call with made-up credentials."""
        headers = {"Authorization": _scope(service), "Content-Type": _FORM, **more}
        return self.ask("POST", "/", body=urlencode(form).encode(), headers=headers)[0]

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=ANSWER_S)


def many_instances(mock: Mock) -> str:
    """Sixty, in one call."""
    return "60 instances were started" if _taken(mock.call("ec2", _INSTANCES)) else ""


def a_look_without_credentials(mock: Mock) -> str:
    """What runs there, asked without a word of who asks."""
    form = urlencode({"Action": "DescribeInstances", "Version": "2016-11-15"}).encode()
    status, _ = mock.ask("POST", "/", body=form, headers={"Content-Type": _FORM})
    return "its instances were told to nobody in particular" if _taken(status) else ""


def outbound_posts(mock: Mock) -> str:
    """A topic that posts to whoever subscribes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.5)
        topic = "arn:aws:sns:us-east-1:123456789012:stranger"
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        version = {"Version": "2010-03-31"}
        subscribe = {"TopicArn": topic, "Protocol": "http", "Endpoint": url}
        asked = [
            {"Action": "CreateTopic", "Name": "stranger"},
            {"Action": "Subscribe", **subscribe},
            {"Action": "Publish", "TopicArn": topic, "Message": "hello"},
        ]
        taken = [call["Action"] for call in asked if _taken(mock.call("sns", {**call, **version}))]
        with suppress(TimeoutError):
            listener.accept()[0].close()
            return "it posted to an address that a stranger gave"
    return f"SNS answers {', '.join(taken)}" if taken else ""


def code_of_others(mock: Mock) -> str:
    """A function of Lambda, which moto runs in Docker."""
    headers = {"Authorization": _scope("lambda"), "Content-Type": "application/json"}
    status, _ = mock.ask("GET", "/2015-03-31/functions/", headers=headers)
    return "Lambda answers" if _taken(status) else ""


def other_services(mock: Mock) -> str:
    """What no run asks for."""
    asked = {
        "iam": {"Action": "ListUsers", "Version": "2010-05-08"},
        "sts": {"Action": "GetCallerIdentity", "Version": "2011-06-15"},
        "sqs": {"Action": "ListQueues", "Version": "2012-11-05"},
    }
    taken = [service for service, form in asked.items() if _taken(mock.call(service, form))]
    listed, _ = mock.ask("GET", "/", headers={"Authorization": _scope("s3")})
    taken += ["s3"] if _taken(listed) else []
    return f"these services answer: {', '.join(taken)}" if taken else ""


def a_page_of_another_origin(mock: Mock) -> str:
    """A web page that the user has open."""
    origin = {"Origin": "http://attacker.example"}
    for method in ("OPTIONS", "GET"):
        status, headers = mock.ask(method, "/", headers=origin)
        allowed = {name.lower() for name in headers}
        if _taken(status) or "access-control-allow-origin" in allowed:
            return f"{method} is answered with {status} to a page of any origin"
    return ""


def a_name_that_was_rebound(mock: Mock) -> str:
    """A page whose own name is made to lead here: the browser sees one origin."""
    form = {"Action": "DescribeInstances", "Version": "2016-11-15"}
    status = mock.call("ec2", form, Host="attacker.example")
    return "it answers under a name that is not its own" if _taken(status) else ""


def metadata(mock: Mock) -> str:
    """Who the instances are, and their credentials."""
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    for prefix in ("", "/imds", "/imds/i-0123456789abcdef0"):
        if _taken(mock.ask("PUT", f"{prefix}/latest/api/token", headers=ttl)[0]):
            return f"a token of the metadata service at {prefix or '/'}"
        path = f"{prefix}/latest/meta-data/iam/security-credentials/"
        if _taken(mock.ask("GET", path)[0]):
            return f"role credentials at {prefix or '/'}"
    return ""


def the_library_behind_it(mock: Mock) -> str:
    """Pages of moto itself, which show and forget all that there is."""
    for method, path in (("GET", "/moto-api/data.json"), ("POST", "/moto-api/reset")):
        if _taken(mock.ask(method, path)[0]):
            return f"{method} {path} is answered"
    return ""


def a_huge_body(mock: Mock) -> str:
    """More than anybody reads, for a call that is refused."""
    piece, sent = bytes(1 << 20), 0
    with mock.connect() as line, suppress(OSError):
        line.sendall(
            f"POST / HTTP/1.1\r\nHost: {mock.host}:{mock.port}\r\n"
            f"Authorization: {_scope('ec2')}\r\nContent-Length: {1 << 40}\r\n\r\n".encode()
        )
        while sent < HUGE_BYTES:
            line.sendall(piece)
            sent += len(piece)
    return f"it took {sent >> 20} MiB of a body" if sent >= HUGE_BYTES else ""


def a_huge_head(mock: Mock) -> str:
    """Headers without an end: more than the kernel keeps for who does not read."""
    sent = 0
    with mock.connect() as line, suppress(OSError):
        line.sendall(b"GET / HTTP/1.1\r\nX: ")
        while sent < HUGE_BYTES:
            line.sendall(bytes(1 << 16))
            sent += 1 << 16
    return f"it took {sent >> 20} MiB of a head" if sent >= HUGE_BYTES else ""


def a_slow_request(mock: Mock) -> str:
    """A byte now and then."""
    end_s = time.monotonic() + mock.slow_s
    with mock.connect() as line, suppress(OSError):
        line.sendall(b"GET / HTTP/1.1\r\nX: ")
        line.settimeout(mock.slow_s / 40)
        while time.monotonic() < end_s:
            line.sendall(b"x")
            with suppress(TimeoutError):
                if not line.recv(1):
                    return ""
        return f"a request dripped for {mock.slow_s:g} s, and nobody hung up"
    return ""


def many_connections(mock: Mock) -> str:
    """Which say nothing; the next caller must still be heard, and most of them be gone."""
    with ExitStack() as held:
        lines = []
        for _ in range(IDLE):
            try:
                lines.append(held.enter_context(mock.connect()))
            except OSError:
                break
        status, _ = mock.ask("GET", "/imds/")
        gone = sum(1 for line in lines if _is_gone(line))
        if not status:
            return f"nobody is heard beside {len(lines)} idle connections"
        return "" if gone else f"{len(lines)} idle connections were kept, each in a thread"


def _is_gone(line: socket.socket) -> bool:
    line.settimeout(0.0)
    try:
        return not line.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _scope(service: str) -> str:
    return (
        f"AWS4-HMAC-SHA256 Credential=stranger/20260101/us-east-1/{service}/aws4_request, "
        "SignedHeaders=host, Signature=0"
    )


def _taken(status: int) -> bool:
    return 200 <= status < 400


ATTACKS: Sequence[Callable[[Mock], str]] = (
    many_instances,
    a_look_without_credentials,
    outbound_posts,
    code_of_others,
    other_services,
    a_page_of_another_origin,
    a_name_that_was_rebound,
    metadata,
    a_huge_body,
    a_huge_head,
    a_slow_request,
    many_connections,
    the_library_behind_it,
)


def through(mock: Mock) -> dict[str, str]:
    """Attack -> what it came to, of those that got through."""
    tried = {attack.__name__.replace("_", " "): attack(mock) for attack in ATTACKS}
    return {name: what for name, what in tried.items() if what}


def main(arguments: Sequence[str]) -> int:
    """The command; see the top of the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.local_cloud")
    parser.add_argument("url", help="endpoint_url in runs/RUN/endpoint.json")
    asked = parser.parse_args(arguments)
    mock = Mock(asked.url)
    try:
        mock.connect().close()
    except OSError as error:
        parser.error(f"nothing was tried: {asked.url}: {error.strerror or error}")
    found = through(mock)
    lines = [f"{name}: {what}" for name, what in found.items()]
    sys.stdout.write("\n".join(lines or ["nothing got through"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
