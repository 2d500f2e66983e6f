"""`bamboo sample`: seeded, by the run's tokenizer or by bytes; and what is no language model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo.errors import InputError
from bamboo.models import build_model
from bamboo.runtime.after.sampled import sample
from bamboo.runtime.after.trained import Trained
from bamboo.runtime.device.staging import HOST
from tests.jobs import tiny_job
from tests.runtime.after.test_exports import own_job
from tests.runtime.after.written import loaded, write_run
from tests.token_folder import write_tokens

ASKED: dict[str, Any] = {
    "prompt": "the quick brown fox",
    "length": 12,
    "temperature": 1.0,
    "seed": 3,
    "tokenizer": "",
}


def sampled(found: Trained, **more: Any) -> dict[str, Any]:
    return sample(found, HOST, lambda done, of_all: None, **ASKED | more)


def test_bytes_follow_from_the_seed(tmp_path: Path) -> None:
    found = loaded(write_run(tmp_path, tiny_job(tmp_path)))
    one = sampled(found)
    assert one["tokens"][:19] == [*b"the quick brown fox"]
    assert (len(one["tokens"]), one["prompt_tokens"]) == (19 + 12, 19)
    assert one["text"].startswith("the quick brown fox")
    assert sampled(found) == one
    assert sampled(found, seed=4) != one
    likeliest = sampled(found, temperature=0.0)
    assert likeliest == sampled(found, temperature=0.0, seed=5)
    assert likeliest["tokens"] != one["tokens"]
    assert sampled(found, temperature=5e-324)["tokens"] == likeliest["tokens"]
    # A token follows from the last model.context ones alone.
    short = sampled(found, prompt="brown fox"[-8:], temperature=0.0)
    assert short["tokens"][8:] == likeliest["tokens"][19:]
    with pytest.raises(InputError, match="the prompt is empty"):
        sampled(found, prompt="")


def test_a_tokenizer_makes_the_text_and_knows_what_it_lacks(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<unk>": 0, "the": 1, "fox": 2, "</s>": 3}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    job = tiny_job(tmp_path)
    data = replace(job.data, source="jsonl", path="lines.jsonl", tokenizer="tokenizer.json")
    job = replace(job, data=data, model=replace(job.model, vocabulary=4))
    found = loaded(write_run(tmp_path, job))
    said = sampled(found, prompt="the  fox", tokenizer=str(tmp_path / "tokenizer.json"))
    assert said["tokens"][:2] == [1, 2]
    assert said["ended"] is (len(said["tokens"]) < 14)
    assert 3 not in said["tokens"]
    assert said["text"].startswith("the fox")
    with pytest.raises(InputError, match="the prompt has 'ox', which the tokenizer"):
        sampled(found, prompt="the ox", tokenizer=str(tmp_path / "tokenizer.json"))
    header = {"tokenizer": "ab" * 32, "vocabulary": 4}
    write_tokens(tmp_path / "mine.ids", [1, 2, 3] * 9, **header)
    other = replace(found, job=replace(found.job, tokens=str(tmp_path / "mine.ids")))
    with pytest.raises(InputError, match="the tokens of the run were made with abababababab"):
        sampled(other, tokenizer=str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match=r"without a tokenizer; name its tokenizer\.json"):
        sampled(found)


IMAGES = """
import torch
from torch import nn
from bamboo.models import Workload
class Numbers:
    samples, unit, digest = 9, "number", "nine"
    def batch(self, indices, keys): return (torch.ones(len(indices), 2),), (torch.ones(1),)
def build(job):
    return Workload(layers=[nn.Linear(2, 2)], loss=lambda y, t: y.sum(), data=Numbers())
def pooled(job):
    class Mean(nn.Module):
        def forward(self, x): return x.mean(1)
    return Workload(layers=[nn.Embedding(256, 8), Mean()], loss=lambda y, t: y.sum())
"""


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("build", "is no language model: it is trained on data of its own"),
        ("pooled", r"is no language model: of tokens \[1, 8\] it makes \[1, 8\], and not a value"),
    ],
)
def test_what_is_no_language_model(tmp_path: Path, function: str, says: str) -> None:
    job = own_job(tmp_path, "build")
    (tmp_path / "mine.py").write_text(IMAGES)
    job = replace(job, model=replace(job.model, model=f"mine.py:{function}", context=8))
    build_model(job)
    found = loaded(write_run(tmp_path, job))
    with pytest.raises(InputError, match=says):
        sampled(found)
