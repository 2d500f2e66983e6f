"""A whole module that is traced: two nodes are lost, one without notice."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launches.test_launch import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "examples"
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
