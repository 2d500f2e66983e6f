"""The final state of a run in an account whose bucket was away at its end: it is fetched later."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import read_final
from bamboo.checkpoint.run_files import put_stage
from bamboo.errors import StorageUnavailable
from bamboo.runs import final_state
from bamboo.runs.run_folder import RunFolder
from tests.controller.world import job as job_of_world
from tests.runs.test_reading import folder_of

RECEIPT = {"outcome": "done", "step": 4, "stages": 2}


class Away(DirectoryStore):
    def get(self, name: str) -> bytes | None:
        raise StorageUnavailable("the bucket does not answer")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    plain = job_of_world()
    in_account = replace(plain, cloud=replace(plain.cloud, provider="ec2", bucket="b"))
    monkeypatch.setattr(final_state, "job_of", lambda folder: in_account)
    return folder_of(tmp_path)


def late(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, objects: Any, **body: object) -> str:
    monkeypatch.setattr("bamboo.wiring.bucket", lambda url, region: objects)
    return final_state.bring_late(folder, RECEIPT | body)


def test_what_the_end_could_not_fetch_is_fetched_later(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, there = Away(tmp_path / "bucket"), DirectoryStore(tmp_path / "bucket")
    for stage in (0, 1):
        put_stage(there, stage, {f"param/{stage}.w": torch.zeros(2)}, 4)
    assert f"`bamboo verify {folder.id}` fetches it" in late(folder, monkeypatch, away)
    assert not folder.final_manifest.exists()
    assert "is of step 4, not 9" in late(folder, monkeypatch, there, step=9)
    assert late(folder, monkeypatch, there, outcome="fault") == ""
    assert not folder.final_manifest.exists()
    assert late(folder, monkeypatch, there) == ""
    assert read_final(folder.final).step == 4
