"""What every `ports.Store` does: one suite, run against memory, against the server that a local run
embeds, and against Debian's over TLS with a user for each run."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from bamboo.coord.driver import Driver, create_run
from bamboo.coord.memory_store import MemoryStore
from bamboo.coord.open import open_store
from bamboo.coord.replay import verify_decisions
from bamboo.core.state import Phase
from bamboo.errors import InputError, StoreUnavailable
from bamboo.ids import NodeId, RunId, run_id
from bamboo.ports import Entry, Store
from testbed.store_server import StoreServer, start_store
from tests.core.build import POLICY, forming, joined, lost
from tests.tls_store import TlsStore, start_tls_store

A, B = NodeId("a.1"), NodeId("b.1")
_numbers = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    directory: Path = tmp_path_factory.mktemp("valkey")
    store = start_store(directory, password="pass word/1")
    yield store
    store.stop()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsStore]:
    store = start_tls_store(tmp_path_factory.mktemp("redis"))
    yield store
    store.stop()


Connect = Callable[[], Store]


@pytest.fixture(params=["memory", "valkey", "redis-tls"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Gives a further handle of one and the same empty run."""
    run: RunId = run_id(f"run-{next(_numbers)}")
    if request.param == "memory":
        memory = MemoryStore(run)
        yield lambda: memory
        memory.close()
        return
    if request.param == "valkey":
        url = request.getfixturevalue("server").url
    else:
        tls: TlsStore = request.getfixturevalue("tls")
        url = tls.with_authority(tls.url(run, tls.add_user(run)))
    opened: list[Store] = []

    def handle() -> Store:
        opened.append(open_store(url, run))
        return opened[-1]

    yield handle
    for store in opened:
        store.close()


@pytest.fixture
def store(connect: Connect) -> Store:
    return connect()


@pytest.fixture
def created(store: Store) -> Store:
    assert store.create(state="s0", entry="e0", documents={"job": "{}", "data": "ü\n'\""})
    return store


def test_create_once(store: Store) -> None:
    assert store.create(state="s0", entry="e0", documents={"job": "1"})
    assert not store.create(state="other", entry="other", documents={"job": "2", "more": "3"})
    snapshot = store.read()
    assert (snapshot.version, snapshot.state) == (0, "s0")
    assert store.document("job") == "1"
    assert [(e.version, e.body) for e in store.entries(after_version=-1, timeout_s=0)] == [
        (0, "e0")
    ]
    with pytest.raises(InputError, match="no document 'more'"):
        store.document("more")


def test_what_is_not_there_is_an_input_error(store: Store) -> None:
    with pytest.raises(InputError, match=r"no run run-\d+"):
        store.read()
    with pytest.raises(InputError, match=r"no run run-\d+"):
        store.commit(expected_version=0, state="s", entry="e")
    with pytest.raises(InputError, match="run"):
        store.document("job")
    with pytest.raises(InputError, match=r"no run run-\d+"):
        store.add_document("sync:1", "")
    assert store.documents() == {}
    assert list(store.entries(after_version=-1, timeout_s=0)) == []
    assert list(store.records("metrics", after_id="0", timeout_s=0)) == []
    assert store.leases()[1] == {}


def test_documents_are_kept_as_given(created: Store, connect: Connect) -> None:
    assert created.document("data") == "ü\n'\""
    for text in ("ü\n", "another"):
        created.add_document("sync:1", text)
    assert connect().documents() == {"job": "{}", "data": "ü\n'\"", "sync:1": "ü\n"}


def test_commit_is_a_compare_and_set(created: Store) -> None:
    assert created.commit(expected_version=0, state="s1", entry="e1")
    assert not created.commit(expected_version=0, state="x", entry="x")
    assert not created.commit(expected_version=2, state="x", entry="x")
    assert created.commit(expected_version=1, state="s2", entry="e2")
    snapshot = created.read()
    assert (snapshot.version, snapshot.state) == (2, "s2")
    found = created.entries(after_version=-1, timeout_s=0)
    assert [(entry.version, entry.body) for entry in found] == [(0, "e0"), (1, "e1"), (2, "e2")]
    assert [entry.version for entry in created.entries(after_version=1, timeout_s=0)] == [2]
    assert list(created.entries(after_version=2, timeout_s=0)) == []


