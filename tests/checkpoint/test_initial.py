"""The weights that a run begins with: read from any cut, kept a layer a file, and nothing believed
that was not hashed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bamboo.checkpoint.along import put_weights
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import write_stage
from bamboo.checkpoint.initial import (
    all_layers,
    check_weights,
    far_layers,
    keep_weights,
    load_layers,
    weights_in,
)
from bamboo.checkpoint.manifest import layer_of
from bamboo.errors import DamagedData, InputError
from bamboo.far_weights import FarWeights

LAYERS = 5


def state() -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(1)
    shapes = {"weight": (3, 2), "bias": (3,), "scale": ()}
    return {
        f"{kind}/{layer}.{name}": torch.randn(shape, generator=draws)
        for kind in ("param", "exp_avg", "exp_avg_sq")
        for layer in range(LAYERS)
        for name, shape in shapes.items()
    }


def written(folder: Path, stages: int, change: str = "") -> list[Path]:
    """A final state of so many stages, one tensor of it changed."""
    whole = {n: t + 1 if n == change else t for n, t in state().items()}
    for stage in range(stages):
        own = {n: t for n, t in whole.items() if layer_of(n) * stages // LAYERS == stage}
        write_stage(folder, stage, own, 7)
    return sorted(folder.glob("stage-*"))


def kept(tmp_path: Path) -> tuple[Path, str]:
    files = written(tmp_path / "a", 2)
    weights = weights_in(files, run="a", step=7)
    keep_weights(files, weights, tmp_path / "init")
    return tmp_path / "init", weights.digest


def test_the_digest_is_of_the_weights_however_they_were_cut(tmp_path: Path) -> None:
    digests = {
        name: weights_in(written(tmp_path / name, stages, change), run=name, step=7).digest
        for name, stages, change in (
            ("two", 2, ""), ("five", 5, ""),
            ("moment", 2, "exp_avg/3.bias"), ("weight", 2, "param/3.bias"),
        )
    }  # fmt: skip
    assert digests["two"] == digests["five"] == digests["moment"] != digests["weight"]


def test_a_stage_reads_only_its_own_layers(tmp_path: Path) -> None:
    folder, digest = kept(tmp_path)
    assert sorted(path.name for path in folder.glob("layer-*")) == [
        f"layer-{n:05d}.safetensors" for n in range(LAYERS)
    ]
    (folder / "layer-00000.safetensors").write_bytes(b"nobody reads this")
    found = load_layers(folder, [2, 3], digest=digest)
    expected = {n.removeprefix("param/"): t for n, t in state().items() if n[:7] in _OF_2_AND_3}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


_OF_2_AND_3 = ("param/2", "param/3")


def test_in_a_bucket_too_only_its_own_layers_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, digest = kept(tmp_path)
    objects = DirectoryStore(tmp_path / "bucket")
    put_weights(objects, folder, digest)
    far = FarWeights(objects, digest)
    asked: list[int] = []
    plain = DirectoryStore.part

    def part(self: DirectoryStore, name: str, begin: int, end: int) -> bytes | None:
        asked.append(end - begin)
        return plain(self, name, begin, end)

    monkeypatch.setattr(DirectoryStore, "part", part)
    found = far_layers(far, [2, 3])
    here = load_layers(folder, [2, 3], digest=digest)
    assert found.keys() == here.keys()
    assert all(torch.equal(found[name], here[name]) for name in here)
    assert sum(asked) == 4 * sum(tensor.numel() for tensor in here.values())
    assert {tensor.data_ptr() % 64 for tensor in found.values()} == {0}

    there = tmp_path / "bucket" / "weights" / digest / "layer-00002.safetensors"
    there.write_bytes(there.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedData, match=r"is not what the launch has brought"):
        far_layers(far, [2])


def test_weights_lie_as_those_that_another_node_sends(tmp_path: Path) -> None:
    """In a file they lie at any byte, and a product may follow that in its last bit."""
    folder, digest = kept(tmp_path)
    held = load_layers(folder, range(LAYERS), digest=digest)
    assert {tensor.data_ptr() % 64 for tensor in held.values()} == {0}


def test_every_layer_one_after_the_other(tmp_path: Path) -> None:
    folder, digest = kept(tmp_path)
    layers = list(all_layers(folder, digest=digest))
    check_weights(folder, digest=digest)
    assert len(layers) == LAYERS
    found = {name: tensor for layer in layers for name, tensor in layer.items()}
    assert found.keys() == {name for name in state() if name.startswith("param/")}
    # What we write without the library is what it reads.
    assert load_file(folder / "layer-00004.safetensors").keys() == layers[4].keys()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("bit", "param/2.* is not what was written"),
        ("gone", "layer-00002.safetensors: .*No such file"),
        ("cut", "layer-00002.safetensors: "),
        ("manifest", "it names weights of digest"),
        ("json", "manifest.json: "),
        ("nothing", "manifest.json: No such file or directory; the weights that the run begins"),
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, damage: str, says: str) -> None:
    folder, digest = kept(tmp_path)
    path, manifest = folder / "layer-00002.safetensors", folder / "manifest.json"
    match damage:
        case "bit":
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:-1])
        case "manifest":
            body = json.loads(manifest.read_text())
            body["tensors"]["2.bias"] = "0" * 64
            manifest.write_text(json.dumps(body))
        case "json":
            manifest.write_text("[")
        case "nothing":
            manifest.unlink()
    with pytest.raises(InputError, match=says):
        load_layers(folder, [2], digest=digest)
    with pytest.raises(InputError, match="the weights that the run begins with must be put back"):
        check_weights(folder, digest=digest)


def test_weights_that_changed_since_the_look_are_not_taken(tmp_path: Path) -> None:
    files = written(tmp_path / "a", 2)
    weights = weights_in(files, run="a", step=7)
    other = replace(weights, tensors={**weights.tensors, "4.bias": "0" * 64})
    with pytest.raises(
        InputError, match=r"4\.bias of the weights that the run begins with has changed since"
    ):
        keep_weights(files, other, tmp_path / "init")
    assert not (tmp_path / "init" / "manifest.json").exists()
    files[0].write_bytes(b"no tensors")
    with pytest.raises(InputError, match=r"stage-00.safetensors: is damaged \(its header"):
        weights_in(files, run="a", step=7)
