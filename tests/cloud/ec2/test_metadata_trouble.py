"""The metadata client against whatever may answer at that address: late, long, or somebody else."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bamboo.errors import InputError
from cloud.ec2 import imds
from cloud.ec2.imds import Imds, read_notice
from testbed.waiting import wait_until

NOW_S = 1_800_000_000.0
TOKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\ntoken"
EMPTY = b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n"


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class Scripted:
    """Answers each request by `answer(method and path)`, on connections that it keeps."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self.asked: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._stop = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(5.0)
            try:
                while head := connection.recv(4096):
                    asked = b" ".join(head.split(b" ", 2)[:2])
                    self.asked.append(asked)
                    answer = self._answer(asked)
                    connection.sendall(answer)
                    if not answer:
                        return
            except OSError:
                return

    def close(self) -> None:
        self._stop.set()
        self._server.close()


@contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[tuple[Imds, Scripted]]:
    server = Scripted(answer)
    client = Imds(server.endpoint)
    try:
        yield client, server
    finally:
        client.close()
        server.close()


def after_a_token(answer: bytes) -> Callable[[bytes], bytes]:
    return lambda asked: TOKEN if asked.startswith(b"PUT") else answer


@pytest.mark.parametrize("status", [301, 400, 403, 404, 405, 429, 500, 503])
def test_every_other_status_is_no_answer(status: int) -> None:
    with answering(after_a_token(EMPTY % status)) as (client, server):
        assert client.notice() is None
        assert client.advised() is False
        with pytest.raises(InputError, match="no metadata service answers"):
            client.identity()
        assert sum(asked.startswith(b"PUT") for asked in server.asked) == 1, "the token is kept"


def test_a_service_that_takes_no_token_is_asked_twice_and_no_more() -> None:
    with answering(after_a_token(EMPTY % 401)) as (client, server):
        assert client.notice() is None
        assert [asked[:3] for asked in server.asked] == [b"PUT", b"GET"] * 2


@pytest.mark.parametrize("token", [b"", b"a b", b"a\r\nHost: x", b"x" * 5000, b"\xff\xfe"])
def test_without_a_token_that_fits_a_header_nothing_is_asked(token: bytes) -> None:
    with answering(lambda _: ok(token)) as (client, server):
        assert client.notice() is None
        assert all(asked.startswith(b"PUT") for asked in server.asked)


