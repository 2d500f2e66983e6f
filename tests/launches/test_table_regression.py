"""The example with data and a loss of its own: two nodes are lost, one without notice."""

import json
import shutil
from pathlib import Path

import pytest

from tests.launches.test_launch import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLS = '[{step=8, stage=1, phase="backward", microbatch=1}, {step=14, stage=2, notice_s=0.3}]'


def test_a_table_has_the_bits_of_a_calm_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in ("table_regression.py", "table_regression.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    sets = ("train.steps=120", f"chaos.kill={KILLS}", "cloud.boot_s=0.2")
    overrides = [part for one in sets for part in ("--set", one)]
    done = bench.run("launch", "table_regression.toml", "--run", "table", *overrides)
    assert done.returncode == 0, done.stderr
    assert "entropy" not in done.stdout + done.stderr
    receipt = json.loads((bench.home / "table" / "receipt.json").read_text())
    assert len(receipt["preemptions"]) == 2
    assert receipt["unigram_entropy_nats"] is None
    assert receipt["last_loss"] < receipt["first_loss"] / 1.5
    assert bench.json("verify", "table")["equal"] is True
    assert bench.json("verify", "table", "--samples")["equal"] is True
