"""A worker that starts while the store stands still or is empty waits, and accuses nobody."""

import tempfile
from pathlib import Path

import pytest

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.config.load import job_to_json
from bamboo.config.resolve import semantics
from bamboo.coord.memory_store import MemoryStore
from bamboo.errors import StorageUnavailable, StoreNotReached, StoreUnavailable
from bamboo.ids import RunId, run_id
from bamboo.ports import STORE_AWAY_STATUS, Store
from bamboo.runtime.node import worker
from bamboo.runtime.node.arrival import documents_of
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy
from tests.jobs import tiny_job


class Moody(MemoryStore):
    """Its documents are asked for again and again: once for each mood."""

    def __init__(self, *moods: str) -> None:
        super().__init__(run_id("test"))
        self.moods = list(moods)

    def documents(self) -> dict[str, str]:
        match self.moods.pop(0):
            case "away":
                raise StoreUnavailable("it does not answer")
            case "empty":
                return {}
            case said:
                return {"job": said}


def test_documents_are_waited_for() -> None:
    store = Moody("away", "empty", "away", "the job")
    assert documents_of(store, deadline_s=30.0) == {"job": "the job"}
    with pytest.raises(StoreUnavailable, match="does not answer"):
        documents_of(Moody("away"), deadline_s=0.0)
    with pytest.raises(StoreUnavailable, match="nobody gave it back"):
        documents_of(Moody("empty"), deadline_s=0.0)


def test_a_store_that_stays_away_is_no_fault_of_the_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Away(MemoryStore):
        def read(self) -> None:
            raise StoreUnavailable("it does not answer")

    monkeypatch.setattr(worker, "JOIN_DEADLINE_S", 0.0)
    monkeypatch.setattr(worker, "open_store", lambda *_: Away(run_id("test")))
    config = {"run": "test", "node": "i-1.0", "store_url": "unix:///nowhere"}
    assert worker.main(config) == STORE_AWAY_STATUS
    assert "it does not answer" in capsys.readouterr().err


def test_a_worker_writes_aside_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of it does, and also where the folder cannot be made: it joins all the same."""

    def open_store(*_: object) -> None:
        asked.append(tempfile.gettempdir())
        raise StoreNotReached("nobody there")

    asked: list[str] = []
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())
    monkeypatch.setattr(worker, "JOIN_DEADLINE_S", 0.0)
    monkeypatch.setattr(worker, "open_store", open_store)
    (tmp_path / "file").touch()
    told = ["", str(tmp_path / "scratch" / "i-1"), str(tmp_path / "file" / "i-1")]
    for folder in told:
        config = {"run": "test", "node": "i-1.0", "store_url": "unix:///nowhere"}
        assert worker.main({**config, "scratch_dir": folder}) == STORE_AWAY_STATUS
    assert asked[1:] == told[1:]
    assert asked[0] not in told
    assert (tmp_path / "scratch" / "i-1").is_dir()


def test_a_store_that_is_started_again_meanwhile_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def killed_twice(url: str, run: RunId) -> Store:
        asked.append(url)
        if len(asked) < 3:
            raise StoreNotReached("connection reset by peer")
        return MemoryStore(run)

    def not_there(*_: object, **__: object) -> None:
        raise StoreUnavailable("the run is not asked for before the store is there")

    monkeypatch.setattr(worker, "open_store", killed_twice)
    monkeypatch.setattr(worker, "join_run", not_there)
    config = {"run": "test", "node": "i-1.0", "store_url": "unix:///again"}
    assert worker.main(config) == STORE_AWAY_STATUS
    assert len(asked) == 3
    assert "the run is not asked for" in capsys.readouterr().err


def test_a_store_that_is_gone_is_no_fault_of_the_node(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(*_: object) -> Store:
        raise StoreNotReached("connection reset by peer")

    monkeypatch.setattr(worker, "JOIN_DEADLINE_S", 0.0)
    monkeypatch.setattr(worker, "open_store", gone)
    config = {"run": "test", "node": "i-1.0", "store_url": "unix:///nowhere"}
    assert worker.main(config) == STORE_AWAY_STATUS
    assert "connection reset by peer" in capsys.readouterr().err


def test_a_bucket_that_does_not_answer_is_no_fault_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Silent(DirectoryStore):
        def fetch(self, name: str, path: Path) -> bool:
            raise StorageUnavailable(f"{name}: no answer")

    job = tiny_job(tmp_path)
    strategy = Strategy(
        semantics=semantics(job, data_digest="0" * 64),
        placement=Placement(cut=(0, 2, 4), grid=Grid(pipelines=1, stages=2), redundancy="stash"),
    ).to_json()
    documents = {"strategy": strategy, "job": job_to_json(job)}
    monkeypatch.setattr(worker, "open_store", lambda *_: MemoryStore(run_id("test")))
    monkeypatch.setattr(worker, "join_run", lambda *_, **__: (None, None))
    monkeypatch.setattr(worker, "documents_of", lambda *_, **__: documents)
    config = {"run": "test", "node": "i-1.0", "store_url": "-", "start_url": "s3://b/starts/test"}
    assert worker.main(config, bucket=lambda url: Silent(Path(url))) == STORE_AWAY_STATUS
    assert "no answer" in capsys.readouterr().err
