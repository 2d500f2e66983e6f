"""A user's file with one odd layer among good ones, and what a refusal of it must say."""

from pathlib import Path

import pytest

from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.runtime.check.alone import Alone
from bamboo.runtime.check.preflight import preflight
from tests.jobs import tiny_job

HEAD = """
import functools, os, random, sys, threading, time, uuid
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from bamboo.models import Workload, TiedParameter
from bamboo.models.gpt import token_loss

class Good(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
    def forward(self, x):
        return F.dropout(self.linear(x), 0.5, self.training)
class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 16)
    def forward(self, x):
        return self.table(x)
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 256)
    def forward(self, x):
        return self.linear(x)
def embed(): return nn.Embedding(256, 16)
def head(): return nn.Linear(16, 256)
"""
LIST = "\ndef build(job): return [Embed, Good, Odd, Good, Head]\n"


def odd(body: str, before: str = "") -> str:
    """Layer 2 has these methods; `before` stands in front of its class."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return f"{before}\nclass Odd(Good):\n{lines}\n{LIST}"


def in_init(line: str) -> str:
    """Layer 2 does this when it is made."""
    return odd(f"def __init__(self):\n    super().__init__()\n    {line}\n")


def in_forward(line: str, before: str = "") -> str:
    """Layer 2 does this in front of its forward."""
    return odd(f"def forward(self, x):\n    {line}\n    return self.linear(x)\n", before)


def job_of(folder: Path, source: str) -> JobConfig:
    """A tiny job whose model is this file."""
    (folder / "mine.py").write_text(HEAD + source, encoding="utf-8")
    return tiny_job(folder, ["model.model=mine.py:build"])


def assert_refused(job: JobConfig, alone: Alone, message: str) -> None:
    """In one line with file, problem and remedy."""
    with pytest.raises(InputError) as caught:
        preflight(job, alone)
    said = str(caught.value)
    assert message in said, said
    assert said.startswith(f"{job.file}: ")
    assert ";" in said, "the remedy"
    assert "\n" not in said
