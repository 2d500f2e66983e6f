"""The example whose stages pass two tensors and a mask: two nodes are lost, one without notice."""

import json
import shutil
from pathlib import Path

import pytest

from tests.launches.test_launch import Bench

# In `make test` the example with tensors of all sorts shows a launch with tuples between stages.
pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLS = '[{step=8, stage=1, phase="backward", microbatch=1}, {step=14, stage=2, notice_s=5}]'


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_encoder_decoder_has_the_bits_of_a_calm_run(tmp_path: Path, precision: str) -> None:
    bench = Bench(tmp_path)
    for name in ("encoder_decoder.py", "encoder_decoder.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    sets = (
        *("data.source='path'", "data.path='text.txt'", "train.steps=80"),
        *(f"train.precision='{precision}'", f"chaos.kill={KILLS}", "cloud.boot_s=0.2"),
    )
    overrides = [part for one in sets for part in ("--set", one)]
    done = bench.run("launch", "encoder_decoder.toml", "--run", "tuples", *overrides)
    assert done.returncode == 0, done.stderr
    receipt = json.loads((bench.home / "tuples" / "receipt.json").read_text())
    assert [lost["planned"] for lost in receipt["preemptions"]] == [False, True]
    assert receipt["last_loss"] < receipt["first_loss"]
    assert bench.json("verify", "tuples")["equal"] is True
