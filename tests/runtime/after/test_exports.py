"""Exports of the user's own models: plain PyTorch loads them by the names of its own module, and a
job begins with what torch.distributed.checkpoint wrote."""

import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bamboo import wiring
from bamboo.config.load import job_to_json
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.models import evaluate, unpacked
from bamboo.runs import initial
from bamboo.runtime.after.exported import export
from tests.jobs import tiny_job
from tests.runtime.after.written import loaded, write_run

MINE = """
from collections import OrderedDict
from torch import nn
from bamboo.models import TiedParameter, Workload
from bamboo.models.gpt import token_loss

class Steady(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.twice = nn.Linear(16, 16)
        self.again = nn.Linear(16, 16)
        self.again.weight = self.twice.weight
        self.register_buffer("made", self.twice.bias.detach() * 0 + 1, persistent=False)

    def forward(self, x):
        return self.again(self.twice(self.norm(x.transpose(1, 2)).transpose(1, 2))) * self.made

def module():
    return nn.Sequential(OrderedDict(
        embed=nn.Embedding(256, 16), middle=Steady(), head=nn.Linear(16, 256, bias=False)
    ))

def build(job):
    tie = TiedParameter(owner_layer=0, owner_name="weight", user_layer=2, user_name="weight")
    return Workload(layers=module(), loss=token_loss, tied=(tie,))

def listed(job):
    return [nn.Embedding(256, 16), lambda: nn.Linear(16, 16), lambda: nn.Linear(16, 256)]
"""


def own_job(folder: Path, function: str = "build", *more: str) -> JobConfig:
    (folder / "mine.py").write_text(MINE)
    return tiny_job(folder, [f"model.model=mine.py:{function}", *more])


def plain_module(folder: Path) -> torch.nn.Module:
    made: torch.nn.Module = runpy.run_path(str(folder / "mine.py"))["module"]()
    return made


def test_names_ties_and_buffers_are_those_of_the_users_module(tmp_path: Path) -> None:
    found = loaded(write_run(tmp_path, own_job(tmp_path)))
    said = export(found, tmp_path, form="safetensors", tokenizer="")
    assert said["files"] == sorted(said["files"])
    module = plain_module(tmp_path)
    module.load_state_dict(load_file(tmp_path / "model.safetensors"))
    tokens = torch.arange(24).reshape(3, 8) * 7
    ours = evaluate(found.layers, (tokens,), seed=1, microbatch=0)
    with torch.no_grad():
        theirs = module.eval()(tokens)
    torch.testing.assert_close(unpacked(ours), theirs, rtol=1e-6, atol=1e-6)


def test_a_list_of_layers_has_their_numbers(tmp_path: Path) -> None:
    found = loaded(write_run(tmp_path, own_job(tmp_path, "listed")))
    export(found, tmp_path, form="safetensors", tokenizer="")
    module = torch.nn.Sequential(*(make() for make in found.workload.layers))
    module.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(module[2].weight, found.layers[2][1].weight)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_take(job: JobConfig, source: Path, folder: Path) -> None:
        from bamboo.runtime.after.taken import take

        take(job_to_json(job), source, folder)

    monkeypatch.setattr(wiring, "run_take", run_take)


def saved(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    from torch.distributed import checkpoint

    with pytest.warns(UserWarning, match="single process"):
        checkpoint.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def test_a_job_begins_with_what_torch_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed import checkpoint

    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    found = loaded(write_run(tmp_path, own_job(tmp_path)))
    export(found, tmp_path / "dcp", form="dcp", tokenizer="")
    state = {name: torch.zeros_like(t) for name, t in plain_module(tmp_path).state_dict().items()}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    plain_module(tmp_path).load_state_dict(state)
    asked = own_job(tmp_path, "build", "train.init=dcp:dcp")
    job, weights = initial.begin_with(asked)
    of_run, same = initial.begin_with(own_job(tmp_path, "build", "train.init=run:run"))
    assert weights is not None
    assert same is not None
    assert weights.tensors == same.tensors
    assert job.weights == of_run.weights
    assert "in dcp:dcp" in initial.said(weights)


def refused(folder: Path, path: str) -> str:
    with pytest.raises(InputError) as found:
        initial.begin_with(own_job(folder, "build", f"train.init=dcp:{path}"))
    assert "\n" not in str(found.value)
    return str(found.value)


def test_weights_of_another_model_are_refused_by_name(tmp_path: Path) -> None:
    own_job(tmp_path)
    state = dict(plain_module(tmp_path).state_dict())
    assert "there is no file" in refused(tmp_path, "none")
    saved(tmp_path / "few", {"embed.weight": state["embed.weight"]})
    line = refused(tmp_path, "few")
    assert "lacks middle.norm.weight, middle.norm.bias, middle.twice.weight and 3 more" in line
    behind = {f"model.{name}": tensor for name, tensor in state.items()}
    saved(tmp_path / "more", behind | {"model.more": torch.ones(1), "optimizer": torch.ones(1)})
    assert "has more, which the model has not" in refused(tmp_path, "more")
    saved(tmp_path / "wide", state | {"head.weight": torch.ones(256, 17)})
    assert "has head.weight of shape [256, 17], and [256, 16]" in refused(tmp_path, "wide")


def test_a_pickle_that_would_run_something_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from bamboo.checkpoint.distributed import Distributed

    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / ".metadata").write_bytes(b"cbuiltins\nprint\n(S'this ran'\ntR.")
    with pytest.raises(InputError, match=r"names builtins\.print, which is not made"):
        Distributed(tmp_path / "bad")
    assert "this ran" not in capfd.readouterr().out
