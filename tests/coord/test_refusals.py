"""Every refusal of a store has one named outcome: at a start it refuses the start, in the middle of
a run it is an outage, which passes, and nothing is lost by it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from bamboo.coord.driver import Driver, create_run
from bamboo.coord.open import check_store, look_at_store, open_store
from bamboo.coord.redis_store import RedisStore
from bamboo.coord.refusals import REFUSALS, refusal_of
from bamboo.coord.replay import verify_decisions
from bamboo.errors import StoreNotReached, StoreRefused, StoreRefuses, StoreUnavailable
from bamboo.ids import NodeId, RunId, run_id
from bamboo.ports import Entry
from testbed.store_server import StoreServer, start_store
from tests.coord import refuser
from tests.coord.refuser import Sayer, Way
from tests.core.build import POLICY, forming, joined

RUN = run_id("r1")
SECONDS = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One refusal, and how a real server comes to it."""

    way: Way
    says: str
    """What is said of it, and the remedy."""
    reads: bool = True
    """Whether what is there can be read meanwhile."""


KINDS = {
    "READONLY": Kind(way=refuser.replica, says=r"is a replica .*; name its primary"),
    "OOM": Kind(way=refuser.setting(maxmemory=1), says=r"no memory left .*; raise its maxmemory"),
    "BUSY": Kind(way=refuser.busy, says=r"busy with .*; end that \(SCRIPT KILL\)", reads=False),
    "MISCONF": Kind(way=refuser.no_disk, says=r"to its disk .*; see its log, and make room"),
    "MASTERDOWN": Kind(
        way=refuser.silent_replica,
        says=r"(does not reach its primary|is a replica) .*; name (its|the) primary",
        reads=False,
    ),
    "NOREPLICAS": Kind(
        way=refuser.setting(min_replicas_to_write=1),
        says=r"fewer replicas .*; start its replicas again",
    ),
    "NOPERM": Kind(
        way=refuser.without_right, says=r"does not let this user .*; allow its user this: .*\+hset"
    ),
    "WRONGPASS": Kind(
        way=refuser.other_password,
        says=r"refuses the login: .*; check user and password",
        reads=False,
    ),
}
LINES = {
    "LOADING": ("LOADING Valkey is loading the dataset in memory", "not ready yet.*; wait until"),
    "MOVED": ("MOVED 866 127.0.0.1:7001", "is a cluster.*; name a server"),
    "CLUSTERDOWN": ("CLUSTERDOWN Hash slot not served", "is a cluster.*; name a server"),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    store = start_store(tmp_path)
    yield store
    store.stop()


@pytest.fixture
def admin(server: StoreServer) -> Iterator[Any]:
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    client.execute_command("ACL", "SETUSER", "run", "on", ">of-the-run", "~*", "&*", "+@all")
    with client:
        yield client


@pytest.fixture
def url(server: StoreServer, admin: Any) -> str:
    return server.url.replace("unix://", "unix://run:of-the-run@")


@pytest.mark.parametrize("name", KINDS)
def test_at_a_start_it_refuses_the_start_by_name(
    name: str, server: StoreServer, admin: Any, url: str
) -> None:
    kind = KINDS[name]
    check_store(url, run=RUN)
    with kind.way(server, admin):
        for check in (lambda: check_store(url, run=RUN), lambda: look_at_store(url)):
            _is_refused(check, kind.says)
    assert admin.keys("*") == []


@pytest.mark.parametrize("name", KINDS)
def test_in_the_middle_it_is_an_outage_that_passes(
    name: str, server: StoreServer, admin: Any, url: str
) -> None:
    kind, store = KINDS[name], open_store(url, RUN, deadline_s=2.0)
    create_run(store, state=forming(), policy=POLICY, documents={"job": "{}"}, at_s=0.0)
    driver = Driver(store, POLICY, "launcher")
    driver.append(joined("n0.1"))
    store.beat(NodeId("n0.1"), "{}")
    with kind.way(server, admin):
        writes: list[Callable[[], Any]] = [
            lambda: driver.append(joined("n1.1"), deadline_s=0.0),
            lambda: store.beat(NodeId("n0.1"), "{}"),
            lambda: store.append("metrics", "{}"),
            lambda: RedisStore(url, RunId("r2"), deadline_s=2.0).create(
                state="s", entry="e", documents={"job": "{}"}
            ),
        ]
        for write in writes:
            with pytest.raises(StoreRefuses, match=kind.says):
                write()
        if kind.reads:
            assert store.read().version == 1
            assert NodeId("n0.1") in store.leases()[1]
            assert len(store.entries(after_version=-1, timeout_s=0.0)) == 2
    if name == "MISCONF":
        return  # its folder is gone for good
    # Who waited says it now, once; nothing of what was refused is there.
    assert driver.append(joined("n1.1")).version == 2
    store.beat(NodeId("n0.1"), "{}")
    assert store.append("metrics", "{}")
    assert len(store.records("metrics", after_id="0", timeout_s=0.0)) == 1
    assert verify_decisions(store).equal
    assert {key.split(":")[1] for key in admin.keys("*")} == {RUN}
    store.close()


@pytest.mark.parametrize("name", LINES)
def test_what_a_server_says_that_no_test_can_make_say_it(
    name: str, server: StoreServer, admin: Any
) -> None:
    (line, says), sayer = LINES[name], Sayer(str(server.child.socket_path))
    try:
        url = f"redis://run:of-the-run@127.0.0.1:{sayer.port}/0"
        check_store(url, run=RUN)
        store = open_store(url, RUN, deadline_s=2.0)
        create_run(store, state=forming(), policy=POLICY, documents={}, at_s=0.0)
        driver = Driver(store, POLICY, "launcher")
        sayer.line = line
        for check in (lambda: check_store(url, run=RUN), lambda: open_store(url, RUN)):
            _is_refused(check, says)
        for call in (store.read, store.leases, lambda: store.append("metrics", "{}")):
            with pytest.raises(StoreRefuses, match=says):
                call()
        sayer.line = ""
        assert driver.append(joined("n0.1")).version == 1
        store.close()
    finally:
        sayer.close()


def test_too_many_clients_refuse_who_comes_and_nobody_who_is_there(
    server: StoreServer, admin: Any, url: str
) -> None:
    store = open_store(url, RUN, deadline_s=2.0)
    says = "as many clients as it may have: max number of clients reached; raise its maxclients"
    here = int(admin.info("clients")["connected_clients"])
    with refuser.setting(maxclients=here)(server, admin):
        _is_refused(lambda: check_store(url, run=RUN), says)
        with pytest.raises(StoreNotReached, match=says):  # who comes to a run asks again
            open_store(url, RUN)
        assert store.create(state="s", entry="e", documents={})
    open_store(url, RUN).close()
    store.close()


@pytest.mark.parametrize("left_bytes", [0, 100_000])
def test_a_store_without_room_for_a_run_is_refused_at_the_start(
    left_bytes: int, server: StoreServer, admin: Any, url: str
) -> None:
    """It would take what makes the run, and nothing after."""
    used = int(admin.info("memory")["used_memory"])
    with refuser.setting(maxmemory=used + 300_000 + left_bytes)(server, admin):
        _is_refused(lambda: check_store(url, run=RUN), "no memory left.*; raise its maxmemory")
        assert admin.keys("*") == []


def test_a_run_without_room_is_not_made_in_part(server: StoreServer, admin: Any, url: str) -> None:
    store = open_store(url, RUN)
    with refuser.setting(maxmemory=1)(server, admin):
        with pytest.raises(StoreRefuses, match="no memory left"):
            store.create(state="s", entry="e", documents={"job": "{}"})
        with pytest.raises(StoreRefuses, match="no memory left"):
            store.offer(version=1, offer="o", lease_s=1.0)
        with pytest.raises(StoreRefuses, match="no memory left"):
            store.refill(state="s", entries=[Entry(version=1, body="e")], documents={})
    assert admin.keys("*") == []
    store.close()


def test_a_run_s_own_user_is_tried_out_where_it_may_write(server: StoreServer, admin: Any) -> None:
    words = ("resetchannels", "~bamboo:mine:*", "+@all")
    admin.execute_command("ACL", "SETUSER", "bamboo-mine", "on", ">pw", *words)
    url = server.url.replace("unix://", "unix://bamboo-mine:pw@")
    assert look_at_store(url).software
    _is_refused(lambda: check_store(url, run=run_id("other")), "does not let this user")


@pytest.mark.parametrize(
    ("said", "name"),
    [
        # As Redis 6.2 has it, where a script met it.
        (
            "Error running script (call to f_6b1): @user_script:4: @user_script: 4: "
            "-OOM command not allowed when used memory > 'maxmemory'.",
            "OOM",
        ),
        (
            "Error running script: -READONLY You can't write against a read only replica.",
            "READONLY",
        ),
        ("The user executing the script can't run this command or subcommand", "NOPERM"),
        ("-MISCONF Redis is configured to save RDB snapshots, but it's unable to", "MISCONF"),
        ("MISCONF Errors writing to the AOF file: No space left on device", "MISCONF"),
        ("CROSSSLOT Keys in request don't hash to the same slot", "CLUSTER"),
        ("-DENIED Redis is running in protected mode because", "DENIED"),
        ("NOAUTH Authentication required.", "WRONGPASS"),
        ("HELLO must be called with the client already authenticated", "WRONGPASS"),
        ("Timeout reading from socket", None),
        ("Connection closed by server.", None),
        ("unknown command 'EVALSHA'", None),
    ],
)
def test_it_is_known_by_what_is_said_too(said: str, name: str | None) -> None:
    found = refusal_of(redis.ResponseError(said), run=RUN)
    assert (None if found is None else found.name) == name


def test_each_refusal_is_met_here() -> None:
    met = {*KINDS, "LOADING", "CLUSTER", "MAXCLIENTS", "DENIED"}
    assert {refusal.name for refusal, _, _ in REFUSALS} == met


def _is_refused(check: Callable[[], Any], says: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(StoreRefused, match=says) as caught:
        check()
    assert time.monotonic() - began_s < SECONDS
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert "of-the-run" not in str(caught.value)


def test_an_error_that_is_none_of_these_is_an_outage_without_a_name(server: StoreServer) -> None:
    store = open_store(server.url, RUN, deadline_s=2.0)
    server.stop()
    with pytest.raises(StoreUnavailable, match="does not answer") as caught:
        store.read()
    assert not isinstance(caught.value, StoreRefuses)
    store.close()
