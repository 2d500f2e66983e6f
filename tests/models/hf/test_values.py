"""Where a layer's values come from: its key, its own tensors in a folder, or what it is given."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from bamboo.checkpoint.along import put_weights
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.pretrained import keep_pretrained, pretrained_in
from bamboo.errors import DamagedData, InputError
from bamboo.far_weights import FarWeights
from bamboo.kept_weights import weight_files
from bamboo.models import build_layer, build_model, build_shell, put_parameters, run_layers
from tests.models.hf.families import CONFIGS, class_of, config_folder, saved_folder
from tests.models.hf.test_equal import hf_job, inputs_of


def values_of(layer: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}


@pytest.mark.parametrize("family", CONFIGS)
def test_initial_values_follow_from_the_key_and_the_familys_rule(
    tmp_path: Path, family: str
) -> None:
    config_folder(tmp_path / "model", family)
    workload = build_model(hf_job(tmp_path, family=family))
    drawn = [values_of(build_layer(workload, i, 1)) for i in range(len(workload.layers))]
    last = len(drawn) - 1
    again, other = (values_of(build_layer(workload, last, seed)) for seed in (1, 2))
    assert all(torch.equal(again[name], value) for name, value in drawn[last].items())
    assert any(not torch.equal(other[name], value) for name, value in drawn[last].items())
    whole = dict(class_of(family).from_config(_config(tmp_path)).named_parameters())
    for name, value in (item for layer in drawn for item in layer.items()):
        if name in whole:
            assert value.std() == pytest.approx(whole[name].std().item(), rel=0.5, abs=1e-3), name


def _config(folder: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder / "model")


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_layer_for_known_values_draws_and_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    saved_folder(tmp_path / "model", family)
    workload = build_model(hf_job(tmp_path))
    count = len(workload.layers)
    layers = [(i, build_layer(workload, i, 1)) for i in range(count)]
    monkeypatch.setattr("bamboo.models.hf.weights.safe_open", None)
    before, modules = torch.random.get_rng_state(), {*sys.modules}
    shells = [(i, build_shell(workload, i, 1)) for i in range(count)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert {*sys.modules} == modules
    for (_, layer), (_, shell) in zip(layers, shells, strict=True):
        assert all(parameter.is_meta for parameter in shell.parameters())
        put_parameters(shell, values_of(layer))
    inputs, _ = inputs_of(family)
    (ours,), (theirs,) = (
        run_layers(part, inputs, seed=1, step=0, microbatch=0) for part in (shells, layers)
    )
    assert torch.equal(ours, theirs)


def test_a_layer_reads_its_own_tensors_and_a_run_compares_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bamboo.models.hf import weights

    folder = saved_folder(tmp_path / "model", "llama")
    found = pretrained_in(weight_files(folder))
    keep_pretrained(folder, found, tmp_path / "init")
    job = replace(hf_job(tmp_path), weights=found.digest, pretrained=str(tmp_path / "init"))
    workload = build_model(job)
    asked: list[str] = []
    plain = weights.Pretrained.tensor
    monkeypatch.setattr(
        weights.Pretrained, "tensor", lambda self, name: asked.append(name) or plain(self, name)
    )
    layer = build_layer(workload, 2, 1)
    assert asked == [name for name, _ in layer.named_parameters()]
    assert all(name.startswith("model.layers.1.") for name in asked)
    whole = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, whole[name]) for name, value in values_of(layer).items())

    path = tmp_path / "init" / "model.safetensors"
    data = bytearray(path.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    begin, _ = header["model.norm.weight"]["data_offsets"]
    data[8 + int.from_bytes(data[:8], "little") + begin] ^= 1
    path.unlink()
    path.write_bytes(data)
    build_layer(workload, 2, 1)
    with pytest.raises(InputError, match=r"model\.norm\.weight is not what was written"):
        build_layer(workload, 3, 1)


def test_of_weights_in_a_bucket_a_layer_reads_its_own_bytes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_folder(tmp_path / "model", "llama")
    found = pretrained_in(weight_files(folder))
    keep_pretrained(folder, found, tmp_path / "init")
    objects = DirectoryStore(tmp_path / "bucket")
    put_weights(objects, tmp_path / "init", found.digest)
    far = FarWeights(objects, found.digest)
    workload = build_model(hf_job(tmp_path), far)
    asked: list[int] = []
    plain = DirectoryStore.part

    def part(self: DirectoryStore, name: str, begin: int, end: int) -> bytes | None:
        asked.append(end - begin)
        return plain(self, name, begin, end)

    monkeypatch.setattr(DirectoryStore, "part", part)
    layer = build_layer(workload, 2, 1)
    assert asked == [4 * value.numel() for value in layer.parameters()]
    whole = load_file(folder / "model.safetensors")
    assert all(torch.equal(value, whole[name]) for name, value in values_of(layer).items())

    kept = tmp_path / "bucket" / "weights" / found.digest / "model.safetensors"
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(DamagedData, match=r"is not what the launch has brought"):
        [build_layer(workload, index, 1) for index in range(4)]
    with pytest.raises(InputError, match=r"places.json of the run is not there, or damaged"):
        FarWeights(objects, "0" * 64)


def test_frequencies_are_those_of_the_whole_model(tmp_path: Path) -> None:
    config_folder(tmp_path / "model", "llama")
    workload = build_model(hf_job(tmp_path))
    whole = class_of("llama").from_config(_config(tmp_path))
    for made in (build_layer(workload, 1, 1), build_shell(workload, 1, 1)):
        (found,) = [b for name, b in made.named_buffers() if name.endswith(".inv_freq")]
        assert torch.equal(found, whole.model.rotary_emb.inv_freq)
