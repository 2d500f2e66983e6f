"""The data of an evaluation: the first samples, each with one key, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bamboo.config.tree import JobConfig, ModelConfig
from bamboo.data.dataset import Data, MadeOfText
from bamboo.data.evaluation import check_eval_digest, load_eval
from bamboo.errors import InputError
from bamboo.models import build_model
from tests.jobs import TEXT, tiny_job

GOOD = ["eval.every_steps=2", "eval.source=path", "eval.path=text.txt", "eval.samples=5"]


class Numbers:
    """Each sample is its number, or what its key draws."""

    samples, unit, digest = 7, "number", "numbers-1"

    def batch(
        self, indices: Sequence[int], keys: Sequence[int]
    ) -> tuple[tuple[Tensor], tuple[Tensor]]:
        return (torch.tensor(indices),), (torch.tensor(keys),)

    def count(self, index: int, key: int) -> int:
        del key
        return index


def own_job(folder: Path, *overrides: str) -> JobConfig:
    """As of a model with data of its own."""
    job = tiny_job(folder, [*GOOD, *overrides])
    chosen = replace(job.eval, source="", path="")
    plain = ModelConfig(model="mine.py:build")
    data = replace(job.data, source="python-stdlib", path="")
    return replace(job, eval=chosen, model=plain, data=data)


def test_a_text_is_read_as_far_as_it_is_evaluated(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, GOOD)
    data = load_eval(job, None, None)
    assert data is not None
    parts = [data.microbatch(index)[0][0] for index in range(3)]
    assert [len(part) for part in parts] == [2, 2, 1]
    assert bytes(torch.cat(parts).flatten().tolist()) == TEXT[:40].encode()
    assert data.count == 40
    check_eval_digest(replace(job, evaluated_on=data.digest), data)
    with pytest.raises(InputError, match="has data with digest"):
        check_eval_digest(replace(job, evaluated_on="f" * 64), data)


OF_A_FUNCTION = """
from tests.data.test_evaluation import Numbers
from bamboo.models import Workload
from torch import nn

def build(job):
    return Workload(layers=[nn.Identity] * 2, loss=abs, data=Numbers(), eval_data=Numbers())

def held_out(job):
    return Numbers()
"""


def test_a_function_gives_what_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(OF_A_FUNCTION)
    job = tiny_job(tmp_path, [*GOOD, "eval.path=", "eval.source=held.py:held_out"])
    workload = build_model(job)
    data = load_eval(job, workload.data, workload.eval_data)
    assert data is not None
    assert (data.unit, data.samples) == ("number", 5)
    both = replace(job.model, model="held.py:build")
    with pytest.raises(InputError, match=r"eval.source = .*: the model has its own eval_data, too"):
        build_model(replace(job, model=both))


def test_own_samples_keep_their_keys_and_weigh_what_they_weigh(tmp_path: Path) -> None:
    data = load_eval(own_job(tmp_path), Numbers(), Numbers())
    again = load_eval(own_job(tmp_path, "train.microbatch=4"), Numbers(), Numbers())
    assert data is not None
    assert again is not None
    keys = torch.cat([data.microbatch(index)[1][0] for index in range(3)])
    assert torch.equal(keys, torch.cat([again.microbatch(index)[1][0] for index in range(2)]))
    assert len(set(keys.tolist())) == 5
    assert data.count == 1 + 2 + 3 + 4


class Doubled:
    """Data that a model makes of text."""

    unit, digest = "word", "doubled"

    def __init__(self, text: Data) -> None:
        self._text = text
        self.samples = text.samples

    def batch(
        self, indices: Sequence[int], keys: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        (inputs,), targets = self._text.batch(indices, keys)
        return (2 * inputs,), targets


def test_a_model_that_makes_its_data_of_text_is_evaluated_on_such_data(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, GOOD)
    plain, made = load_eval(job, None, None), load_eval(job, MadeOfText(make=Doubled), None)
    assert plain is not None
    assert made is not None
    assert (made.unit, made.digest) == ("word", "doubled")
    assert torch.equal(made.microbatch(2)[0][0], 2 * plain.microbatch(2)[0][0])


def test_what_cannot_be_evaluated_is_refused(tmp_path: Path) -> None:
    job = own_job(tmp_path)
    with pytest.raises(InputError, match=r"has no eval_data; give Workload\.eval_data$"):
        load_eval(job, Numbers(), None)
    named = replace(job, eval=replace(job.eval, source="held.py:none"))
    with pytest.raises(InputError, match=r"eval.source = 'held.py:none': returns None; return"):
        load_eval(named, Numbers(), None)
    with pytest.raises(InputError, match=r"eval.samples = 8: is beyond the source, which has 7"):
        load_eval(own_job(tmp_path, "eval.samples=8"), Numbers(), Numbers())
    with pytest.raises(InputError, match=r"eval.samples = 9000: is beyond the source, which has"):
        load_eval(tiny_job(tmp_path, [*GOOD, "eval.samples=9000"]), None, None)
    (tmp_path / "data.txt").write_text("short")
    short = tiny_job(tmp_path, [*GOOD, "eval.path=data.txt"])
    with pytest.raises(InputError, match=r"eval\.path = 'data\.txt': 5 bytes hold no window"):
        load_eval(short, None, None)
    with pytest.raises(InputError, match="brings data of its own; leave it out"):
        load_eval(replace(job, eval=replace(job.eval, source="path")), Numbers(), None)
    one = load_eval(own_job(tmp_path, "eval.samples=1"), Numbers(), Numbers())
    assert one is not None
    with pytest.raises(InputError, match="count 0 for all samples"):
        assert one.count
