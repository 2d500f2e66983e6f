"""What only a server can do to a store: refuse it, go away, come back, freeze."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from bamboo.coord.acl import user_rules
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.follow import Decision, Follower
from bamboo.coord.open import check_store, open_store
from bamboo.coord.redis_store import RedisStore, refused
from bamboo.coord.replay import verify_decisions
from bamboo.core.events import StoreRefilled
from bamboo.errors import StoreRefused, StoreUnavailable, UnreadableRecord
from bamboo.ids import NodeId, run_id
from bamboo.ports import Lease
from testbed.store_server import StoreServer, start_store
from testbed.waiting import wait_until
from tests.core.build import POLICY, forming, joined, lost

RUN = run_id("test")
PASSWORD = "open sesame"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    store = start_store(tmp_path_factory.mktemp("valkey"), password=PASSWORD)
    yield store
    store.stop()


@pytest.fixture(scope="module")
def login(server: StoreServer) -> str:
    return quote(PASSWORD)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "unix:///no/such/valkey.sock",
            r"at unix:///no/such/valkey\.sock cannot be reached: .*; start it",
        ),
        ("redis://127.0.0.1:1/0", r"at redis://127\.0\.0\.1:1/0 cannot be reached: .*; start it"),
        ("rediss://u:pw@127.0.0.1:1/0", r"at rediss://u:\*\*\*@127\.0\.0\.1:1/0 cannot be reached"),
        ("http://localhost:1", "'http://localhost:1' is no URL of a store; use unix:///"),
        ("", "'' is no URL of a store"),
        ("redis://localhost:port/0", "'redis://localhost:port/0' cannot be used: .*; correct it"),
        ("redis://[::1/0", r"'redis://\[::1/0' cannot be used: .*; correct it"),
    ],
)
def test_an_unusable_url_is_refused_in_one_line(url: str, says: str) -> None:
    for call in (lambda: check_store(url), lambda: open_store(url, RUN)):
        with pytest.raises(StoreRefused, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert "pw" not in str(caught.value)
        assert caught.value.exit_code == 2


def test_a_wrong_or_missing_login_is_refused(server: StoreServer, login: str) -> None:
    check_store(server.url, run=RUN)
    for url in (
        server.url.replace(login, "wrong"),
        server.url.replace(f":{login}@", ""),
        server.url.replace(f":{login}@", f"somebody:{login}@"),
    ):
        with pytest.raises(StoreRefused, match=r"refuses the login: .*; check user and pass"):
            check_store(url)


def test_a_login_error_of_hello_is_one_of_login() -> None:
    hello = redis.ConnectionError("HELLO must be called with the client already authenticated")
    assert "refuses the login" in str(refused("redis://h", hello, run=RUN))


def test_a_user_of_another_run_is_refused_by_the_try_out(server: StoreServer) -> None:
    admin = redis.Redis.from_url(server.url)
    admin.execute_command(
        *(["ACL", "SETUSER", "guest", "on", ">pw", "resetchannels", "~bamboo:other:*", "+@all"]),
    )
    admin.close()
    url = server.url.replace(f":{quote(PASSWORD)}@", "guest:pw@")
    check_store(url)
    check_store(url, run=run_id("other"))
    with pytest.raises(StoreRefused, match=r"does not let this user.*; allow its user"):
        check_store(url, run=RUN)


def test_the_try_out_leaves_nothing(server: StoreServer) -> None:
    check_store(server.url, run=run_id("leaves-nothing"))
    client = redis.Redis.from_url(server.url)
    assert client.keys("bamboo:leaves-nothing:*") == []
    client.close()


def test_what_has_another_form_is_no_reason_to_end(server: StoreServer) -> None:
    """As a run's own user may write it, who is no member: entries, leases, bytes of any kind."""
    store = RedisStore(server.url, run_id("odd"), deadline_s=5.0)
    assert create_run(store, state=forming(), policy=POLICY, documents={}, at_s=0.0)
    store.append("metrics", "{}")
    store.beat(NodeId("a.0"), "{}")
    with redis.Redis.from_url(server.url) as stranger:
        stranger.xadd("bamboo:odd:s:metrics", {"else": "x"})
        stranger.xadd("bamboo:odd:s:metrics", {"body": b"\xff\x00"})
        for node, beat in {
            "b.0": b"",
            "c.0": b"soon {}",
            "d.0": b"nan {}",
            "e.0": b"\xfe 1",
        }.items():
            stranger.hset("bamboo:odd:leases", node, beat)
        records = [text for _, text in store.records("metrics", after_id="0-0", timeout_s=0.0)]
        assert records == ["{}", "", "\\xff\0"]
        now_s, leases = store.leases()
        assert now_s - 60 < leases.pop(NodeId("a.0")).beaten_at_s <= now_s
        assert sorted(leases) == ["b.0", "c.0", "d.0", "e.0"]
        assert set(leases.values()) == {Lease(payload="", beaten_at_s=0.0)}
        stranger.hset("bamboo:odd:state", "version", "many")
        with pytest.raises(UnreadableRecord, match="version of the run in its store is 'many'"):
            store.read()
    store.remove()
    store.close()


