"""Modules that are not traced: one line with the line of the user's code, and what to do."""

from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.models import build_model
from tests.jobs import tiny_job

HEAD = """
import random
import torch
from torch import nn
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1.0
    @staticmethod
    def backward(ctx, g): return 2 * g
class Net(nn.Module):
    def __init__(self, job):
        super().__init__()
        self.embed = nn.Embedding(256, 8)
        self.head = nn.Linear(8, 256)
        self.register_buffer("seen", torch.zeros(1))
    def forward(self, tokens):
        x = self.embed(tokens)
        {line}
        return self.head(x)
def build(job): return Net(job)
"""


def refused(folder: Path, source: str, *more: str) -> str:
    (folder / "mine.py").write_text(source, encoding="utf-8")
    with pytest.raises(InputError) as found:
        build_model(tiny_job(folder, ["model.model=mine.py:build", "model.split=trace", *more]))
    line = str(found.value)
    assert found.value.exit_code == 2
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("if x.sum() > 0: x = x + 1", "choose by torch.where"),
        ("self.seen += 1", "it changes its seen in forward"),
        ("x = x.numpy()", "cannot be traced"),
        ("x = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))", "torch makes cond of it"),
        ("tokens += 0", "it writes into its input"),
    ],
)
def test_what_has_no_graph_is_refused_by_its_line(tmp_path: Path, line: str, words: str) -> None:
    said = refused(tmp_path, HEAD.format(line=line))
    assert words in said
    assert "mine.py, line 18" in said


@pytest.mark.parametrize("line", ["x = Twice.apply(x)", "x = x * random.random()"])
def test_what_a_trace_does_not_hold_is_refused(tmp_path: Path, line: str) -> None:
    said = refused(tmp_path, HEAD.format(line=line))
    assert "away from the module's own" in said
    assert "write it in operations of torch" in said


def test_what_is_no_one_module_is_refused(tmp_path: Path) -> None:
    net = HEAD.format(line="pass")
    assert "neither a tensor nor a flat tuple" in refused(
        tmp_path, net.replace("return self.head(x)", "return {'out': self.head(x)}")
    )
    assert "its parameter 'head.weight' takes no part" in refused(
        tmp_path, net.replace("return self.head(x)", "return x")
    )
    several = net.replace("return Net(job)", "return [nn.Embedding(256, 8), nn.Linear(8, 256)]")
    assert "it returned 2 layers, and a module is cut" in refused(tmp_path, several)


def test_a_model_of_ours_is_not_traced(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model.split .* is of a model in a file of yours"):
        tiny_job(tmp_path, ["model.split=trace"])
