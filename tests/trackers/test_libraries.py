"""What each tracker's own library reads back of a run that two launchers have logged."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bamboo.core.state import Outcome
from bamboo.runs.ports import NoteScreen
from bamboo.trackers.adapters import key_of
from bamboo.trackers.supervised import Trackers
from tests.trackers.books import START_S, Books

KEY = key_of("r", START_S)
SECRET = "0123456789abcdef0123456789abcdef01234567"


def log_twice(home: Path, name: str) -> Books:
    """Two launchers, one after the other, each with two steps; nothing is lost."""
    books = Books(home, to=(name,))
    for part in range(2):
        for step in (2 * part, 2 * part + 1):
            books.step(step, loss=3.0 - step / 4)
        if part == 0:
            books.event("PeerLost", "node i-1.0 is gone", step=1)
            books.evaluation(2)
        notes: list[str] = []
        trackers = Trackers(books.folder, books.job.log, NoteScreen(notes.append))
        trackers.look_after()
        (one,) = trackers.close(Outcome.STOPPED if part == 0 else Outcome.DONE)
        assert one.sentence == "", notes
    assert one.taken == 6
    return books


def read_back(program: str, *arguments: str) -> Any:
    """What a program prints that reads with the tracker's library, apart from our warnings."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LOSSES = [[1, 3.0], [2, 2.75], [3, 2.5], [4, 2.25]]

TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1]).Reload()
texts = {t: [[e.step, e.tensor_proto.string_val[0].decode()] for e in found.Tensors(t)]
         for t in found.Tags()["tensors"]}
scalars = {t: [[e.step, e.value] for e in found.Scalars(t)] for t in found.Tags()["scalars"]}
print(json.dumps([scalars, texts]))
"""


def test_tensorboard(tmp_path: Path) -> None:
    books = log_twice(tmp_path, "tensorboard")
    own = books.folder.path / "trackers" / "tensorboard"
    scalars, texts = read_back(TENSORBOARD, str(own))
    assert scalars["train/loss"] == LOSSES
    assert scalars["eval/loss"] == [[2, 2.0]]
    assert [value for _, value in scalars["run/nodes"]] == [4.0] * 4
    assert texts["events/text_summary"] == [[1, "PeerLost: node i-1.0 is gone"]]
    ((step, job),) = texts["job/text_summary"]
    assert (step, "| train.steps | 8 |" in job) == (0, True)
    assert all(path.stat().st_mode & 0o77 == 0 for path in own.iterdir())


TRACKIO = """
import json, sys, trackio
run, = trackio.Api().runs("bamboo")
rows = trackio.sqlite_storage.SQLiteStorage.get_logs("bamboo", run.name)
print(json.dumps([run.name, rows, run.config]))
"""


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    log_twice(tmp_path, "trackio")
    name, rows, config = read_back(TRACKIO)
    assert name == KEY
    losses = [[row["step"], row["train/loss"]] for row in rows if "train/loss" in row]
    assert losses == LOSSES
    assert [row["event"] for row in rows if "event" in row] == ["PeerLost: node i-1.0 is gone"]
    assert config["train.steps"] == 8


MLFLOW = """
import json
from mlflow.tracking import MlflowClient
client = MlflowClient()
run, = client.search_runs([client.get_experiment_by_name("bamboo").experiment_id])
history = {k: [[m.step, m.value] for m in client.get_metric_history(run.info.run_id, k)]
           for k in run.data.metrics}
print(json.dumps([run.info.status, history, run.data.params, run.data.tags]))
"""


def installed(name: str) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed here: make trackers")


@pytest.mark.full
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    log_twice(tmp_path, "mlflow")
    status, history, params, tags = read_back(MLFLOW)
    assert status == "FINISHED"
    assert history["train/loss"] == LOSSES
    assert params["train.steps"] == "8"
    assert tags["bamboo.events"] == "step 1: PeerLost: node i-1.0 is gone"


WANDB = """
import json, pathlib, struct, sys
from wandb.proto import wandb_internal_pb2 as pb