@pytest.mark.parametrize(
    ("at", "fields"), [("0-2", {"body": "x"}), ("0-7", {}), ("7-1", {"body": "{"}), ("*", {})]
)
def test_what_is_no_decision_is_passed_over_in_the_log(
    server: StoreServer, at: str, fields: dict[str, str]
) -> None:
    """Its reader ended, and where it stood behind the end, the next state had no entry."""
    hasty = replace(POLICY, suspect_s=0.1, gone_s=0.3)
    store = RedisStore(server.url, run_id("odd-log"), deadline_s=5.0)
    assert create_run(store, state=forming(), policy=hasty, documents={}, at_s=0.0)
    driver, member = Driver(store, hasty, "a"), Follower(Driver(store, hasty, "b"))
    assert member.poll(store, timeout_s=0.0) == []
    with redis.Redis.from_url(server.url) as stranger:
        stranger.xadd("bamboo:odd-log:log", {"else": "x", **fields}, id=at)
        for _ in range(2):
            (first,) = store.entries(after_version=-1, timeout_s=0.1)
            assert first.version == 0
            assert list(store.entries(after_version=0, timeout_s=0.1)) == []
            assert member.poll(store, timeout_s=0.1) == []
    appending = threading.Thread(target=driver.append, args=(joined("a.0"),))
    appending.start()
    try:
        wait_until(
            lambda: bool(_polled(member, store)), what="the decision behind it", timeout_s=30
        )
    finally:
        appending.join(30)
    assert verify_decisions(store).equal
    assert member.state == driver.state()
    assert not member.overtaken
    store.remove()
    store.close()


def _polled(member: Follower, store: RedisStore) -> list[Decision]:
    try:
        return [
            decision
            for decision in member.poll(store, timeout_s=0.0)
            if not isinstance(decision.event, StoreRefilled)
        ]
    except StoreUnavailable:
        return []


def test_an_offer_without_a_number_is_none(server: StoreServer) -> None:
    store = RedisStore(server.url, run_id("offers"), deadline_s=5.0)
    with redis.Redis.from_url(server.url) as stranger:
        stranger.hset("bamboo:offers:offers", "version", "many")
        stranger.hset("bamboo:offers:offers", "began_s", "soon")
        assert store.offer(version=-1, offer="", lease_s=1.0).version == -1
        assert store.offer(version=3, offer="known", lease_s=0.0).best == "known"
    store.remove()
    store.close()


def test_a_commit_that_fails_leaves_the_run_as_it_was(server: StoreServer) -> None:
    """State and log are one: the next state stood there without its entry."""
    store = RedisStore(server.url, run_id("half"), deadline_s=5.0)
    assert store.create(state="first", entry="begin", documents={})
    with redis.Redis.from_url(server.url) as stranger:
        stranger.delete("bamboo:half:log")
        stranger.set("bamboo:half:log", "no stream")
        with pytest.raises(StoreUnavailable):
            store.commit(expected_version=0, state="second", entry="next")
        assert (store.read().version, store.read().state) == (0, "first")
    store.remove()
    store.close()


