"""Strategies, catalogues, profiles and the records of a run's files: in order, or refused."""

import json
from pathlib import Path

from hypothesis import given

from bamboo.config.catalogue import read_catalogue
from bamboo.errors import InputError
from bamboo.planner.profiles.profiled import Profile
from bamboo.runs.run_folder import read_document
from bamboo.study.strategies import read_strategy
from bamboo.telemetry.records import EventRecord, MetricRecord
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Semantics, Strategy
from tests.fuzz.cases import Cases, fuzzed
from tests.fuzz.odd import bent_bytes, bent_json

STRATEGY = Strategy(
    semantics=Semantics(
        model={"model": "gpt", "layers": 4},
        data_digest="ab",
        batch=8,
        microbatch=2,
        virtual_nodes=1,
        seed=0,
        steps=10,
        optimizer={"learning_rate": 0.1},
        precision="fp32",
        clip_norm=1.0,
        numerics={"torch": "2"},
    ),
    placement=Placement(cut=(0, 2, 4), grid=Grid(pipelines=1, stages=2), redundancy="eager"),
).to_json()
CATALOGUE = json.dumps(
    {
        "schema_version": 1,
        "region": "us-east-1",
        "on_demand_seen": "2026-07-20",
        "spot_seen": "2026-07-20",
        "taken": "2026-07-20",
        "on_demand_source": "here",
        "types": {
            "g5.xlarge": {
                "gpu": "A10G",
                "gpus": 1,
                "gpu_memory_gib": 24,
                "network_gbps": 2.5,
                "on_demand_usd_per_hour": 1.006,
                "spot_usd_per_hour": [0.4, 0.5],
                "spot_by_zone": {"us-east-1a": 0.4, "us-east-1b": 0.5},
                "spot_seen": "2026-07-20",
                "vcpus": 4,
            }
        },
        "zone_ids": {"us-east-1a": "use1-az1"},
        "quotas": {"L-1": {"vcpus": 8, "seen": "2026-07-20", "source": "x"}},
        "auxiliary": {"e": {"usd": 1, "unit": "GB", "what": "x", "seen": "2026", "source": "x"}},
    }
)
EVENT = EventRecord(t_s=1.0, run="r", generation=1, node="a.1", kind="step", step=3, data={"x": 1})
METRIC = '{"v": 1, "step": 3, "loss": 2.5, "tokens_per_s": 10.0, "usd": 0.1, "tokens_per_usd": 9.0}'
RESOLVED = json.dumps(
    {
        "schema_version": 1,
        "started_s": 1.0,
        "part": 1,
        "job": {},
        "grids": [{"pipelines": 1, "stages": 2, "step_s": 0.1}],
        "zones": {"us-east-1a": 4},
        "cuts": [[0, 2]],
    }
)


@fuzzed
@given(bent_json([STRATEGY, json.dumps({"strategy": json.loads(STRATEGY)})]))
def test_strategies(tmp_path: Path, cases: Cases, text: str) -> None:
    path = tmp_path / "strategy.json"
    path.write_text(text, encoding="utf-8", errors="replace")
    cases.judge(lambda: read_strategy(path), InputError)


@fuzzed
@given(bent_bytes([STRATEGY.encode()]))
def test_strategies_as_bytes(tmp_path: Path, cases: Cases, data: bytes) -> None:
    path = tmp_path / "strategy.json"
    path.write_bytes(data)
    cases.judge(lambda: read_strategy(path), InputError)


@fuzzed
@given(bent_json([CATALOGUE]))
def test_catalogues(tmp_path: Path, cases: Cases, text: str) -> None:
    path = tmp_path / "catalogue.json"
    path.write_text(text, encoding="utf-8", errors="replace")
    catalogue = cases.judge(lambda: read_catalogue(path), InputError)
    if catalogue is not None:
        names = list(catalogue.types)
        cases.judge(lambda: catalogue.sources(names), InputError)
        cases.judge(lambda: catalogue.spot_prices(names, ["us-east-1a", "x"]), InputError)


@fuzzed
@given(bent_bytes([CATALOGUE.encode()]))
def test_catalogues_as_bytes(tmp_path: Path, cases: Cases, data: bytes) -> None:
    path = tmp_path / "catalogue.json"
    path.write_bytes(data)
    cases.judge(lambda: read_catalogue(path), InputError)


@fuzzed
@given(bent_json(['{"schema_version": 1}', '{"layers": []}']))
def test_profiles(cases: Cases, text: str) -> None:
    cases.judge(lambda: Profile.from_json(text), ValueError)


@fuzzed
@given(bent_json([EVENT.to_json(), METRIC]))
def test_records_of_a_runs_files(cases: Cases, text: str) -> None:
    cases.judge(lambda: EventRecord.from_json(text), InputError)
    cases.judge(lambda: MetricRecord.from_json(text), InputError)


@fuzzed
@given(bent_json([RESOLVED]))
def test_documents_of_a_runs_folder(tmp_path: Path, cases: Cases, text: str) -> None:
    path = tmp_path / "resolved.json"
    path.write_text(text, encoding="utf-8", errors="replace")
    cases.judge(lambda: read_document(path), InputError)