def test_a_commit_may_name_the_store_that_it_read(created: Store) -> None:
    here = created.store_id()
    assert here == created.read().store_id
    assert not created.commit(expected_version=0, state="x", entry="x", store_id="another")
    assert created.commit(expected_version=0, state="s1", entry="e1", store_id=here)
    assert created.read().version == 1


def test_a_store_without_the_run_takes_offers_and_keeps_the_highest(store: Store) -> None:
    assert store.store_id() == ""
    assert store.documents() == {}
    asked = store.offer(version=9, offer="", lease_s=60.0)
    assert (asked.here, asked.version, asked.best) == (False, -1, "")
    for version, highest in ((4, 4), (7, 7), (5, 7)):
        offers = store.offer(version=version, offer=f"as of {version}", lease_s=60.0)
        assert (offers.here, offers.version, offers.best) == (False, highest, "")
    over = store.offer(version=0, offer="", lease_s=0.0)
    assert over.best == "as of 7"
    assert abs(over.now_s - time.time()) < 5.0


def test_a_refilled_store_is_one_like_any_other(connect: Connect, store: Store) -> None:
    store.offer(version=7, offer="as of 7", lease_s=60.0)
    entries = [Entry(version=6, body="e6"), Entry(version=7, body="ü")]
    documents = {"job": "{}", "data": "ü\n'\""}
    assert store.refill(state="s7", entries=entries, documents=documents)
    assert not connect().refill(state="other", entries=entries, documents={})
    assert (store.read().version, store.read().state) == (7, "s7")
    assert store.store_id() != ""
    assert store.documents() == documents
    assert list(store.entries(after_version=-1, timeout_s=0)) == entries
    assert list(store.entries(after_version=6, timeout_s=0)) == entries[1:]
    assert store.offer(version=9, offer="late", lease_s=0.0).here
    assert not store.create(state="s0", entry="e0", documents={})
    assert store.commit(expected_version=7, state="s8", entry="e8")
    assert [e.version for e in store.entries(after_version=5, timeout_s=0)] == [6, 7, 8]


def test_two_digit_versions_stay_in_order(created: Store) -> None:
    for version in range(12):
        assert created.commit(expected_version=version, state="s", entry=str(version + 1))
    found = created.entries(after_version=8, timeout_s=0)
    assert [(entry.version, entry.body) for entry in found] == [
        (9, "9"),
        (10, "10"),
        (11, "11"),
        (12, "12"),
    ]


def test_store_id_stays_and_time_goes_on(created: Store) -> None:
    first = created.read()
    created.commit(expected_version=0, state="s1", entry="e1")
    second = created.read()
    assert first.store_id
    assert second.store_id == first.store_id
    assert first.now_s <= second.now_s
    assert abs(second.now_s - time.time()) < 5.0


def test_waiting_ends_without_an_entry(created: Store) -> None:
    started_s = time.monotonic()
    assert list(created.entries(after_version=0, timeout_s=0.2)) == []
    assert list(created.records("metrics", after_id="0", timeout_s=0.2)) == []
    assert 0.39 <= time.monotonic() - started_s < 5.0


def test_waiting_ends_with_the_first_entry(connect: Connect, created: Store) -> None:
    other = connect()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.entries, after_version=0, timeout_s=30.0)
        assert created.commit(expected_version=0, state="s1", entry="e1")
        assert [entry.body for entry in waiting.result(timeout=10.0)] == ["e1"]


def test_a_blocked_read_delays_no_commit(created: Store) -> None:
    """Through one and the same handle: readers wait, commits and beats do not wait for them."""
    with ThreadPoolExecutor(2) as pool:
        records = pool.submit(created.records, "late", after_id="0", timeout_s=30.0)
        entries = pool.submit(created.entries, after_version=20, timeout_s=30.0)
        for version in range(20):
            assert created.commit(expected_version=version, state="s", entry="e")
            created.beat(A, "{}")
        assert not records.done()
        assert not entries.done()
        created.append("late", "x")
        created.commit(expected_version=20, state="s", entry="last")
        assert [text for _, text in records.result(timeout=20.0)] == ["x"]
        assert [entry.body for entry in entries.result(timeout=20.0)] == ["last"]


def test_records_keep_their_order(created: Store) -> None:
    ids = [created.append("metrics", json.dumps({"step": step})) for step in range(5)]
    found = created.records("metrics", after_id="0", timeout_s=0)
    assert [at for at, _ in found] == ids
    assert [json.loads(text)["step"] for _, text in found] == [0, 1, 2, 3, 4]
    after = created.records("metrics", after_id=ids[2], timeout_s=0)
    assert [at for at, _ in after] == ids[3:]
    assert list(created.records("metrics", after_id=ids[-1], timeout_s=0)) == []
    assert list(created.records("notes", after_id="0", timeout_s=0)) == []


