"""The final state of a run that was stopped, as a checkpoint that any cut reads."""

from pathlib import Path

import pytest
import torch

from bamboo.checkpoint.catalogue import load_tensors, newest_good
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import stage_file, write_stage
from bamboo.checkpoint.manifest import MANIFEST, folder_of
from bamboo.checkpoint.shards import save_constant, save_shard
from bamboo.checkpoint.stopped import keep_final
from bamboo.errors import InputError, StorageFull, StorageUnavailable
from bamboo.ids import RunId
from tests.checkpoint.test_catalogue import HASH, LAYERS, state
from tests.full_disk import files_up_to

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


def test_what_is_constant_is_stored_once_and_as_a_node_stores_it(
    final: Path, tmp_path: Path
) -> None:
    """Byte for byte, whoever comes first; the file of a stage on its way does not stay."""
    never = [
        {
            f"param/{stage}.wide": torch.ones(500, 100).bfloat16(),
            f'buffer/{stage}.of "ä"': torch.tensor([True, False]),
        }
        for stage in range(2)
    ]
    own = [{f"param/{n}.w": torch.rand(7), f"momentum/{n}.w": torch.rand(7)} for n in range(2)]
    for step in (STEP, STEP + 1):
        for stage in range(2):
            write_stage(final, stage, own[stage] | never[stage], step, never[stage])
        assert keep(final, layers=(0, 1)) == step
    node = DirectoryStore(tmp_path / "node")
    at = {"generation": 3, "scratch": tmp_path / "scratch"}
    for stage in range(2):
        save_constant(node, stage, never[stage], scratch=at["scratch"])
        for step in (STEP, STEP + 1):
            save_shard(node, own[stage], step=step, stage=stage, **at)
    store = DirectoryStore(tmp_path / "checkpoints")
    names = set(node.sizes(""))
    assert names == {name for name in store.sizes("") if not name.endswith(MANIFEST)}
    assert all(store.get(name) == node.get(name) for name in names)
    found = newest_good(store, run="r", semantic_hash=HASH, layers=(0, 1)).manifest
    assert found is not None
    whole = own[0] | own[1] | never[0] | never[1]
    read = load_tensors(store, found, list(whole), scratch=tmp_path)
    assert all(torch.equal(read[name], tensor) for name, tensor in whole.items())


def test_a_full_disk_on_the_way_of_a_part_is_said(final: Path, tmp_path: Path) -> None:
    for stage in range(2):
        tensors = {f"param/{stage}.w": torch.rand(7), f"param/{stage}.wide": torch.ones(50_000)}
        write_stage(final, stage, tensors, STEP, [f"param/{stage}.wide"])
    with files_up_to(1 << 16), pytest.raises(StorageFull, match=r"make room where TMPDIR points"):
        keep(final, layers=(0, 1))
    assert not (tmp_path / "checkpoints" / folder_of(STEP) / MANIFEST).exists()
    assert keep(final, layers=(0, 1)) == STEP


def test_one_of_another_run_stays(final: Path) -> None:
    keep(final, semantic_hash="another")
    with pytest.raises(StorageUnavailable, match="give each run a"):
        keep(final)
