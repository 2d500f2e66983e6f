"""A damaged file in a run's folder: named with a remedy, and no matter to any other run."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bamboo.billing.money import bill
from bamboo.billing.receipt import receipt_body
from bamboo.controller.terms import save_terms, terms_kept, terms_of
from bamboo.coord.codec import SCHEMA_VERSION
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.runs import run_folder
from bamboo.runs.decisions import save_decisions
from bamboo.telemetry.samples import read_samples
from cli import main
from tests.controller.world import START_S, World, finished, job, joined, left, step
from tests.runs.test_reading import folder_of
from tests.study.test_planning import plan

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    return tmp_path


def truncate(path: Path) -> None:
    path.write_text(path.read_text()[:-20])


def fill_with_bytes(path: Path) -> None:
    path.write_bytes(bytes(range(128, 256)))


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def empty(path: Path) -> None:
    path.write_text('{"schema_version": 1}')


def null_fields(path: Path) -> None:
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**dict.fromkeys(body), "schema_version": 1}))


def be_absurd(path: Path) -> None:
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, "started_s": 1e308, "ended_s": 10**400}))


def nest_without_end(path: Path) -> None:
    path.write_text("[" * 100_000)


def nest_deep(path: Path) -> None:
    """As deep as JSON just about allows."""
    path.write_text('{"schema_version": 1, "a": ' + "[" * 900 + "]" * 900 + "}")


DAMAGES = (
    truncate, fill_with_bytes, make_directory, empty, null_fields, be_absurd, nest_without_end,
    nest_deep,
)  # fmt: skip


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that this command line fails with."""
    capsys.readouterr()
    assert main.run(arguments) == 2, arguments
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_listed_as_such_and_the_others_are_as_ever(
    home: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    folder_of(home, "a1")
    bad = folder_of(home, "z-1")
    damage(bad.resolved)
    assert main.run(["list", "--json"]) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["a1"]["phase"], rows["a1"]["damage"]) == ("lost", None)
    assert (rows["z-1"]["phase"], rows["z-1"]["started"]) == ("damaged", None)
    assert str(bad.resolved) in rows["z-1"]["damage"]
    assert main.run(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"z-1: {bad.resolved} ")
    for name in ("a1", "a"):
        assert main.run(["status", name]) == 0
    line = error_of(["status", "z-1"], capsys)
    assert str(bad.resolved) in line
    assert "put the original back, or move the folder of this run elsewhere" in line


def test_last_is_no_older_run_when_the_newest_may_be_damaged(home: Path) -> None:
    folder_of(home, "a1", started_s=1000.0)
    bad = folder_of(home, "z-1", started_s=2000.0)
    truncate(bad.resolved)
    assert run_folder.find(home, "last").id == "z-1"
    os.utime(bad.resolved, (999.0, 999.0))
    assert run_folder.find(home, "last").id == "a1"


def test_a_field_that_is_missing_deep_inside_is_named(home: Path) -> None:
    folder = folder_of(home, "a")
    run_folder.write_json(folder.receipt, {"bill": {"usd": 1.0}, "nodes": [{"id": "i-0.0"}]})
    body = folder.read_json(folder.receipt)
    assert body["bill"]["usd"] == 1.0
    with pytest.raises(InputError, match=r"receipt\.json is damaged: it lacks bill\.modelled; put"):
        body["bill"]["modelled"]
    with pytest.raises(InputError, match=r"it lacks nodes\[\]\.zone; put"):
        body["nodes"][0]["zone"]
    shutil.copyfile(folder.receipt, folder.path / "other.json")
    run_folder.write_json(folder.receipt, {"nodes": [{"id": "i-0.0"}, None]})
    with pytest.raises(InputError, match=r"nodes\[\] = null is not an object; put"):
        folder.read_json(folder.receipt)