def test_many_records_come_in_bounded_answers(created: Store) -> None:
    for number in range(1200):
        created.append("metrics", str(number))
    seen: list[str] = []
    last_id = "0"
    while found := created.records("metrics", after_id=last_id, timeout_s=0):
        seen += [text for _, text in found]
        last_id = found[-1][0]
    assert seen == [str(number) for number in range(1200)]


def test_leases_carry_the_stores_time(connect: Connect, created: Store) -> None:
    before_s, none = created.leases()
    assert none == {}
    created.beat(A, '{"progress": 1, "note": "with spaces"}')
    connect().beat(B, "")
    created.beat(A, '{"progress": 2}')
    now_s, leases = created.leases()
    assert {node: lease.payload for node, lease in leases.items()} == {
        A: '{"progress": 2}',
        B: "",
    }
    for lease in leases.values():
        assert before_s <= lease.beaten_at_s <= now_s


def test_each_version_is_committed_exactly_once(connect: Connect, created: Store) -> None:
    """Eight writers race for every version from 1 to 25; each version has one winner."""
    versions, writers = 25, 8
    won: list[tuple[int, int]] = []
    barrier = threading.Barrier(writers)

    def write(writer: int) -> None:
        handle = connect()
        barrier.wait(timeout=10.0)
        while (version := handle.read().version) < versions:
            if handle.commit(expected_version=version, state=f"{writer}", entry=f"{writer}"):
                won.append((version + 1, writer))

    with ThreadPoolExecutor(writers) as pool:
        for future in [pool.submit(write, writer) for writer in range(writers)]:
            future.result(timeout=30.0)
    entries = created.entries(after_version=0, timeout_s=0)
    assert [entry.version for entry in entries] == list(range(1, versions + 1))
    assert sorted(won) == [(entry.version, int(entry.body)) for entry in entries]


def test_of_two_drivers_that_saw_one_loss_one_decides(connect: Connect) -> None:
    store = connect()
    assert create_run(store, state=forming(1, 4), policy=POLICY, documents={}, at_s=0.0)
    launcher = Driver(store, POLICY, "launcher")
    nodes = [f"n{index}.1" for index in range(4)]
    for node in nodes:
        assert launcher.append(joined(node)).changed
    barrier = threading.Barrier(2)

    def see(reporter: str) -> tuple[bool, str]:
        driver = Driver(connect(), POLICY, reporter)
        barrier.wait(timeout=10.0)
        appended = driver.append(lost("n2.1", reporter))
        return appended.changed, appended.reason

    with ThreadPoolExecutor(2) as pool:
        results = sorted(pool.map(see, ["n1.1", "n3.1"]))
    assert [changed for changed, _ in results] == [False, True]
    assert results[0][1] == "node n2.1 is gone already"
    state = launcher.state()
    assert (state.version, state.generation, state.phase) == (5, 2, Phase.FAILING_OVER)
    assert verify_decisions(store).equal


def test_many_drivers_join_at_once(connect: Connect) -> None:
    store = connect()
    create_run(store, state=forming(2, 6), policy=POLICY, documents={}, at_s=0.0)

    def join(index: int) -> bool:
        node = f"n{index:02}.1"
        return Driver(connect(), POLICY, node).append(joined(node)).changed

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(join, range(12)))
    state = Driver(store, POLICY, "me").state()
    assert (state.version, state.phase) == (12, Phase.RUNNING)
    report = verify_decisions(store)
    assert (report.decisions, report.first_difference) == (12, None)


def test_a_closed_store_says_so(created: Store) -> None:
    created.close()
    for call in (
        created.read,
        created.leases,
        lambda: created.beat(A, "{}"),
        lambda: created.append("notes", "x"),
        lambda: created.entries(after_version=-1, timeout_s=5.0),
        lambda: created.commit(expected_version=0, state="s", entry="e"),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            call()
    created.close()


def test_closing_ends_a_wait(created: Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(created.entries, after_version=0, timeout_s=30.0)
        created.beat(A, "{}")
        started_s = time.monotonic()
        created.close()
        with pytest.raises(StoreUnavailable):
            waiting.result(timeout=10.0)
        assert time.monotonic() - started_s < 5.0