@pytest.mark.parametrize("at", ["hset", "commit", "append", "read", "remove"])
def test_a_try_out_that_is_killed_leaves_nothing_for_ever(
    at: str, server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed: before it asks for what comes next, and it removes nothing."""
    run = run_id(f"killed-{at}")
    store = RedisStore(server.url, run, deadline_s=4.0)

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "remove", die)
    monkeypatch.setattr(store._commands if at == "hset" else store, at, die)
    with pytest.raises(KeyboardInterrupt):
        store.try_out()
    store.close()
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        keys = client.keys(f"bamboo:{run}:*")
        assert len(keys) >= 3
        assert {key: 0 < client.ttl(key) <= 300 for key in keys} == dict.fromkeys(keys, True)


def test_a_runs_user_of_old_that_may_let_nothing_expire_tries_out(server: StoreServer) -> None:
    run = run_id("of-old")
    with redis.Redis.from_url(server.url) as admin:
        words = ("ACL", "SETUSER", "old", "on", ">pw", *user_rules(run), "-expire")
        admin.execute_command(*words)
        check_store(server.url.replace(f":{quote(PASSWORD)}@", "old:pw@"), run=run)
        assert admin.keys("bamboo:of-old:*") == []


def test_a_server_that_says_nothing_is_refused_within_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started_s = time.monotonic()
        with pytest.raises(StoreRefused, match="cannot be reached: Timeout"):
            check_store(f"redis://127.0.0.1:{port}/0", deadline_s=0.6)
        assert time.monotonic() - started_s < 3.0


def test_keys_stay_below_the_run(server: StoreServer) -> None:
    run = run_id("keys")
    store = open_store(server.url, run)
    store.create(state="s", entry="e", documents={"job": "{}"})
    store.commit(expected_version=0, state="s", entry="e")
    store.beat(NodeId("a.1"), "{}")
    store.append("metrics", "{}")
    store.close()
    client = redis.Redis.from_url(server.url, decode_responses=True)
    keys = {key.removeprefix("bamboo:keys:") for key in client.keys("*keys*")}
    assert keys == {"state", "log", "documents", "leases", "s:metrics"}
    client.close()


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_what_was_committed_is_there_after_a_restart(tmp_path: Path, ending: str) -> None:
    first = start_store(tmp_path)
    store = open_store(first.url, RUN)
    assert store.create(state="s0", entry="e0", documents={"job": "{}"})
    for version in range(20):
        assert store.commit(expected_version=version, state=f"s{version + 1}", entry="e")
    store_id = store.read().store_id
    store.close()
    if ending == "kill":
        first.kill()
    else:
        first.stop()
    second = start_store(tmp_path)
    store = open_store(second.url, RUN)
    try:
        snapshot = store.read()
        assert (snapshot.version, snapshot.state, snapshot.store_id) == (20, "s20", store_id)
        assert len(store.entries(after_version=-1, timeout_s=0)) == 21
        assert store.document("job") == "{}"
        assert not store.create(state="s0", entry="e0", documents={})
    finally:
        store.close()
        second.stop()


def test_an_outage_is_survived(tmp_path: Path) -> None:
    """SIGKILL the server under a run: calls say so in time, an append waits, nothing is lost."""
    first = start_store(tmp_path)
    store = open_store(first.url, RUN, deadline_s=2.0)
    create_run(store, state=forming(), policy=POLICY, documents={}, at_s=0.0)
    driver = Driver(store, POLICY, "launcher")
    for index in range(4):
        driver.append(joined(f"n{index}.1"))
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(store.entries, after_version=4, timeout_s=30.0)
        first.kill()
        started_s = time.monotonic()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            waiting.result(timeout=10.0)
        for call in (store.read, store.leases, lambda: store.append("notes", "x")):
            with pytest.raises(StoreUnavailable, match="does not answer"):
                call()
        assert time.monotonic() - started_s < 10.0
        with pytest.raises(StoreUnavailable):
            driver.append(lost("n2.1"), deadline_s=0.1)
        appending = pool.submit(driver.append, lost("n2.1"), deadline_s=30.0)
        assert not appending.done()
        second = start_store(tmp_path)
        try:
            appended = appending.result(timeout=30.0)
            assert appended.changed
            assert (appended.version, driver.state().version) == (5, 5)
            assert [e.version for e in store.entries(after_version=4, timeout_s=5.0)] == [5]
            assert verify_decisions(store).equal
        finally:
            store.close()
            second.stop()


def test_a_frozen_server_is_noticed_in_time(tmp_path: Path) -> None:
    server = start_store(tmp_path)
    store = open_store(server.url, RUN, deadline_s=0.8)
    store.create(state="s", entry="e", documents={})
    try:
        os.kill(server.pid, signal.SIGSTOP)
        started_s = time.monotonic()
        with pytest.raises(StoreUnavailable, match="Timeout"):
            store.commit(expected_version=0, state="s1", entry="e1")
        with pytest.raises(StoreUnavailable, match="Timeout"):
            store.entries(after_version=5, timeout_s=30.0)
        assert time.monotonic() - started_s < 10.0
        os.kill(server.pid, signal.SIGCONT)
        # The commit had reached the server's socket: it may be there, and if so exactly once.
        version = store.read().version
        assert len(store.entries(after_version=-1, timeout_s=0)) == version + 1
        assert version in (0, 1)
    finally:
        os.kill(server.pid, signal.SIGCONT)
        store.close()
        server.stop()
