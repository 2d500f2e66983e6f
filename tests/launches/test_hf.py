"""Hugging Face models by the command line: two nodes are lost, one without notice, and the bits are
those of a calm run."""

import json
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.launches.test_launch import PACED, Bench
from tests.models.hf.families import config_folder, saved_folder

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = """
[model]
model = "hf:model"
context = 16
[data]
source = "path"
path = "text.txt"
[train]
steps = 24
batch = 8
microbatch = 2
learning_rate = 3e-3
[cluster]
stages = 3
redundancy = "stash"
[chaos]
kill = [{ step = 8, stage = 1, microbatch = 1 }, { step = 14, stage = 2, notice_s = 2 }]
"""


def launched(
    folder: Path, *, job: str = JOB, sets: Sequence[str] = ()
) -> tuple[Bench, dict[str, Any]]:
    """Launch the job in `folder`, and return its receipt."""
    bench = Bench(folder)
    (folder / "job.toml").write_text(job)
    overrides = [part for one in ("cloud.boot_s=0.2", *sets) for part in ("--set", one)]
    done = bench.run("launch", "job.toml", "--run", "hf", *overrides, timeout_s=220)
    assert done.returncode == 0, done.stderr
    receipt: dict[str, Any] = json.loads((bench.home / "hf" / "receipt.json").read_text())
    assert [lost["planned"] for lost in receipt["preemptions"]] == [False, True]
    assert receipt["last_loss"] < receipt["first_loss"]
    return bench, receipt


def test_adapters_of_a_llama_from_a_folder(tmp_path: Path) -> None:
    saved_folder(tmp_path / "model", "llama")
    lora = 'model.lora={rank=4, targets=["q_proj", "v_proj", "down_proj"], dropout=0.1}'
    bench, _ = launched(tmp_path, sets=[lora, *PACED])
    semantics = json.loads((bench.home / "hf" / "strategy.json").read_text())["semantics"]
    assert semantics["init"]
    requires = semantics["model"]["code"]["requires"]
    assert requires == {name: version(name) for name in ("transformers", "peft")}
    # The run needs the folder no more.
    shutil.rmtree(tmp_path / "model")
    assert bench.json("verify", "hf")["equal"] is True


@pytest.mark.full
def test_images_of_the_users_own(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "vit", tmp_path / "vit")
    shutil.copy(EXAMPLES / "digits_cnn.py", tmp_path)
    bench, receipt = launched(tmp_path, job=(EXAMPLES / "hf_vit.toml").read_text())
    assert bench.json("verify", "hf")["equal"] is True
    assert receipt["unit"] == "image"
    assert receipt["last_metrics"]["accuracy"] > 0.5
    found = bench.json("eval", "hf")
    assert (found["unit"], found["samples"]) == ("image", 256)
    assert (
        found["loss"]
        == bench.json("eval", "hf", "--source", "digits_cnn.py:held_out", "--samples", "256")[
            "loss"
        ]
    )


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "gpt2", "bert", "t5"])
def test_a_model_by_its_config(tmp_path: Path, family: str) -> None:
    changes = {"tie_word_embeddings": True} if family in ("gpt2", "bert") else {}
    config_folder(tmp_path / "model", family, **changes)
    bench, _ = launched(tmp_path, sets=PACED)
    assert bench.json("verify", "hf")["equal"] is True
