"""Job files, overrides and resolved jobs: a tree that is in order, or InputError."""

import tomllib
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bamboo.config.load import job_from_json, job_to_json, load_job
from bamboo.config.resolve import batch_shape, shape_facts
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from tests.fuzz.cases import Cases, fuzzed
from tests.fuzz.odd import ODD_TEXTS, bent, bent_bytes, bent_json, values
from tests.tidy.tree import ROOT

FILES = sorted((ROOT / "examples").glob("*.toml"))
THERE = [path for path in FILES if path.name != "stdlib_files.toml"]
"""Those whose data need not be written first."""
TEXTS = [path.read_bytes() for path in FILES]
KEYS = [
    f"{section}.{key}"
    for path in FILES
    for section, table in tomllib.loads(path.read_text()).items()
    for key in table
]


def is_in_order(job: JobConfig | None) -> None:
    """What was accepted can be used: written, read again, and laid out."""
    if job is None:
        return
    assert job_from_json(job_to_json(job)) == job
    if job.model.layers <= 100:
        shape_facts(job)
    batch_shape(job)


@fuzzed
@given(bent_bytes(TEXTS))
def test_job_files_as_bytes(tmp_path: Path, cases: Cases, data: bytes) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(data)
    is_in_order(cases.judge(lambda: load_job(path), InputError))


@fuzzed
@given(bent_json([job_to_json(load_job(path, prepared=False)) for path in THERE]))
def test_resolved_jobs(cases: Cases, text: str) -> None:
    is_in_order(cases.judge(lambda: job_from_json(text), InputError))


@fuzzed
@given(
    st.sampled_from([*KEYS, "x.y", "model", ".", "=", ""]) | st.text(max_size=9),
    st.sampled_from(["=", " = ", "", "=="]),
    st.sampled_from(ODD_TEXTS) | st.text(max_size=12) | values.map(str),
)
def test_overrides(cases: Cases, key: str, equals: str, value: str) -> None:
    override = f"{key}{equals}{value}"
    is_in_order(cases.judge(lambda: load_job(FILES[1], [override]), InputError))


@fuzzed
@given(bent([tomllib.loads(text.decode()) for text in TEXTS]))
def test_tables_of_any_kind(cases: Cases, tables: Any) -> None:
    """As a document of a store has them, where no file was ever parsed."""
    from bamboo.config.parse import parse_job

    if isinstance(tables, dict):
        cases.judge(lambda: parse_job(tables, file="job"), InputError)
    else:
        cases.refused += 1