def records(data):  # a log of LevelDB: blocks of 32 KiB, of pieces of records
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield pb.Record.FromString(whole)
            whole = b""

rows, ids, config = [], set(), {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")):
    for record in records(path.read_bytes()):
        if record.HasField("run"):
            ids.add(record.run.run_id)
            config |= {c.key: json.loads(c.value_json) for c in record.run.config.update}
        config |= {c.key: json.loads(c.value_json) for c in record.config.update}
        if record.HasField("history"):
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json)
                         for i in record.history.item})
print(json.dumps([sorted(ids), rows, config.get("train.steps")]))
"""


@pytest.mark.full
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    books = log_twice(tmp_path, "wandb")
    ids, rows, steps = read_back(WANDB, str(books.folder.path / "trackers" / "wandb"))
    assert (ids, steps) == ([KEY], 8)
    losses = [[row["step"], row["train/loss"]] for row in rows if "train/loss" in row]
    assert losses == LOSSES
    assert [row["event"] for row in rows if "event" in row] == ["PeerLost: node i-1.0 is gone"]
    for path in books.folder.path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


class _Receiver(BaseHTTPRequestHandler):
    got: ClassVar[list[tuple[str, str, bytes]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, self.headers.get("x-token", ""), body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@contextmanager
def receiver() -> Iterator[str]:
    """The address of a collector that keeps what it gets."""
    _Receiver.got.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


OTLP = """
import gzip, json, sys
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest as Logs
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest as Metrics)
series, texts, ids = {}, [], set()
for path, data in json.load(open(sys.argv[1])):
    request = (Logs if path == "/v1/logs" else Metrics)()
    request.ParseFromString(bytes.fromhex(data))
    found = request.resource_logs if path == "/v1/logs" else request.resource_metrics
    for resource in found:
        ids |= {a.value.string_value for a in resource.resource.attributes
                if a.key == "service.instance.id"}
        for scope in resource.scope_logs if path == "/v1/logs" else resource.scope_metrics:
            for log in scope.log_records if path == "/v1/logs" else ():
                texts.append([log.event_name, log.body.string_value])
            for metric in () if path == "/v1/logs" else scope.metrics:
                series.setdefault(metric.name, []).extend(
                    [p.time_unix_nano, p.as_double] for p in metric.gauge.data_points)
print(json.dumps([sorted(ids), series, texts]))
"""


def test_otlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as address:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"x-token={SECRET}")
        books = log_twice(tmp_path, "otlp")
    assert {token for _, token, _ in _Receiver.got} == {SECRET}
    got = [(path, body.hex()) for path, _, body in _Receiver.got]
    (tmp_path / "got.json").write_text(json.dumps(got))
    ids, series, texts = read_back(OTLP, str(tmp_path / "got.json"))
    assert ids == [KEY]
    at = [int((START_S + step) * 1e9) for step in range(4)]
    assert series["bamboo.train.loss"] == [
        [t, loss] for t, (_, loss) in zip(at, LOSSES, strict=True)
    ]
    assert [value for _, value in series["bamboo.run.step"]] == [1, 2, 2, 3, 4]
    assert ["bamboo.event", "PeerLost: node i-1.0 is gone"] in texts
    (job,) = [json.loads(text) for name, text in texts if name == "bamboo.job"]
    assert job["train.steps"] == 8
    for path in books.folder.path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_no_library_is_imported_before_it_is_asked_for() -> None:
    """`bamboo` with a job that logs to nothing."""
    program = (
        "import sys, json, bamboo.api, bamboo.controller.attempt, bamboo.trackers.process;"
        "from bamboo.trackers.places import check; from bamboo.config.tree import LogConfig;"
        "check(LogConfig(to=('tensorboard', 'trackio', 'otlp')));"
        "names = ('tensorboard', 'trackio', 'wandb', 'mlflow', 'opentelemetry.sdk');"
        "print(json.dumps([n for n in names if n in sys.modules]))"
    )
    assert read_back(program) == []
