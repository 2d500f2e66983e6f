"""What `from_pretrained` loads of an export gives the loss of the run's own layers: each family,
whole, and adapters by peft."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from bamboo.models import evaluate, unpacked
from bamboo.runtime.after.exported import export
from bamboo.runtime.after.trained import Trained
from tests.models.hf.families import CONFIGS, class_of, config_folder, saved_folder
from tests.models.hf.test_equal import hf_job, inputs_of, whole_logits
from tests.models.hf.test_lora import LORA
from tests.runtime.after.written import loaded, write_run

TIED = {"gpt2": {"tie_word_embeddings": True}, "bert": {"tie_word_embeddings": True}}


def loss_of(found: Trained, family: str) -> float:
    inputs, targets = inputs_of(family)
    output = evaluate(found.layers, inputs, seed=1, microbatch=0)
    return found.workload.loss(unpacked(output), targets).item()


def loss_by_transformers(found: Trained, family: str, model: torch.nn.Module) -> float:
    inputs, targets = inputs_of(family)
    with torch.no_grad():
        return found.workload.loss(whole_logits(family, model.eval(), inputs), targets).item()


@pytest.mark.parametrize("family", CONFIGS)
def test_a_whole_model_is_loaded_offline(tmp_path: Path, family: str) -> None:
    config_folder(tmp_path / "model", family, **TIED.get(family, {}))
    found = loaded(write_run(tmp_path, hf_job(tmp_path, family=family)))
    out = tmp_path / "out"
    out.mkdir()
    said = export(found, out, form="safetensors", tokenizer="")
    assert {"config.json", "model.safetensors"} <= set(said["files"])
    model = class_of(family).from_pretrained(out, local_files_only=True)
    ours = loss_of(found, family)
    assert loss_by_transformers(found, family, model) == pytest.approx(ours, rel=1e-6)
    fresh = class_of(family).from_config(model.config)
    assert loss_by_transformers(found, family, fresh) != pytest.approx(ours, rel=1e-6)
    # Training switches the cache off, which is not the model's.
    assert getattr(model.config, "use_cache", True) is True


def test_the_tokenizer_of_the_run_is_found_beside_the_model(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    config_folder(tmp_path / "model", "gpt2")
    made = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "fox": 2}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "words.json"))
    found = loaded(write_run(tmp_path, hf_job(tmp_path)))
    out = tmp_path / "out"
    out.mkdir()
    export(found, out, form="safetensors", tokenizer=str(tmp_path / "words.json"))
    tokenizer = AutoTokenizer.from_pretrained(out, local_files_only=True)
    assert tokenizer("fox the").input_ids == [2, 1]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("begins_with_weights", [True, False])
def test_adapters_are_loaded_by_peft(tmp_path: Path, begins_with_weights: bool) -> None:
    from peft import PeftModel

    make = saved_folder if begins_with_weights else config_folder
    make(tmp_path / "model", "llama")
    found = loaded(write_run(tmp_path, hf_job(tmp_path, LORA)))
    out = tmp_path / "out"
    out.mkdir()
    export(found, out, form="safetensors", tokenizer="")
    base = tmp_path / "model" if begins_with_weights else out / "base"
    whole = class_of("llama").from_pretrained(base, local_files_only=True)
    adapted = PeftModel.from_pretrained(whole, out)
    ours = loss_of(found, "llama")
    assert loss_by_transformers(found, "llama", adapted) == pytest.approx(ours, rel=1e-6)
    with adapted.disable_adapter():
        assert loss_by_transformers(found, "llama", adapted) != pytest.approx(ours, rel=1e-6)
    assert (out / "base").exists() is not begins_with_weights
