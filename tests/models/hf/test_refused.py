"""Models that cannot be trained: one line with what is wrong, and what to do."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bamboo import extras
from bamboo.config.load import load_job
from bamboo.errors import InputError
from bamboo.models import build_layer, build_model
from bamboo.runs.initial import begin_with
from bamboo.runtime.check.preflight import of_data
from tests.models.hf.families import config_folder, saved_folder
from tests.models.hf.test_equal import hf_job


def refused(folder: Path, *more: str) -> str:
    """The one line with which a job is refused when it is read, or when its model is made."""
    with pytest.raises(InputError) as found:
        build_model(begin_with(hf_job(folder, *more))[0])
    assert found.value.exit_code == 2
    line = str(found.value)
    assert "\n" not in line
    return line


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    line = refused(tmp_path)
    assert "there is no file" in line
    assert line.endswith("config.json; name a folder as save_pretrained writes it")


def test_the_name_of_a_hub(tmp_path: Path) -> None:
    line = refused(tmp_path, "model.model=hf:meta-llama/Llama-3.2-1B")
    assert "nothing is downloaded" in line
    assert "hf download ORGANISATION/MODEL --local-dir FOLDER" in line


def test_a_family_that_nobody_can_cut(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "clip"}')
    line = refused(tmp_path)
    assert "clip has neither a pipeline plan nor an adapter" in line
    for known in ("bert", "gpt2", "llama", "qwen2", "t5", "vit"):
        assert f" {known}" in line


def test_a_family_that_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "mine", "auto_map": {}}')
    assert "has no model_type 'mine', and code that a folder brings is not run" in refused(tmp_path)


def test_weights_that_lack_tensors_or_have_others(tmp_path: Path) -> None:
    path = saved_folder(tmp_path / "model", "llama") / "model.safetensors"
    tensors = load_file(path)
    lacking = {name: value for name, value in tensors.items() if "layers.1" not in name}
    save_file(lacking, path, {"format": "pt"})
    line = refused(tmp_path)
    assert "its weights lack model.layers.1." in line
    assert line.count("model.layers.1.") == 3
    assert " and 6 more, which LlamaForCausalLM has" in line
    save_file({**tensors, **{f"odd.{i}": torch.ones(1) for i in range(4)}}, path, {"format": "pt"})
    assert "its weights have odd.0, odd.1, odd.2 and 1 more, which" in refused(tmp_path)
    tensors["model.norm.weight"] = torch.ones(7)
    save_file(tensors, path, {"format": "pt"})
    assert "model.norm.weight has shape [7], and [32] by its config.json" in refused(tmp_path)


def test_weights_that_stand_for_other_numbers(tmp_path: Path) -> None:
    path = saved_folder(tmp_path / "model", "bert") / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("LayerNorm.weight"))
    save_file(tensors | {name: tensors[name].to(torch.int8)}, path)
    workload = build_model(begin_with(hf_job(tmp_path))[0])
    layers = range(len(workload.layers))
    with pytest.raises(InputError, match=r"as torch.int8, and BertForMaskedLM has it as torch.fl"):
        _ = [build_layer(workload, index, 1) for index in layers]
    older = name.replace(".weight", ".gamma")
    save_file(tensors | {older: tensors[name].clone()}, path)
    assert f"is {name} of BertForMaskedLM, and so is another tensor" in refused(tmp_path)


def test_a_file_that_was_cut_short(tmp_path: Path) -> None:
    path = saved_folder(tmp_path / "model", "llama") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors: is damaged (its tensors have" in refused(tmp_path)
    with pytest.raises(InputError, match=r"model\.safetensors: is damaged"):
        build_model(hf_job(tmp_path))


def test_weights_in_a_format_that_can_run_code(tmp_path: Path) -> None:
    (config_folder(tmp_path / "model", "llama") / "pytorch_model.bin").write_bytes(b"")
    assert "has weights as pytorch_model.bin, a format that can run code" in refused(tmp_path)


def test_tokens_that_the_model_does_not_know(tmp_path: Path) -> None:
    config_folder(tmp_path / "model", "llama", vocab_size=100)
    (tmp_path / "text.txt").write_text("a text of small letters " * 9)
    job = hf_job(tmp_path, "data.source=path", "data.path=text.txt")
    with pytest.raises(InputError, match="go up to 120, and hf:model knows those below 100; take"):
        of_data(job)


def test_a_model_of_images_that_is_given_text(tmp_path: Path) -> None:
    config_folder(tmp_path / "model", "vit")
    line = refused(tmp_path)
    assert "is text, and ViTForImageClassification takes images; name data of yours" in line


def test_adapters_for_layers_that_are_not_there(tmp_path: Path) -> None:
    config_folder(tmp_path / "model", "llama")
    line = refused(tmp_path, 'model.lora={rank=4, targets=["query"]}')
    assert "'query' matches no linear layer of LlamaForCausalLM" in line
    assert "q_proj" in line


def test_adapters_for_a_head_that_is_tied(tmp_path: Path) -> None:
    config_folder(tmp_path / "model", "gpt2")
    line = refused(tmp_path, 'model.lora={rank=4, targets=["lm_head"]}')
    assert "'lm_head' has its weight from transformer.wte.weight, to which it is tied" in line
    assert line.endswith("; take some of c_attn, c_fc, c_proj")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.width=64", "is of the built-in GPT; leave it out: the folder's config.json says"),
        ("model.lora={alpha=8}", "is no rank"),
        ("model.lora={rank=8}", "name nothing; name linear layers"),
        ("model.model=hf:", "names no folder"),
    ],
)
def test_keys_that_mean_nothing(tmp_path: Path, setting: str, said: str) -> None:
    config_folder(tmp_path / "model", "llama")
    assert said in refused(tmp_path, setting)


def test_adapters_of_the_built_in_model(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[model]\nlora = {rank = 4, targets = ["qkv"]}\n')
    with pytest.raises(InputError, match="is of Hugging Face models"):
        load_job(tmp_path / "job.toml")


def test_the_extra_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_folder(tmp_path / "model", "llama")
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    line = refused(tmp_path)
    assert line.endswith(
        'needs transformers, which is not installed; install it: pip install "bamboo-train[hf]"'
    )
