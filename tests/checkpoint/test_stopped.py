"""The final state of a run that was stopped, as a checkpoint that any cut reads."""

from pathlib import Path

import pytest
import torch

from bamboo.checkpoint.catalogue import load_tensors, newest_good
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import stage_file, write_stage
from bamboo.checkpoint.manifest import MANIFEST, folder_of
from bamboo.checkpoint.stopped import keep_final
from bamboo.errors import InputError, StorageUnavailable
from bamboo.ids import RunId
from tests.checkpoint.test_catalogue import HASH, LAYERS, state

pytestmark = pytest.mark.timeout(30)
STEP = 7


@pytest.fixture
def final(tmp_path: Path) -> Path:
    """Two stages after STEP steps."""
    folder = tmp_path / "final"
    for stage in range(2):
        mine = {n: t for n, t in state(STEP).items() if int(n.split("/")[1][0]) % 2 == stage}
        write_stage(folder, stage, mine, STEP)
    return folder


def keep(
    final: Path, *, layers: tuple[int, ...] = tuple(range(LAYERS)), semantic_hash: str = HASH
) -> int:
    return keep_final(
        DirectoryStore(final.parent / "checkpoints"),
        final,
        run=RunId("r"),
        semantic_hash=semantic_hash,
        stages=2,
        generation=3,
        layers=layers,
        now_s=1000.0,
    )


def test_it_is_the_newest_good_one_with_every_tensor(final: Path, tmp_path: Path) -> None:
    assert keep(final) == STEP
    store = DirectoryStore(tmp_path / "checkpoints")
    found = newest_good(store, run="r", semantic_hash=HASH, layers=range(LAYERS))
    assert found.manifest is not None
    assert (found.manifest.step, found.manifest.generation, found.rejected) == (STEP, 3, ())
    whole = state(STEP)
    read = load_tensors(store, found.manifest, list(whole), scratch=tmp_path)
    assert all(torch.equal(read[name], tensor) for name, tensor in whole.items())
    assert keep(final) == STEP, "twice does no harm"


def test_a_damaged_one_in_its_place_makes_room(final: Path, tmp_path: Path) -> None:
    keep(final)
    store = DirectoryStore(tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / folder_of(STEP) / MANIFEST).write_text("{}")
    assert newest_good(store, run="r", semantic_hash=HASH).manifest is None
    keep(final)
    assert newest_good(store, run="r", semantic_hash=HASH).manifest is not None


def test_what_is_not_whole_is_not_kept(final: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match=r"after step 7 lacks layers \[6\]"):
        keep(final, layers=tuple(range(LAYERS + 1)))
    write_stage(final, 1, state(STEP + 1), STEP + 1)
    with pytest.raises(InputError, match="is not of step 7"):
        keep(final)
    (final / stage_file(1)).unlink()
    with pytest.raises(InputError, match="the final state is incomplete"):
        keep(final)
    assert not (tmp_path / "checkpoints").exists()


def test_one_of_another_run_stays(final: Path) -> None:
    keep(final, semantic_hash="another")
    with pytest.raises(StorageUnavailable, match="give each run a"):
        keep(final)
