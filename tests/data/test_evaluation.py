"""The data of an evaluation: the first samples, each with one key, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bamboo.config.tree import JobConfig, ModelConfig
from bamboo.data.evaluation import check_eval_digest, load_eval
from bamboo.errors import InputError
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
    data = load_eval(job, None, of_text=True)
    assert data is not None
    parts = [data.microbatch(index)[0][0] for index in range(3)]
    assert [len(part) for part in parts] == [2, 2, 1]
    assert bytes(torch.cat(parts).flatten().tolist()) == TEXT[:40].encode()
    assert data.count == 40
    check_eval_digest(replace(job, evaluated_on=data.digest), data)
    with pytest.raises(InputError, match="has data with digest"):
        check_eval_digest(replace(job, evaluated_on="f" * 64), data)


def test_own_samples_keep_their_keys_and_weigh_what_they_weigh(tmp_path: Path) -> None:
    data = load_eval(own_job(tmp_path), Numbers(), of_text=False)
    again = load_eval(own_job(tmp_path, "train.microbatch=4"), Numbers(), of_text=False)
    assert data is not None
    assert again is not None
    keys = torch.cat([data.microbatch(index)[1][0] for index in range(3)])
    assert torch.equal(keys, torch.cat([again.microbatch(index)[1][0] for index in range(2)]))
    assert len(set(keys.tolist())) == 5
    assert data.count == 1 + 2 + 3 + 4


def test_what_cannot_be_evaluated_is_refused(tmp_path: Path) -> None:
    job = own_job(tmp_path)
    with pytest.raises(InputError, match=r"has no eval_data; give Workload\.eval_data$"):
        load_eval(job, None, of_text=False)
    with pytest.raises(InputError, match=r"eval.samples = 8: is beyond the source, which has 7"):
        load_eval(own_job(tmp_path, "eval.samples=8"), Numbers(), of_text=False)
    with pytest.raises(InputError, match=r"eval.samples = 9000: is beyond the source, which has"):
        load_eval(tiny_job(tmp_path, [*GOOD, "eval.samples=9000"]), None, of_text=True)
    with pytest.raises(InputError, match="brings data of its own; leave it out"):
        load_eval(replace(job, eval=replace(job.eval, source="path")), None, of_text=False)
    one = load_eval(own_job(tmp_path, "eval.samples=1"), Numbers(), of_text=False)
    assert one is not None
    with pytest.raises(InputError, match="count 0 for all samples"):
        assert one.count
