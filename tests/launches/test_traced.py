"""A whole module that is traced: two nodes are lost, one without notice."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.launches.test_launch import Bench
from tests.models.test_guide import GUIDE, blocks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PRETRAINED = """
from transformers import AutoModel, BertConfig
config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=64)
AutoModel.from_config(config, add_pooling_layer=False).save_pretrained("my-bert")
"""
LOADED = """
from safetensors.torch import load_file
from digits_unet import UNet
UNet().load_state_dict(load_file("out/model.safetensors"))
"""
KILLS = '[{step=5, stage=1, phase="backward", microbatch=1}, {step=12, stage=2, notice_s=0.3}]'


@pytest.mark.full
def test_a_traced_module_has_the_bits_of_a_calm_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in ("digits_cnn.py", "digits_unet.py", "digits_unet.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    sets = ("train.steps=20", f"chaos.kill={KILLS}", "cloud.boot_s=0.2")
    overrides = [part for one in sets for part in ("--set", one)]
    done = bench.run("launch", "digits_unet.toml", "--run", "unet", *overrides)
    assert done.returncode == 0, done.stderr
    receipt = json.loads((bench.home / "unet" / "receipt.json").read_text())
    assert len(receipt["preemptions"]) == 2
    assert receipt["last_loss"] < receipt["first_loss"]
    # The run has its own copy of the trace.
    shutil.rmtree(bench.home / "traces")
    assert bench.json("verify", "unet")["equal"] is True
    assert bench.run("export", "unet", "--to", "out").returncode == 0
    subprocess.run([sys.executable, "-c", LOADED], check=True, timeout=60, cwd=tmp_path)


@pytest.mark.full
def test_an_encoder_with_a_head_begins_with_pretrained_weights(tmp_path: Path) -> None:
    """By the lines of the page."""
    bench = Bench(tmp_path)
    for name in ("classify.py", "classify.toml"):
        (tmp_path / name).write_text(blocks()[name], encoding="utf-8")
    page = GUIDE.read_text(encoding="utf-8")
    (saving,) = re.findall(r"\n((?:    .*\n|\n)+    dcp\.save\(.*\n)", page)
    for script in (PRETRAINED, textwrap.dedent(saving)):
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60, cwd=tmp_path)
    kills = "chaos.kill=[{step=5, stage=1}, {step=12, stage=2, notice_s=0.5}]"
    sets = ("train.init=dcp:start", "train.steps=20", "cluster.stages=3", "cloud.boot_s=0.2", kills)
    overrides = [part for one in sets for part in ("--set", one)]
    done = bench.run("launch", "classify.toml", "--run", "bert", *overrides)
    assert done.returncode == 0, done.stderr
    pretrained = load_file(tmp_path / "my-bert" / "model.safetensors")
    begun = {
        tensor.numpy().tobytes()
        for file in (bench.home / "bert" / "init").glob("*.safetensors")
        for tensor in load_file(file).values()
    }
    assert {tensor.numpy().tobytes() for tensor in pretrained.values()} < begun
    assert bench.json("verify", "bert")["equal"] is True
