"""The example with tensors of all sorts: two nodes are lost, one without notice, and it learns.

Its layers are launched, lost and resumed by `make test` in `test_resume` and `test_kept`.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.launches.test_launch import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.full
def test_all_sorts_of_tensors_have_the_bits_of_a_calm_run(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in ("all_sorts.py", "all_sorts.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    kills = '[{step=8, stage=1, phase="backward", microbatch=3}, {step=16, stage=0, notice_s=5}]'
    sets = ("train.steps=100", f"chaos.kill={kills}", "cloud.boot_s=0.2")
    overrides = [part for one in sets for part in ("--set", one)]
    done = bench.run("launch", "all_sorts.toml", "--run", "sorts", *overrides)
    assert done.returncode == 0, done.stderr
    receipt = json.loads((bench.home / "sorts" / "receipt.json").read_text())
    assert len(receipt["preemptions"]) == 2
    assert receipt["last_loss"] < receipt["first_loss"] / 3
    assert bench.json("verify", "sorts")["equal"] is True
