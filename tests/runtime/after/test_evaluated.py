"""`bamboo eval` gives the numbers that `[eval]` gives in a run for the same data."""

from pathlib import Path

import pytest

from bamboo.config.tree import JobConfig
from bamboo.data.dataset import load_data
from bamboo.data.evaluation import load_eval
from bamboo.errors import InputError
from bamboo.models import build_model
from bamboo.runtime.after.evaluated import evaluate
from bamboo.runtime.after.trained import Trained, trained
from bamboo.runtime.check.calm_eval import CalmEval
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.device.staging import HOST
from bamboo.runtime.step.numerics import prepare
from bamboo.user_code.guard import unguarded
from tests.jobs import TEXT, tiny_job
from tests.runtime.after.test_exports import own_job
from tests.runtime.after.written import loaded, write_run
from tests.token_folder import prepared, some_ids, write_tokens

EVAL = ("eval.every_steps=2", "eval.source=path", "eval.path=held.txt", "eval.samples=5")


def in_a_run(home: Path, job: JobConfig) -> tuple[float, Trained]:
    """The loss of the evaluation after two steps, and what was trained in them."""
    prepare(job.cluster)
    workload = build_model(job)
    calm = CalmRun(job, workload, load_data(job, own=workload.data))
    data = load_eval(job, workload.data, workload.eval_data)
    assert data is not None
    calm.step()
    calm.step()
    loss, _ = CalmEval(job, workload, data).of(calm)
    return loss, loaded(write_run(home, job, calm.tensors()))


def loss_of(found: Trained, source: str, *, samples: int = 0) -> float:
    told: list[tuple[int, int]] = []
    body = evaluate(
        found,
        HOST,
        lambda done, of_all: told.append((done, of_all)),
        source=source,
        samples=samples,
        tokenizer="",
    )
    assert [done for done, _ in told] == [*range(1, told[0][1] + 1)]
    return float(body["loss"])


def test_text_has_the_loss_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "held.txt").write_text(TEXT[1000:3001])
    loss, found = in_a_run(tmp_path, own_job(tmp_path, "build", *EVAL))
    assert loss_of(found, "").hex() == loss.hex()
    held = str(tmp_path / "held.txt")
    assert loss_of(found, held, samples=5).hex() == loss.hex()
    assert loss_of(found, held) != loss
    assert loss_of(found, "", samples=4) != loss
    with pytest.raises(InputError, match="is beyond the source, which has 250; take at most 250"):
        loss_of(found, held, samples=251)


def test_tokens_have_the_loss_of_the_run(tmp_path: Path) -> None:
    prepared(write_tokens(tmp_path / "mine.ids", some_ids(3000)))
    held = write_tokens(tmp_path / "held.ids", some_ids(900)[::-1])
    prepared(held)
    asked = ("eval.every_steps=2", "eval.source=tokens", "eval.path=held.ids", "eval.samples=5")
    of_tokens = ("data.source=tokens", "data.path=mine.ids", "model.vocabulary=700", *asked)
    loss, found = in_a_run(tmp_path, tiny_job(tmp_path, of_tokens))
    assert loss_of(found, str(held), samples=5).hex() == loss.hex()
    with pytest.raises(InputError, match="was trained on tokens; name a token file"):
        loss_of(found, str(tmp_path / "text.txt"))


def test_a_run_without_an_evaluation_needs_a_source(tmp_path: Path) -> None:
    found = loaded(write_run(tmp_path, tiny_job(tmp_path)))
    with pytest.raises(InputError, match=r"has no \[eval\], and gpt has no eval_data; name a"):
        loss_of(found, "")


OF_ROWS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from bamboo.models import Workload, data_of

def loss(y, target):
    return (y - target).square().sum()

def rows(n):
    x = torch.arange(n * 2.0).reshape(n, 2)
    return data_of(TensorDataset(x, x.sum(dim=1, keepdim=True)))

def build(job):
    return Workload(layers=[nn.Linear(2, 1), nn.Linear(1, 1)], loss=loss, data=rows(8))
"""
HELD = """
from pathlib import Path
import torch
from mine import data_of, rows, TensorDataset

SIZE = Path(__file__).parent / "size.txt"

def held_out(job):
    return rows(int(SIZE.read_text()))

def wide(job):

    return data_of(TensorDataset(torch.zeros(4, 3), torch.zeros(4, 1)))

class Broken:
    samples, digest, unit = 4, "broken", "row"
    def batch(self, indices, keys):
        raise KeyError("gone")

def broken(job):
    return Broken()
"""


def test_a_function_that_returns_data_is_evaluated(tmp_path: Path) -> None:
    """It is in a file that the run did not take along, and imports from one that it did."""
    (tmp_path / "mine.py").write_text(OF_ROWS)
    run = write_run(tmp_path, tiny_job(tmp_path, ("model.model=mine.py:build",)))
    (tmp_path / "mine.py").write_text("changed since")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "size.txt").write_text("5")
    (elsewhere / "held.py").write_text(HELD)
    held = str(elsewhere / "held.py")
    found = trained(run.path, sorted(run.final.glob("*.safetensors")), HOST)
    try:
        with pytest.raises(InputError, match=r'no eval_data; name .* "file.py:held_out"$'):
            loss_of(found, "")
        loss = loss_of(found, f"{held}:held_out")
        assert loss_of(found, f"{held}:held_out", samples=5) == loss
        assert loss_of(found, f"{held}:held_out", samples=2) != loss
        with pytest.raises(InputError, match=r"has no attribute 'other'; correct .*held.py$"):
            loss_of(found, f"{held}:other")
        with pytest.raises(InputError, match=r"mat1 and mat2 .*; give data as those of the train"):
            loss_of(found, f"{held}:wide")
        with pytest.raises(InputError, match=r"KeyError: 'gone', at held.py, line \d+, in batch"):
            loss_of(found, f"{held}:broken")
    finally:
        unguarded()
