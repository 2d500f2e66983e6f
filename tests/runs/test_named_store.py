"""A store of the user's own from part to part of a run: what was the run's goes, and only that."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo.coord.driver import create_run
from bamboo.coord.open import open_store
from bamboo.core.state import Policy, initial_state
from bamboo.errors import InputError
from bamboo.ids import NodeId, RunId, run_id
from bamboo.ports import Store
from bamboo.runs import named_store
from bamboo.runs.decisions import saved_store
from bamboo.runs.run_folder import RunFolder
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Strategy
from testbed.store_server import StoreServer, start_store
from tests.runs.test_reading import folder_of
from tests.topology.test_strategy import PLACEMENT, SEMANTICS

GONE_S = 2.0
STRATEGY = Strategy(semantics=SEMANTICS, placement=PLACEMENT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    started = start_store(tmp_path_factory.mktemp("valkey"))
    yield started
    started.stop()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return folder_of(tmp_path)


def created(store: Store, run: RunId) -> bool:
    return create_run(
        store,
        state=initial_state(run=run, grid=Grid(pipelines=1, stages=2), redundancy="none"),
        policy=Policy(),
        documents={"strategy": STRATEGY.to_json()},
        at_s=1.0,
    )


@pytest.fixture
def store(server: StoreServer, folder: RunFolder) -> Iterator[Store]:
    """As a part of the run leaves it."""
    opened = open_store(server.url, folder.id)
    assert created(opened, folder.id)
    opened.append("metrics", "{}")
    opened.append("ledger", "{}")
    opened.beat(NodeId("i-1.0"), "{}")
    yield opened
    named_store.wiring.remove_run(server.url, folder.id)
    opened.close()


def check(folder: RunFolder, server: StoreServer, *, semantic_hash: str = SEMANTICS.hash()) -> None:
    named_store.check_may_go(folder, server.url, semantic_hash=semantic_hash, gone_s=GONE_S)


@pytest.mark.timeout(60)
def test_the_next_part_begins_where_the_last_one_left_its_keys(
    server: StoreServer, folder: RunFolder, store: Store
) -> None:
    other = open_store(server.url, run_id("r2"))
    assert created(other, run_id("r2"))
    check(folder, server)  # the newest beat is of just now, and nobody beats again
    named_store.give_up(folder, server.url)
    assert saved_store(folder).read().version == 0  # the only copy of the log was saved
    assert not store.documents()
    assert not store.leases()[1]
    assert not store.records("metrics", after_id="0", timeout_s=0.0)
    assert not store.records("ledger", after_id="0", timeout_s=0.0)
    assert created(store, folder.id)
    assert other.documents()
    other.close()


@pytest.mark.timeout(60)
def test_a_run_of_which_a_node_lives_is_left_alone(
    server: StoreServer, folder: RunFolder, store: Store
) -> None:
    over = threading.Event()

    def live() -> None:
        while not over.wait(0.2):
            store.beat(NodeId("i-1.0"), "{}")

    node = threading.Thread(target=live)
    node.start()
    try:
        with pytest.raises(InputError, match="nodes of run r live"):
            check(folder, server)
    finally:
        over.set()
        node.join()


@pytest.mark.timeout(60)
def test_another_run_of_the_same_id_is_left_alone(
    server: StoreServer, folder: RunFolder, store: Store
) -> None:
    with pytest.raises(InputError, match="another run r, of semantics"):
        check(folder, server, semantic_hash="another")
    assert store.documents()


@pytest.mark.timeout(60)
def test_a_store_that_does_not_have_the_run_is_as_good(
    server: StoreServer, folder: RunFolder
) -> None:
    check(folder, server)
    named_store.give_up(folder, server.url)
    assert not folder.decisions.exists()
