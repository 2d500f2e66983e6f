"""An instance that was rented for a check: what it brings, tells and stores."""

import errno
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bamboo.agent import check
from bamboo.agent.check import PROGRESS, VERDICT, check_run
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import Final
from bamboo.checkpoint.run_files import brought_data, brought_final, put_checked, put_data
from bamboo.errors import BambooError, InputError, StorageUnavailable
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Semantics, Strategy

TEXT = bytearray(b"some text")
DIGEST = "b94f6f125c79e3a5ffaa826f584c10d52ada669e6762051b826b55776d05aed2"
FINAL = Final(step=2, tensors={"param/0.w": "ab" * 32}, damaged=("stage-01.safetensors",))


class Away(DirectoryStore):
    """A bucket that does not take so many objects, and then takes all."""

    times = 0

    def put_new(self, name: str, data: bytes) -> bool:
        self.times -= 1
        if self.times >= 0:
            raise StorageUnavailable(f"{name}: no")
        return super().put_new(name, data)


@pytest.fixture
def begins(tmp_path: Path) -> DirectoryStore:
    """What the launcher of a check has stored."""
    run = tmp_path / "run"
    run.mkdir()
    strategy = Strategy(
        semantics=Semantics(
            model={},
            data_digest=DIGEST,
            batch=8,
            microbatch=2,
            virtual_nodes=1,
            seed=0,
            steps=2,
            optimizer={},
            precision="fp32",
            clip_norm=1.0,
            numerics={},
        ),
        placement=Placement(cut=(0, 2), grid=Grid(pipelines=1, stages=1), redundancy="off"),
    )
    (run / "strategy.json").write_text(strategy.to_json())
    for name in ("resolved.json", "metrics.jsonl"):
        (run / name).write_text(name)
    objects = DirectoryStore(tmp_path / "starts")
    put_checked(objects, run, FINAL)
    put_data(objects, TEXT, DIGEST)
    return objects


@pytest.fixture
def results(tmp_path: Path) -> Away:
    return Away(tmp_path / "results")


def stored(results: DirectoryStore, name: str) -> Any:
    text = results.get(name)
    assert text is not None
    return json.loads(text)


def test_a_verdict_is_stored_and_each_step_is_a_sign_of_life(
    begins: DirectoryStore, results: Away, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"

    def verify(folder: Path, *, told: Callable[[int, int], None]) -> Mapping[str, Any]:
        assert brought_final(folder) == FINAL
        assert brought_data(folder) == TEXT
        assert (folder / "metrics.jsonl").read_text() == "metrics.jsonl"
        assert not (folder / "numerics.json").exists(), "the run has none"
        told(1, 2)
        assert stored(results, PROGRESS) == [1, 2]
        heard.unlink()
        told(2, 2)
        return {"equal": True}

    done = check_run(begins=begins, results=results, verify=verify, heard_file=str(heard))
    assert done == 0
    assert heard.exists()
    assert stored(results, PROGRESS) == [1, 2], "told now and then, not at each step"
    assert stored(results, VERDICT) == {"body": {"equal": True}}


def test_a_full_disk_takes_a_sign_of_life_and_not_the_verdict(
    begins: DirectoryStore, results: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        del data
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(check, "write_whole", full)

    def verify(folder: Path, *, told: Callable[[int, int], None]) -> Mapping[str, Any]:
        del folder
        told(1, 2)
        return {"equal": True}

    assert check_run(begins=begins, results=results, verify=verify) == 0
    assert stored(results, VERDICT) == {"body": {"equal": True}}


@pytest.mark.parametrize(("error", "code"), [(InputError("no GPU"), 2), (BambooError("broke"), 1)])
def test_what_is_wrong_there_is_stored_as_well(
    begins: DirectoryStore, results: Away, error: BambooError, code: int
) -> None:
    def verify(folder: Path, *, told: Callable[[int, int], None]) -> Mapping[str, Any]:
        raise error

    assert check_run(begins=begins, results=results, verify=verify) == code
    assert stored(results, VERDICT) == {"error": str(error), "exit_code": code}


def test_a_check_that_nobody_stored_is_refused(results: Away, tmp_path: Path) -> None:
    def verify(folder: Path, *, told: Callable[[int, int], None]) -> Mapping[str, Any]:
        raise AssertionError("there is nothing to verify")

    nothing = DirectoryStore(tmp_path / "nothing")
    assert check_run(begins=nothing, results=results, verify=verify) == 2
    assert "ask for it again" in stored(results, VERDICT)["error"]


def test_a_verdict_outlasts_a_bucket_that_is_away(
    begins: DirectoryStore, results: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(folder: Path, *, told: Callable[[int, int], None]) -> Mapping[str, Any]:
        return {"equal": False}

    monkeypatch.setattr(check, "_RETRY_S", 0.0)
    results.times = 5
    assert check_run(begins=begins, results=results, verify=verify) == 0
    assert stored(results, VERDICT) == {"body": {"equal": False}}
    results.times = 1000
    with pytest.raises(StorageUnavailable):
        check_run(begins=begins, results=results, verify=verify)
