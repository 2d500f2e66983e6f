"""A store over TLS with a user per run: what the user may not do, and what each refusal says."""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from bamboo.coord.acl import user_name
from bamboo.coord.open import check_store, look_at_store, open_store
from bamboo.errors import StoreRefused, StoreUnavailable
from bamboo.ids import RunId, run_id
from tests.tls_store import TlsStore, make_certificates, start_tls_store

RUN, OTHER = run_id("calm-fox"), run_id("other")
PASSWORD = secrets.token_hex(32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsStore]:
    users = [(RUN, PASSWORD), (OTHER, secrets.token_hex(32))]
    store = start_tls_store(tmp_path_factory.mktemp("redis"), users=users)
    yield store
    store.stop()


@pytest.fixture
def url(server: TlsStore) -> str:
    return server.with_authority(server.url(RUN, PASSWORD))


@pytest.fixture
def client(url: str) -> Iterator["redis.Redis[str]"]:
    with redis.Redis.from_url(url, decode_responses=True, protocol=2) as one:
        yield one


def test_the_users_of_the_file_lead_their_runs(server: TlsStore, url: str) -> None:
    check_store(url, run=RUN)
    store = open_store(url, RUN)
    try:
        assert store.create(state="s", entry="e", documents={"job": "{}"})
        assert store.document("job") == "{}"
    finally:
        store.close()


def test_the_user_of_a_run_may_ask_what_the_store_is(url: str) -> None:
    seen = look_at_store(url)
    assert seen.software in ("redis", "valkey")
    assert int(seen.version.partition(".")[0]) >= 6
    assert abs(seen.now_s - time.time()) < 60


FORBIDDEN = [
    "FLUSHALL",
    "FLUSHDB",
    "CONFIG GET *",
    "CONFIG SET dir /",
    "KEYS *",
    "SCAN 0",
    "RANDOMKEY",
    "SCRIPT FLUSH",
    "SCRIPT KILL",
    "DEBUG SLEEP 0",
    "ACL LIST",
    "ACL SETUSER bamboo-calm-fox allkeys",
    "CLIENT LIST",
    "CLIENT KILL ID 1",
    "MONITOR",
    "INFO",
    "SHUTDOWN NOSAVE",
    "REPLICAOF localhost 1",
    "MODULE LIST",
    "SUBSCRIBE x",
    "PUBLISH x y",
    "EVAL return(1) 0",
    "HGET bamboo:other:state version",
    "HGET bamboo:calm-foxes:state version",
    "HGETALL elsewhere",
    "DEL bamboo:other:state",
    "XADD bamboo:other:log * body x",
    "XREAD STREAMS bamboo:calm-fox:log bamboo:other:log 0 0",
    "GET bamboo:calm-fox:state",
    "RENAME bamboo:calm-fox:state bamboo:other:state",
    "DUMP bamboo:calm-fox:state",
]


@pytest.mark.parametrize("command", FORBIDDEN)
def test_the_user_may_not(client: "redis.Redis[str]", command: str) -> None:
    with pytest.raises(redis.ResponseError, match=r"no permissions|DEBUG command not allowed"):
        client.execute_command(*command.split())


@pytest.mark.parametrize("call", ["redis.call('FLUSHALL')", "redis.call('DEL', 'bamboo:other:s')"])
def test_a_script_may_do_no_more_than_its_user(client: "redis.Redis[str]", call: str) -> None:
    with pytest.raises(redis.ResponseError, match=r"can't (run|access)"):
        client.register_script(f"return {call}")()


def test_nobody_comes_in_without_a_login(server: TlsStore, url: str) -> None:
    for wrong in (
        url.replace(PASSWORD, "wrong"),
        url.replace(f"{user_name(RUN)}:{PASSWORD}@", ""),
        url.replace(user_name(RUN), user_name(OTHER)),
    ):
        with pytest.raises(StoreRefused, match=r"refuses the login: .*; check user and pass") as e:
            check_store(wrong)
        _is_one_line_without_secrets(e.value)


def test_a_login_of_another_run_is_told_what_it_lacks(url: str) -> None:
    with pytest.raises(StoreRefused, match=r"does not let this user .*~bamboo:other:\* \+p") as e:
        check_store(url, run=OTHER)
    _is_one_line_without_secrets(e.value)


def test_what_goes_wrong_with_tls_is_one_line_each(server: TlsStore) -> None:
    bare = server.url(RUN, PASSWORD)
    with socket.create_server(("127.0.0.1", 0)) as plain:
        port = plain.getsockname()[1]
        threading.Thread(target=_answer_in_the_clear, args=(plain,), daemon=True).start()
        cases = [
            (bare, r"nobody trusted here vouches for: .*; name the file of .*BAMBOO_REDIS_CA"),
            (bare.replace("rediss", "redis"), r"cannot be reached: .*where it speaks TLS.*rediss"),
            (bare.replace(str(server.port), str(port)), "does not speak TLS on this port"),
        ]
        for url, says in cases:
            with pytest.raises(StoreRefused, match=says) as caught:
                check_store(url)
            _is_one_line_without_secrets(caught.value)


def test_a_certificate_of_another_host_is_refused(tmp_path: Path) -> None:
    store = start_tls_store(tmp_path / "s", users=[(RUN, PASSWORD)])
    try:
        make_certificates(store.folder, host="store.test")
        with store.admin() as admin:
            admin.config_set("tls-cert-file", str(store.folder / "server.pem"))
        url = store.with_authority(store.url(RUN, PASSWORD))
        with pytest.raises(StoreRefused, match=r"of another host: .*; use the host") as e:
            check_store(url)
        _is_one_line_without_secrets(e.value)
    finally:
        store.stop()


def test_a_permission_that_is_taken_away_is_an_outage_that_says_so(
    server: TlsStore,
) -> None:
    run = run_id("revoked")
    url = server.with_authority(server.url(run, server.add_user(run)))
    store = open_store(url, run)
    try:
        assert store.create(state="s", entry="e", documents={})
        with server.admin() as admin:
            admin.execute_command("ACL", "SETUSER", user_name(run), "-hgetall")
        with pytest.raises(StoreUnavailable, match=r"hgetall"):
            store.documents()
    finally:
        store.close()


def test_nothing_but_tls_is_listened_to(server: TlsStore) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5.0) as one:
        one.sendall(b"PING\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"PONG" not in one.recv(100)


def test_two_runs_do_not_see_each_other(server: TlsStore) -> None:
    runs: list[RunId] = [run_id("left"), run_id("right")]
    stores = [
        open_store(server.with_authority(server.url(run, server.add_user(run))), run)
        for run in runs
    ]
    try:
        for store, text in zip(stores, ("l", "r"), strict=True):
            assert store.create(state=text, entry="e", documents={})
        assert [store.read().state for store in stores] == ["l", "r"]
    finally:
        for store in stores:
            store.close()


def _answer_in_the_clear(server: socket.socket) -> None:
    try:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"-ERR unknown command\r\n")
    except OSError:
        return


def _is_one_line_without_secrets(error: StoreRefused) -> None:
    assert "\n" not in str(error)
    assert PASSWORD not in str(error)
    assert error.exit_code == 2
