"""Torn, truncated, corrupted and foreign checkpoints are passed over by name; the newest good one
is found, and any cut reads it."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bamboo.checkpoint.catalogue import load_tensors, newest_good, steps
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.manifest import MANIFEST, Manifest, folder_of
from bamboo.checkpoint.retention import delete
from bamboo.checkpoint.shards import commit, save_shard
from bamboo.errors import StorageUnavailable

pytestmark = pytest.mark.timeout(30)
HASH = "88a126d5201019a4"
LAYERS = 6


def state(step: int) -> dict[str, Tensor]:
    """A little model after `step` steps."""
    return {
        f"{kind}/{layer}.weight": torch.full((3, layer + 1), float(step * 10 + layer))
        for kind in ("param", "exp_avg", "exp_avg_sq")
        for layer in range(LAYERS)
    }


class Bench:
    def __init__(self, folder: Path) -> None:
        self.root, self.scratch = folder / "checkpoints", folder / "scratch"
        self.store = DirectoryStore(self.root)
        self.scratch.mkdir()

    def write(self, step: int, *, stages: int = 3, generation: int = 2) -> Manifest:
        """A complete checkpoint, cut into equal stages."""
        whole, shards = state(step), []
        for stage in range(stages):
            layers = range(LAYERS * stage // stages, LAYERS * (stage + 1) // stages)
            mine = {n: t for n, t in whole.items() if int(n.split("/")[1].split(".")[0]) in layers}
            shards.append(
                save_shard(
                    self.store,
                    mine,
                    step=step,
                    generation=generation,
                    stage=stage,
                    scratch=self.scratch,
                )
            )
        manifest = Manifest(
            run="r",
            semantic_hash=HASH,
            step=step,
            generation=generation,
            created_at_s=1000.0 + step,
            shards=tuple(shards),
        )
        assert commit(self.store, manifest)
        return manifest

    def path(self, name: str) -> Path:
        return self.root / name


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_newest_is_found_and_holds_what_was_saved(bench: Bench) -> None:
    bench.write(10)
    newest = bench.write(20)
    found = newest_good(bench.store, run="r", semantic_hash=HASH)
    assert (found.manifest, found.rejected) == (newest, ())
    got = load_tensors(bench.store, newest, list(state(20)), scratch=bench.scratch)
    assert all(torch.equal(got[name], tensor) for name, tensor in state(20).items())
    assert not list(bench.scratch.iterdir())


@pytest.mark.parametrize("stages", [1, 2, 3, 6])
def test_any_cut_reads_any_others(bench: Bench, stages: int) -> None:
    manifest = bench.write(7, stages=stages)
    names = [name for name in state(7) if name.split("/")[1].startswith(("1.", "2.", "3."))]
    got = load_tensors(bench.store, manifest, names, scratch=bench.scratch)
    assert set(got) == set(names)
    assert all(torch.equal(got[name], state(7)[name]) for name in names)


def truncated(bench: Bench, manifest: Manifest) -> None:
    path = bench.path(manifest.shards[1].name)
    path.write_bytes(path.read_bytes()[:-1])


def corrupted(bench: Bench, manifest: Manifest) -> None:
    path = bench.path(manifest.shards[2].name)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def torn(bench: Bench, manifest: Manifest) -> None:
    bench.path(manifest.name).unlink()


def lacking(bench: Bench, manifest: Manifest) -> None:
    bench.path(manifest.shards[0].name).unlink()


def garbled(bench: Bench, manifest: Manifest) -> None:
    bench.path(manifest.name).write_text("{")


def foreign(bench: Bench, manifest: Manifest) -> None:
    other = replace(manifest, semantic_hash="0" * 16)
    bench.path(manifest.name).write_text(other.to_json())


def of_another_run(bench: Bench, manifest: Manifest) -> None:
    """Of the same semantics: whoever may write there can put it in this one's place."""
    bench.path(manifest.name).write_text(replace(manifest, run="q").to_json())


def misplaced(bench: Bench, manifest: Manifest) -> None:
    other = manifest.to_json().replace("gen-000002", "gen-000001")
    bench.path(manifest.name).write_text(other)


def folder_as_manifest(bench: Bench, manifest: Manifest) -> None:
    bench.path(manifest.name).unlink()
    bench.path(manifest.name).mkdir()


def pipe_as_manifest(bench: Bench, manifest: Manifest) -> None:
    """Whoever opened it would wait for a writer without end."""
    bench.path(manifest.name).unlink()
    os.mkfifo(bench.path(manifest.name))


