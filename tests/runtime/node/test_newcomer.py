"""A node that comes to a run in training and cannot take part, whatever it meets: it leaves by
name, with the reason, and the run goes on."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bamboo.config.load import job_to_json, load_job
from bamboo.config.resolve import resolve, semantics
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.follow import Follower
from bamboo.coord.memory_store import MemoryStore
from bamboo.core.events import Attested, Event, FaultScope, NodeFailed
from bamboo.core.numerics import facts_of
from bamboo.core.state import NodeStatus, Outcome, Phase, State
from bamboo.data import sources
from bamboo.data.dataset import load_data
from bamboo.errors import NoDevice, StoreUnavailable
from bamboo.ids import NodeId, run_id
from bamboo.ports import FENCED_STATUS
from bamboo.runtime.node import arrival, worker
from bamboo.runtime.step.numerics import local_numerics
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy
from bamboo.user_code.bundle import CODE_FOLDER, identity_here
from bamboo.user_code.guard import unguarded
from bamboo.user_code.loading import forget_loaded
from tests.core.build import POLICY, forming, joined
from tests.jobs import TEXT, TINY, with_code

NEW = "n90.1"
MODEL = """
import sys
from torch import nn
if getattr(sys, "planted", "") == "raise":
    raise RuntimeError("not on this machine")
if getattr(sys, "planted", "") == "exit":
    sys.exit(0)
def build(job):
    width = job.model.width
    return [nn.Embedding(256, width), nn.Linear(width, width), nn.Linear(width, 256)]
"""


@pytest.fixture(autouse=True)
def unwatched(tmp_path: Path) -> Iterator[None]:
    """What a worker refuses of other code, it refuses to the end of its process."""
    path = list(sys.path)
    yield
    unguarded()
    forget_loaded()
    sys.path[:] = path


class Bench:
    """A run of two nodes, and all that a worker needs to come to it."""

    def __init__(self, folder: Path, *, trains: bool = True) -> None:
        self.folder, self.text = folder, folder / "text.txt"
        self.text.write_text(TEXT, encoding="utf-8")
        (folder / "m.py").write_text(MODEL, encoding="utf-8")
        (folder / "job.toml").write_text(TINY, encoding="utf-8")
        (folder / "sockets").mkdir(mode=0o700)
        job = resolve(load_job(folder / "job.toml", ["model.model=m.py:build"]))
        job = with_code(job, folder)
        digest, numerics = load_data(job).digest, facts_of(local_numerics(job))
        grid = Grid(pipelines=1, stages=2)
        strategy = Strategy(
            semantics=semantics(
                job,
                data_digest=digest,
                code=identity_here(folder / CODE_FOLDER),
            ),
            placement=Placement(cut=(0, 2, 3), grid=grid, redundancy="stash"),
        )
        self.documents = {
            "job": job_to_json(job),
            "strategy": strategy.to_json(),
            "data": "{}",
            "limits": json.dumps({"frame_bytes": 1 << 20}),
        }
        self.store = MemoryStore(run_id("test"))
        self.store.documents = lambda: self.documents  # type: ignore[method-assign]
        created = create_run(
            self.store, state=forming(stages=2), policy=POLICY, documents={}, at_s=0.0
        )
        assert created
        self.driver = Driver(self.store, POLICY, "test")
        for node in ("n00.1", "n01.1") if trains else ():
            first = joined(node)
            said = Attested(
                node=first.node, instance=first.instance, zone=first.zone, numerics=numerics
            )
            self.driver.append(said)
            self.driver.append(first)

    def come(self, monkeypatch: pytest.MonkeyPatch) -> State:
        """A worker starts, and breaks; the state of the run after it."""
        assert self.start(monkeypatch) == worker.FAULT_STATUS
        return self.driver.state()

    def start(self, monkeypatch: pytest.MonkeyPatch) -> int:
        """A worker starts; its exit status."""
        monkeypatch.setattr(worker, "open_store", lambda *_: self.store)
        monkeypatch.setattr(threading, "excepthook", threading.excepthook)
        config = {
            "run": "test",
            "node": NEW,
            "instance": "n90",
            "zone": "z1",
            "store_url": "memory:",
            "socket_dir": str(self.folder / "sockets"),
            "run_dir": str(self.folder),
        }
        return worker.main(config)


def spoil(raising: BaseException) -> Callable[..., Any]:
    def broken(*_: object, **__: object) -> Any:
        raise raising

    return broken


def unread(bench: Bench, patch: pytest.MonkeyPatch, error: OSError) -> None:
    """The text is there and cannot be read."""
    patch.setattr(sources, "open_named", spoil(error))


def grown(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bench.text.write_text(TEXT + "more", encoding="utf-8")


def shorter(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bench.text.write_text(TEXT[:-100], encoding="utf-8")


def other_bytes(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bench.text.write_text(TEXT.replace("fox", "cat"), encoding="utf-8")


def gone(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bench.text.unlink()


def unreadable(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    unread(bench, patch, PermissionError(13, "Permission denied"))


def failing_disk(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    unread(bench, patch, OSError(5, "Input/output error"))


def damaged_code(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    (copy,) = (bench.folder / CODE_FOLDER).rglob("m.py")
    copy.chmod(0o600)
    copy.write_text("def build(job:", encoding="utf-8")


def raises_at_import(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "planted", "raise", raising=False)


def leaves_at_import(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "planted", "exit", raising=False)


def leaves_at_work(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    """As a layer or data of the user's own may in any step: the shadow would do the same."""
    patch.setattr(worker, "warm_up", spoil(SystemExit(0)))