def test_an_answer_without_end_is_not_read_to_it() -> None:
    sent = threading.Event()

    def flood(asked: bytes) -> bytes:
        if asked.startswith(b"PUT"):
            return TOKEN
        sent.set()
        return b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n" + b"x" * (1 << 20)

    with answering(flood) as (client, _):
        began_s = time.monotonic()
        assert client.notice() is None
        assert sent.is_set()
        assert time.monotonic() - began_s < imds.DEADLINE_S + 2.0


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n{"])
def test_an_answer_that_drips_costs_one_deadline(
    monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """Each byte comes before a timeout of its own would have ended the wait."""
    monkeypatch.setattr(imds, "DEADLINE_S", 0.5)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(head)
                try:
                    while not stop.wait(0.05):
                        connection.sendall(b"x")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        client = Imds(f"http://127.0.0.1:{server.getsockname()[1]}")
        began_s = time.monotonic()
        assert client.notice() is None
        assert time.monotonic() - began_s < 5.0
        client.close()
        stop.set()
        dripping.join(timeout=10.0)
        assert not dripping.is_alive()


@pytest.mark.parametrize(
    "name", [b"../../x", b"/etc", b"i-1\x00", b"i-1/x", b"", b"i" * 100, b"<html>", b"i 1", b"."]
)
def test_a_name_that_is_none_never_becomes_a_path(name: bytes) -> None:
    with (
        answering(after_a_token(ok(name))) as (client, _),
        pytest.raises(InputError, match=r"is no name of one|no metadata service") as caught,
    ):
        client.identity()
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "address",
    [b"store.test", b"*", b"10.0.0.4:1", b"10.0.0.256", b"::1", b"10.0.0.4 -x", b"<html>"],
)
def test_an_address_that_is_none_is_bound_by_nobody(address: bytes) -> None:
    def answer(asked: bytes) -> bytes:
        if asked.startswith(b"PUT"):
            return TOKEN
        return ok(address if b"local-ipv4" in asked else b"i-1")

    with (
        answering(answer) as (client, _),
        pytest.raises(InputError, match=r"the address .* is none") as caught,
    ):
        client.identity()
    assert str(caught.value).isprintable()


def test_an_instance_of_which_nobody_says_the_address_has_none() -> None:
    def answer(asked: bytes) -> bytes:
        if asked.startswith(b"PUT"):
            return TOKEN
        return EMPTY % 404 if b"local-ipv4" in asked else ok(b"i-1")

    with answering(answer) as (client, _):
        assert client.identity().address == ""


def test_a_connection_that_was_closed_is_opened_again() -> None:
    left = [b"", TOKEN, ok(b"i-1")]
    with answering(lambda _: left.pop(0)) as (client, _):
        assert client.get("/latest/meta-data/instance-id") == "i-1"
        assert not left


def test_an_endpoint_with_an_impossible_port_is_refused() -> None:
    for endpoint in ("http://h:99999", "http://h:x", "ftp://h", "http://"):
        with pytest.raises(InputError, match="AWS_EC2_METADATA_SERVICE_ENDPOINT"):
            Imds(endpoint)


def test_one_notice_however_it_is_written_is_one() -> None:
    texts = (
        '{"action": "terminate", "time": "2027-01-15T08:02:00Z"}',
        '{"time":"2027-01-15T08:02:00Z","action":"terminate"}',
        '\n{ "action" : "terminate",\n"time":"2027-01-15T08:02:00Z", "more": 1}\n',
    )
    notices = {read_notice(text, now_s=NOW_S) for text in texts}
    assert len(notices) == 1
    other = read_notice(texts[0].replace("08:02", "08:04"), now_s=NOW_S)
    assert other is not None
    assert other not in notices


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
@pytest.mark.parametrize(
    ("time_", "at_s"),
    [
        ("2027-01-15T08:02:00Z", 1_800_000_120.0),
        ("2001-01-01T00:00:00Z", 978_307_200.0),
        ("9999-12-31T23:59:59Z", 253_402_300_799.0),
        ("2027-01-15T10:02:00+0200", 1_800_000_120.0),
        ("soon", NOW_S),
        ("2027-13-45T08:02:00Z", NOW_S),
        (None, NOW_S),
        ([], NOW_S),
    ],
)
def test_a_time_of_the_past_or_of_nowhere_is_a_notice_all_the_same(
    action: str, time_: object, at_s: float
) -> None:
    text = json.dumps({"action": action, "time": time_})
    first, again = read_notice(text, now_s=NOW_S), read_notice(text, now_s=NOW_S + 5)
    assert first is not None
    assert again is not None
    assert first.at_s == at_s
    assert first.id == again.id


@pytest.mark.parametrize(
    "text",
    ["", "<html>hello</html>", "[]", "null", '"terminate"', "{}", "[" * 5000, "9" * 5000]
    + [json.dumps({"action": a, "time": "2027-01-15T08:02:00Z"}) for a in ("none", None, [], 1)],
)
def test_what_is_no_notice_is_none(text: str) -> None:
    assert read_notice(text, now_s=NOW_S) is None


def test_a_service_that_comes_later_is_found() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    client = Imds(f"http://127.0.0.1:{port}")
    assert client.notice() is None
    server = socket.create_server(("127.0.0.1", port))

    def serve() -> None:
        for answer in (TOKEN, ok(b'{"action": "stop", "time": "2027-01-15T08:02:00Z"}')):
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"))

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        wait_until(lambda: client.notice() is not None, what="the notice")
    finally:
        client.close()
        server.close()
        serving.join(timeout=10.0)