def folder_as_shard(bench: Bench, manifest: Manifest) -> None:
    path = bench.path(manifest.shards[0].name)
    path.unlink()
    path.mkdir()
    (path / "stray").write_text("x")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (folder_as_manifest, "is torn: it has no manifest"),
        (pipe_as_manifest, "is torn: it has no manifest"),
        (folder_as_shard, "lacks step-00000020/gen-000002/stage-00.safetensors"),
        (truncated, "is truncated: step-00000020/gen-000002/stage-01.safetensors has"),
        (corrupted, "is corrupted: step-00000020/gen-000002/stage-02.safetensors"),
        (torn, "is torn: it has no manifest"),
        (lacking, "lacks step-00000020/gen-000002/stage-00.safetensors"),
        (garbled, "has a damaged manifest"),
        (foreign, "is of other semantics (0000000000000000, of run r), not 88a126d5201019a4"),
        (of_another_run, "is of run q, not r"),
        (misplaced, "is not of its step and generation"),
    ],
)
def test_a_spoilt_checkpoint_is_named_and_the_one_before_taken(
    bench: Bench, spoil: Callable[[Bench, Manifest], None], says: str
) -> None:
    good = bench.write(10)
    spoil(bench, bench.write(20))
    found = newest_good(bench.store, run="r", semantic_hash=HASH)
    assert found.manifest == good
    (why,) = found.rejected
    assert why.startswith("the checkpoint of step 20 ")
    assert says in why


def test_one_that_lacks_layers_is_passed_over(bench: Bench) -> None:
    """Whole shards of another cut: each is what was written, together they are no model."""
    good, short = bench.write(10), bench.write(20)
    part = replace(short, shards=short.shards[:2])
    bench.path(short.name).write_text(part.to_json())
    found = newest_good(bench.store, run="r", semantic_hash=HASH, layers=range(LAYERS))
    assert found.manifest == good
    assert found.rejected == ("the checkpoint of step 20 lacks layers [4, 5]",)
    assert newest_good(bench.store, run="r", semantic_hash=HASH).manifest == part, (
        "they are not known"
    )
    fewer = newest_good(bench.store, run="r", semantic_hash=HASH, layers=range(2))
    assert fewer.manifest is None
    assert "has layers [2, 3] of another model" in fewer.rejected[0]


def test_the_complete_ones_before_it_are_named(bench: Bench) -> None:
    """By their manifests alone: one whose shards are spoilt may be among them."""
    for step in (5, 10, 15, 20, 25, 30, 35):
        bench.write(step)
    spoilt = {step: bench.path(f"{folder_of(step)}/{MANIFEST}") for step in (5, 15, 20)}
    corrupted(bench, Manifest.from_json(bench.path(f"{folder_of(10)}/{MANIFEST}").read_text()))
    torn(bench, Manifest.from_json(spoilt[5].read_text()))
    foreign(bench, Manifest.from_json(spoilt[15].read_text()))
    garbled(bench, Manifest.from_json(spoilt[20].read_text()))
    truncated(bench, Manifest.from_json(bench.path(f"{folder_of(35)}/{MANIFEST}").read_text()))
    found = newest_good(bench.store, run="r", semantic_hash=HASH, layers=range(LAYERS))
    assert found.manifest is not None
    assert (found.manifest.step, found.older) == (30, (10, 25))


@pytest.mark.parametrize("spoil", [folder_as_manifest, pipe_as_manifest, folder_as_shard, torn])
def test_what_was_passed_over_can_be_deleted_and_written_anew(
    bench: Bench, spoil: Callable[[Bench, Manifest], None]
) -> None:
    good = bench.write(10)
    spoil(bench, bench.write(20))
    delete(bench.store, 20)
    assert not bench.path(folder_of(20)).exists()
    assert newest_good(bench.store, run="r", semantic_hash=HASH).manifest == good
    again = bench.write(20)
    assert newest_good(bench.store, run="r", semantic_hash=HASH).manifest == again


def test_a_store_that_cannot_be_read_is_no_damage(bench: Bench) -> None:
    manifest = bench.write(10)

    def refuse(path: str, *_: object, **__: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StorageUnavailable, match="error; see that the directory can be read"):
            newest_good(bench.store, run="r", semantic_hash=HASH)
    assert newest_good(bench.store, run="r", semantic_hash=HASH).manifest == manifest


def test_no_good_one_at_all(bench: Bench) -> None:
    assert newest_good(bench.store, run="r", semantic_hash=HASH).manifest is None
    torn(bench, bench.write(10))
    found = newest_good(bench.store, run="r", semantic_hash=HASH)
    assert found.manifest is None
    assert len(found.rejected) == 1


def test_a_shard_that_changes_after_the_search_is_not_loaded(bench: Bench) -> None:
    manifest = bench.write(10)
    corrupted(bench, manifest)
    with pytest.raises(StorageUnavailable, match="not what was written"):
        load_tensors(bench.store, manifest, list(state(10)), scratch=bench.scratch)


def test_of_two_manifests_of_a_step_the_first_stands(bench: Bench) -> None:
    """A writer of an older generation that wakes up late changes nothing."""
    first = bench.write(10, generation=3)
    late = replace(first, generation=2, shards=())
    assert not commit(bench.store, late)
    assert newest_good(bench.store, run="r", semantic_hash=HASH).manifest == first


def test_what_is_no_checkpoint_is_not_looked_at(bench: Bench) -> None:
    bench.write(10)
    for name in ("notes.txt", "step-x/a", "steps-00000030/a"):
        assert bench.store.put_new(name, b"x")
    assert steps(bench.store) == [10]
    assert bench.path(f"{folder_of(10)}/{MANIFEST}").exists()