@pytest.fixture
def ended(home: Path) -> run_folder.RunFolder:
    """A run `r` that is done, and its receipt with something of all that there can be."""
    world = World(
        job(), [joined(), step(0, 5.5), step(1, 4.5), [step(2, 2.0), finished(2, 0, 1, 2, 3)],
                left(0, 1, 2, 3)],
    )  # fmt: skip
    progress = world.launcher.run()
    total = bill(world.fleet.rented(), now_s=START_S + 90.0, modelled=True)
    body = receipt_body(
        progress, total, samples_per_step=16, unigram_entropy_nats=3.25, final_note=""
    )
    body["preemptions"] = [{"line": "node i-9.0 went"}]
    body["reconfigurations"] = [
        {"step": 1, "checkpoint": True, "steps_again": 1, "sent_bytes": 5, "took_s": 1.0,
         "grid": "1 x 4", "why": "so"}
    ]  # fmt: skip
    body["trace"] = {
        "played_s": 9.0, "name": "t.csv", "time_scale": 1.0, "max_nodes": 4,
        "preemptions": 1, "length_s": 3.0,
    }  # fmt: skip
    body["last_metrics"] = body["status"]["metrics"] = {"accuracy": 0.5}
    folder = folder_of(home, "r")
    run_folder.write_json(folder.receipt, body)
    save_decisions(folder, world.store)
    return folder


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to each value inside this one."""
    if at:
        yield at
    inner: Any = enumerate(value) if isinstance(value, list) else ()
    for key, one in value.items() if isinstance(value, dict) else inner:
        yield from places(one, (*at, key))


def with_value(body: Any, at: tuple[str | int, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(body))
    inner = copy
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return copy


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_receipt_is_named(
    ended: run_folder.RunFolder, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    damage(ended.receipt)
    for verb in ("status", "cost", "attach"):
        capsys.readouterr()
        assert main.run([verb, "r"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert str(ended.receipt) in error
        assert "put the original back, or move the folder of this run elsewhere" in error


WRONG = (None, "x", -1, [None], {"x": None})


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, len(WRONG)))]
)
def test_no_value_in_a_receipt_is_a_fault_of_ours(ended: run_folder.RunFolder, first: int) -> None:
    """Each place has one of these values, the next place the next one."""
    body = json.loads(ended.receipt.read_text())
    told = {0}
    for number, at in enumerate(places(body), first):
        value = WRONG[number % len(WRONG)]
        ended.receipt.write_text(json.dumps(with_value(body, at, value)))
        told |= {main.run([verb, "r"]) for verb in ("status", "cost")}
        told |= {2 if main.run(["attach", "r"]) == 2 else 0}
    assert told == {0, 2}


def test_no_value_in_the_terms_of_a_run_is_a_fault_of_ours(tmp_path: Path) -> None:
    folder, planned = run_folder.RunFolder(id=RunId("r"), path=tmp_path), plan()
    save_terms(folder, planned.job, planned, started_s=1.0, detached=False)
    body = json.loads(folder.resolved.read_text())
    terms = terms_of(folder)
    folder.strategy.write_text("{")
    (segment,) = terms_kept(folder, terms, 3)["segments"]
    assert segment["to_step"] == 3, "a receipt is written of what the launcher knows"
    folder.strategy.write_text(planned.strategy.to_json())
    for field, value in product(body, WRONG):
        folder.resolved.write_text(json.dumps(body | {field: value}))
        with suppress(InputError):
            terms_of(folder)
    folder.resolved.write_text(json.dumps(body | {"layer_bytes": None}))
    with pytest.raises(InputError, match="is damaged: layer_bytes = null is not a list; put the"):
        terms_of(folder)


@pytest.mark.parametrize("damage", [truncate, fill_with_bytes, make_directory, nest_without_end])
def test_damaged_decisions_are_named(
    ended: run_folder.RunFolder, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    assert main.run(["verify", "--decisions", "r"]) == 0
    damage(ended.decisions)
    assert str(ended.decisions) in error_of(["verify", "--decisions", "r"], capsys)


def test_decisions_of_another_schema_are_refused_by_name(
    ended: run_folder.RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ended.decisions.read_text()
    version = f'\\"v\\":{SCHEMA_VERSION}'
    assert version in text
    ended.decisions.write_text(text.replace(version, '\\"v\\":11'))
    said = error_of(["verify", "--decisions", "r"], capsys)
    assert f"{ended.decisions}: a log entry has schema version 11 and this program reads" in said


@pytest.mark.parametrize("verb", ["logs", "list"])
def test_a_folder_in_the_place_of_a_log_is_named(
    home: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    folder = folder_of(home, "r")
    folder.metrics.mkdir()
    log = folder.events / "launcher.jsonl"
    log.mkdir(parents=True)
    if verb == "list":
        assert main.run(["list"]) == 0
        assert f"{folder.metrics} cannot be read: Is a directory; put" in capsys.readouterr().out
    else:
        line = error_of(["logs", "r"], capsys)
        assert f"{log} cannot be read: Is a directory; put" in line


def test_a_metric_that_is_none_is_named_with_its_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(home, "r")
    for line in ('{"v": 1, "step": 1e999}', '{"v": 1}', "[" * 100_000, "9" * 5000, "\x80"):
        folder.metrics.write_text(f"{line}\n")
        error = error_of(["status", "r"], capsys)
        assert f"error: {folder.metrics}: " in error
        assert "take the original" in error or "use the version" in error


def test_a_folder_in_the_place_of_the_samples_is_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").mkdir()
    with pytest.raises(InputError, match=r"samples\.jsonl cannot be read: Is a directory; put"):
        read_samples(tmp_path / "samples.jsonl")


def test_a_name_that_no_file_can_have_is_an_unknown_run(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of(home, "r")
    for verb in ("cost", "status"):
        assert "unknown run 'xxx" in error_of([verb, "x" * 5000], capsys)


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 1}', "not JSON"])
def test_a_damaged_strategy_stops_what_needs_it(
    home: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """After a name, not after a traceback."""
    folder = folder_of(home, "r")
    folder.strategy.write_text(text)
    assert main.run(["resume", "r"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"error: {folder.strategy} is damaged: ")
    assert "put the original back" in line
