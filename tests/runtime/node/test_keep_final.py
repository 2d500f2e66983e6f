"""The final state of a node that shares no folder with its launcher: a bucket that is away for a
moment costs nothing of it."""

from pathlib import Path

import pytest
import torch

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.core.events import FaultScope
from bamboo.errors import StorageUnavailable
from bamboo.runtime.node.faults import scope_of
from bamboo.runtime.node.worker import keep_in_bucket, keep_in_folder
from tests.full_disk import files_up_to


class Away(DirectoryStore):
    """A bucket that takes no file before it was asked so often."""

    before = 0
    asked = 0

    def put_file(self, name: str, path: Path) -> None:
        self.asked += 1
        if self.asked <= self.before:
            raise StorageUnavailable("away")
        super().put_file(name, path)


@pytest.mark.timeout(30)
def test_a_bucket_that_comes_back_takes_the_stage(tmp_path: Path) -> None:
    objects = Away(tmp_path)
    objects.before = 2
    keep_in_bucket(objects, patience_s=20.0)(0, {"param/0.w": torch.zeros(2)}, 7)
    assert set(objects.sizes("final/")) == {"final/stage-00.safetensors", "final/stage-00.json"}


@pytest.mark.timeout(30)
def test_one_that_stays_away_is_said_after_a_while(tmp_path: Path) -> None:
    objects = Away(tmp_path)
    objects.before = 10**6
    with pytest.raises(StorageUnavailable, match="away"):
        keep_in_bucket(objects, patience_s=0.3)(0, {"param/0.w": torch.zeros(2)}, 7)
    assert objects.asked > 1
    assert not objects.sizes("")


def test_a_folder_that_all_share_is_nobodys_fault_alone(tmp_path: Path) -> None:
    """Its shadow would meet the same: the run ends by name, and no other machine is rented."""
    (tmp_path / "final").touch()
    with pytest.raises(StorageUnavailable, match="final state cannot be written"):
        keep_in_folder(tmp_path / "final")(0, {"param/0.w": torch.zeros(2)}, 7)
    with files_up_to(64), pytest.raises(StorageUnavailable) as full:
        keep_in_folder(tmp_path / "other")(0, {"param/0.w": torch.zeros(2)}, 7)
    assert scope_of(full.value) is FaultScope.RUN
