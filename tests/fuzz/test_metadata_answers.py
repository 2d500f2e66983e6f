"""What may come from the address of the metadata service: a notice, or none, and soon."""

import math
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bamboo.errors import InputError
from cloud.ec2 import imds
from cloud.ec2.imds import Imds, read_notice
from tests.fuzz.cases import Cases, fuzzed
from tests.fuzz.odd import ODD_TEXTS, bent_bytes, bent_json

NOTICE = '{"action": "terminate", "time": "2027-01-15T08:02:00Z"}'
ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ntoken",
    b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ntoken\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 54\r\n\r\n" + NOTICE.encode(),
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
]


@fuzzed
@given(bent_json([NOTICE]) | st.sampled_from(ODD_TEXTS))
def test_notices(cases: Cases, text: str) -> None:
    notice = cases.judge(lambda: read_notice(text, now_s=1_800_000_000.0))
    if notice is not None:
        assert math.isfinite(notice.at_s)
        assert notice.id.isalnum()


class Answering:
    """Gives each connection the next of `answers`, whatever was asked, and hangs up."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._server.accept()
            with connection:
                connection.settimeout(2.0)
                try:
                    if not connection.recv(4096).startswith((b"GET", b"PUT")):
                        return
                    connection.sendall(self.answers.pop(0) if self.answers else b"")
                except OSError:
                    continue

    def close(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as last:
            last.sendall(b"END")
        self._thread.join(timeout=10.0)
        self._server.close()


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    monkeypatch.setattr(imds, "DEADLINE_S", 1.0)
    made = Answering()
    yield made
    made.close()


@fuzzed
@given(st.lists(bent_bytes(ANSWERS) | st.sampled_from(ANSWERS), min_size=1, max_size=4))
def test_answers_as_bytes(answering: Answering, cases: Cases, answers: list[bytes]) -> None:
    client = Imds(f"http://127.0.0.1:{answering.port}")
    for ask in (client.notice, client.advised, client.identity):
        answering.answers = list(answers)
        cases.judge(ask, InputError)
    client.close()
