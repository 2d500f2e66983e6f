"""The example with batch norm: two nodes are lost, one without notice, and it reads the digits."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.launches.test_launch import PACED, Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLS = '[{step=8, stage=1, phase="backward", microbatch=1}, {step=18, stage=2, notice_s=2}]'
READS = pytest.param(130, 0.93, marks=pytest.mark.full)


@pytest.mark.parametrize(("steps", "reads"), [(30, 0.0), READS], ids=["short", "reads"])
def test_digits_are_read_with_the_bits_of_a_calm_run(
    tmp_path: Path, steps: int, reads: float
) -> None:
    """`reads`: the share of the digits that its weights are to read in plain torch, if any."""
    bench = Bench(tmp_path)
    for name in ("digits_cnn.py", "digits_cnn.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    every = steps // 2
    sets = (
        *(f"train.steps={steps}", f"eval.every_steps={every}"),
        *(f"chaos.kill={KILLS}", "cloud.boot_s=0.2", *(() if reads else PACED)),
    )
    overrides = [part for one in sets for part in ("--set", one)]
    done = bench.run("launch", "digits_cnn.toml", "--run", "digits", *overrides)
    assert done.returncode == 0, done.stderr
    assert not any(word in done.stdout + done.stderr for word in ("entropy", "token"))
    receipt = json.loads((bench.home / "digits" / "receipt.json").read_text())
    assert (receipt["unit"], receipt["tokens"]) == ("image", None)
    assert len(receipt["preemptions"]) == 2
    verified = bench.json("verify", "digits")
    assert (verified["equal"], verified["evaluations"]) == (True, receipt["step"] // every)
    uses = {one["use"]: one["micro_usd"] for one in bench.json("cost", "digits")["spent"]["uses"]}
    assert uses["evaluation"] > 0
    evaluation = bench.json("status", "digits")["evaluation"]
    assert evaluation["step"] == receipt["step"]
    evaluated = bench.json("eval", "digits")
    assert evaluated["loss"].hex() == evaluation["loss"].hex()
    assert evaluated["metrics"] == evaluation["metrics"]
    if not reads:
        return
    said = subprocess.run(
        [sys.executable, "digits_cnn.py", "digits"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
        env=bench.environment,
    )
    assert float(said.stdout) >= reads
    assert float(said.stdout) == pytest.approx(evaluation["metrics"]["accuracy"], abs=6e-4)
    from examples.digits_cnn import Digits, layers

    exported = bench.json("export", "digits", "--to", "out")
    assert exported["step"] == receipt["step"]
    model, held_out = layers(), Digits(held_out=True)
    model.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    with torch.no_grad():
        right = (model.eval()(held_out.images).argmax(1) == held_out.labels).float().mean()
    assert right.item() == pytest.approx(evaluation["metrics"]["accuracy"])