def short_of_memory(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(worker, "touch", spoil(MemoryError()))


def no_gpu(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    why = "the NVIDIA driver 535.104.05 is older than 580", "install driver 580 or later"
    patch.setattr(arrival, "local_numerics", spoil(NoDevice(*why)))


def no_socket(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    (bench.folder / "sockets").rmdir()


def no_document(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bench.documents["strategy"] = "{"


def unreadable_job(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    bench.documents["job"] = "{}"


NODE, RUN = FaultScope.NODE, FaultScope.RUN
CASES = [
    (grown, f"data.path = 'text.txt': {len(TEXT) + 4:,} bytes with digest", RUN),
    (shorter, f"data.path = 'text.txt': {len(TEXT) - 100:,} bytes with digest", RUN),
    (other_bytes, f"data.path = 'text.txt': {len(TEXT):,} bytes with digest", RUN),
    (gone, "there is no file or folder", RUN),
    (unreadable, "Permission denied; make it readable", RUN),
    (failing_disk, "Input/output error", NODE),
    (damaged_code, "m.py was changed after the launch", RUN),
    (raises_at_import, "not on this machine", RUN),
    (leaves_at_import, "SystemExit", RUN),
    (leaves_at_work, "SystemExit: 0", RUN),
    (short_of_memory, "MemoryError", FaultScope.DEVICE),
    (no_gpu, "driver 535.104.05 is older than 580; install driver 580 or later", NODE),
    (no_socket, "sockets", RUN),
    (no_document, "JSON", RUN),
    (unreadable_job, "resolved job: has another schema", RUN),
]


@pytest.mark.parametrize(("meets", "words", "scope"), CASES, ids=[c[0].__name__ for c in CASES])
def test_a_newcomer_leaves_by_name_and_the_run_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    meets: Callable[[Bench, pytest.MonkeyPatch], None],
    words: str,
    scope: FaultScope,
) -> None:
    bench = Bench(tmp_path)
    meets(bench, monkeypatch)
    state = bench.come(monkeypatch)
    monkeypatch.undo()
    assert state.phase is Phase.RUNNING, state.sentence
    node = state.node(NodeId(NEW))
    assert node is not None
    assert node.status is NodeStatus.GONE
    assert state.sentence.startswith(f"node {NEW} cannot take part and leaves: ")
    assert words in state.sentence
    assert "\n" not in state.sentence
    event = Follower().catch_up(bench.store)[-1].event
    assert isinstance(event, NodeFailed)
    assert event.scope is scope


def test_one_that_would_compute_other_bits_is_refused_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path)
    real = arrival.local_numerics
    monkeypatch.setattr(arrival, "local_numerics", lambda asked: real(asked) | {"torch": "1.0"})
    assert bench.start(monkeypatch) == FENCED_STATUS, "its agent reports nothing of its own"
    state = bench.driver.state()
    node = state.node(NodeId(NEW))
    assert node is not None
    assert node.status is NodeStatus.GONE
    assert state.phase is Phase.RUNNING
    assert f"torch is 1.0 there and {torch.__version__} in the run, as node n00.1" in state.sentence
    assert f"{NEW} is refused: node {NEW} cannot take part" in capsys.readouterr().err
    assert all(not isinstance(d.event, NodeFailed) for d in Follower().catch_up(bench.store))


def test_the_first_worker_says_what_the_run_computes_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, trains=False)
    monkeypatch.setattr(worker, "touch", spoil(MemoryError()))
    attested = bench.come(monkeypatch).attested
    assert attested is not None
    assert attested.node == NEW
    assert "threads" in {fact.name for fact in attested.numerics}


def test_before_anybody_trains_the_same_ends_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, trains=False)
    grown(bench, monkeypatch)
    state = bench.come(monkeypatch)
    assert state.outcome is Outcome.FAULT
    assert "the run was made for" in state.sentence


def test_a_store_that_is_away_when_it_fails_is_no_second_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path)
    grown(bench, monkeypatch)
    real = Driver.append

    def away(driver: Driver, event: Event, *, deadline_s: float = 1.0) -> Any:
        if isinstance(event, NodeFailed):
            raise StoreUnavailable("away")
        return real(driver, event, deadline_s=deadline_s)

    monkeypatch.setattr(Driver, "append", away)
    assert bench.come(monkeypatch).node(NodeId(NEW)) is None
    assert "away" in capsys.readouterr().err
