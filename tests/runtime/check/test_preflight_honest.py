"""Models that keep to their contract pass: what the preflight refuses, it must refuse rightly."""

from pathlib import Path

import pytest

from bamboo.runtime.check.alone import Alone
from bamboo.runtime.check.preflight import preflight
from bamboo.wiring import run_preflight
from tests.jobs import tiny_job

HEAD = """
import math, random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from bamboo.models import Workload, TiedParameter
from bamboo.models.gpt import gpt_workload, token_loss
W = 16
def embed(): return nn.Embedding(256, W)
def head(): return nn.Linear(W, 256)
def between(make): return lambda job: [embed, make, make, head]
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(W, W)
    def forward(self, x): return self.linear(x)
"""
NAMES = """
NAMES = {'one', 'two', 'three', 'four', 'five'}
class A(Layer):
    def __init__(self):
        super().__init__()
        for name in NAMES: setattr(self, name, nn.Parameter(torch.randn(W)))
    def forward(self, x):
        for name in NAMES: x = x * getattr(self, name)
        return self.linear(x)
build = between(A)
"""
OPTION = "class A(Layer):\n    def forward(self, x): {0}\nbuild = between(A)"
HONEST = {
    "GPT": "def build(job): return gpt_workload(job.model)",
    "tied by hand, rightly": (
        "def build(job): return Workload(layers=(embed, Layer, head), loss=token_loss, tied=("
        "TiedParameter(owner_layer=0, owner_name='weight', user_layer=2, user_name='weight'),))"
    ),
    "tied, the owner behind": (
        "def build(job): return Workload(layers=(embed, Layer, head), loss=token_loss, tied=["
        "TiedParameter(owner_layer=2, owner_name='weight', user_layer=0, user_name='weight')])"
    ),
    "ready made": "def build(job): return [embed(), *[Layer() for _ in range(3)], head()]",
    "ready made at import": "ALL = [embed(), Layer(), head()]\ndef build(job): return ALL",
    "MLP": (
        "def mlp(): return nn.Sequential(nn.Linear(W, 32), nn.ReLU(inplace=True), nn.Dropout(0.1),"
        " nn.Linear(32, W), nn.GELU())\nbuild = between(mlp)"
    ),
    "convolution": (
        "class Conv(nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.c = nn.Conv1d(W, W, 3)\n"
        "    def forward(self, x):\n"
        "        return x + self.c(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)\n"
        "build = between(Conv)"
    ),
    "LSTM": (
        "class Recurrent(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.r = nn.LSTM(W, W, 2, batch_first=True, dropout=0.2)\n"
        "    def forward(self, x): return self.r(x)[0]\n"
        "build = between(Recurrent)"
    ),
    "GRU": (
        "class Recurrent(nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.r = nn.GRU(W, W)\n"
        "    def forward(self, x): return self.r(x)[0]\n"
        "build = between(Recurrent)"
    ),
    "TransformerEncoderLayer": (
        "build = between(lambda: nn.TransformerEncoderLayer(W, 2, 32, 0.1, batch_first=True))"
    ),
    "MultiheadAttention": (
        "class Attention(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.MultiheadAttention(W, 2, dropout=0.1, batch_first=True)\n"
        "    def forward(self, x):\n"
        "        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])\n"
        "        return x + self.a(x, x, x, attn_mask=mask, is_causal=True)[0]\n"
        "build = between(Attention)"
    ),
    "weight_norm": "build = between(lambda: parametrizations.weight_norm(nn.Linear(W, W)))",
    "weight_norm, ready made": (
        "def build(job): return [embed, parametrizations.weight_norm(nn.Linear(W, W)), head]"
    ),
    "orthogonal": "build = between(lambda: parametrizations.orthogonal(nn.Linear(W, W)))",
    "norms": (
        "class Norms(Layer):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.g, self.l, self.r = nn.GroupNorm(4, W), nn.LayerNorm(W), nn.RMSNorm(W)\n"
        "    def forward(self, x):\n"
        "        x = self.l(self.r(super().forward(x)))\n"
        "        return self.g(x.transpose(1, 2)).transpose(1, 2)\n"
        "build = between(Norms)"
    ),
    "InstanceNorm": (
        "class A(Layer):\n"
        "    def __init__(self):\n        super().__init__(); self.i = nn.InstanceNorm1d(8)\n"
        "    def forward(self, x): return self.i(super().forward(x))\nbuild = between(A)"
    ),
    "a buffer of constants": (
        "class A(Layer):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('mask', torch.tril(torch.ones(8, 8)))\n"
        "        self.register_buffer('wide', torch.arange(8.0).double(), persistent=False)\n"
        "        self.plain = torch.arange(8.0)[:, None]\n"
        "    def forward(self, x):\n"
        "        return self.linear(self.mask @ x + self.plain + self.wide[:, None].float())\n"
        "build = between(A)"
    ),
    "one mask for all": (
        "MASK = torch.tril(torch.ones(8, 8))\n"
        "class A(Layer):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.register_buffer('mask', MASK); self.same = MASK\n"
        "    def forward(self, x): return self.linear(self.mask @ x)\nbuild = between(A)"
    ),
    "one activation for all": (
        "ACT, DROP = nn.GELU(), nn.Dropout(0.1)\n"
        "class A(Layer):\n"
        "    def __init__(self):\n        super().__init__(); self.act, self.drop = ACT, DROP\n"
        "    def forward(self, x): return self.drop(self.act(self.linear(x)))\nbuild = between(A)"
    ),
    "a cache of what follows from shapes": (
        "class A(Layer):\n"
        "    table = None\n"
        "    def forward(self, x):\n"
        "        if self.table is None:\n"
        "            self.table = torch.arange(x.shape[1] * 1.0)[:, None].cos()\n"
        "        return self.linear(x + self.table)\nbuild = between(A)"
    ),
    "a parameter under two names": (
        "class A(Layer):\n"
        "    def __init__(self):\n        super().__init__(); self.other = self.linear\n"
        "    def forward(self, x): return self.linear(x) + self.other(x).relu()\nbuild = between(A)"
    ),
    "frozen numbers as a buffer": (
        "class A(Layer):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.register_buffer('fixed', torch.randn(W, W))\n"
        "    def forward(self, x): return self.linear(x @ self.fixed)\nbuild = between(A)"
    ),
    "the first parameters, kept": (
        "class A(Layer):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.begun = self.linear.weight.detach().clone()\n"
        "    def forward(self, x): return self.linear(x) - x @ self.begun\n"
        "build = between(A)"
    ),
    "ParameterList and ModuleDict": (
        "class A(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.p = nn.ParameterList(torch.randn(W) for _ in range(3))\n"
        "        self.d = nn.ModuleDict({k: nn.Linear(W, W) for k in 'ab'})\n"
        "    def forward(self, x):\n"
        "        return sum(self.p) * self.d['a'](self.d['b'](x))\nbuild = between(A)"
    ),
    "numpy for initial values": (
        "class A(Layer):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        values = np.random.randn(W).astype(np.float32) + random.random()\n"
        "        self.more = nn.Parameter(torch.from_numpy(values))\n"
        "    def forward(self, x): return self.linear(x) * self.more\nbuild = between(A)"
    ),
    "a seed at the top": (
        "torch.manual_seed(1337); np.random.seed(7); random.seed(7)\n"
        "torch.backends.cuda.matmul.allow_tf32 = True\n"
        "torch.set_float32_matmul_precision('high')\n"
        "build = between(Layer)"
    ),
    "stochastic depth": OPTION.format("return x + self.linear(x) * (torch.rand(()) < 0.5).float()"),
    "noise": OPTION.format("return self.linear(x + torch.randn_like(x))"),
    "its input": "build = between(nn.Identity)",
    "a view of its input": (
        "class A(nn.Module):\n    def forward(self, x): return x.transpose(0, 1)\n"
        "build = between(A)"
    ),
    "other shapes on the way": (
        "class Flat(nn.Module):\n    def forward(self, x): return x.flatten(0, 1)\n"
        "def build(job): return [embed, Flat, Layer, head]"
    ),
    "double precision on the way": (
        "class Wide(nn.Module):\n    def forward(self, x): return x.double()\n"
        "class Back(nn.Module):\n    def forward(self, x): return x.float()\n"
        "def build(job): return [embed, Wide, Back, head]"
    ),
    "autocast within a layer": OPTION.format(
        "\n        with torch.autocast('cpu', torch.bfloat16): return self.linear(x).float()"
    ),
    "no gradient for a part": OPTION.format(
        "\n        with torch.no_grad(): scale = x.abs().mean()\n"
        "        return self.linear(x) * scale"
    ),
    "hooks": (
        "def a():\n    made = Layer()\n"
        "    made.register_forward_pre_hook(lambda m, args: (args[0] * 2,))\n"
        "    made.register_full_backward_hook(lambda m, g, h: (g[0] * 0.5,))\n"
        "    return made\nbuild = between(a)"
    ),
    "checkpointing": (
        # Of one layer: each process that runs it loads a good deal of torch for it.
        "from torch.utils.checkpoint import checkpoint\n"
        + OPTION.format("return checkpoint(self.linear, x, use_reentrant=False)")
        + "\ndef build(job): return [embed, A, head]"
    ),
    "low rank, from nothing": (
        "class A(Layer):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.Parameter(torch.randn(W, 2))\n"
        "        self.b = nn.Parameter(torch.zeros(2, W))\n"
        "    def forward(self, x): return self.linear(x) + x @ self.a @ self.b\nbuild = between(A)"
    ),
    "what must not be negative": (
        "class A(Layer):\n"
        "    def __init__(self):\n"
        "        super().__init__(); self.scale = nn.Parameter(torch.ones(W))\n"
        "    def forward(self, x):\n"
        "        return self.linear(x) + torch.distributions.Normal(0.0, self.scale).log_prob(x)\n"
        "build = between(A)"
    ),
    "an own gradient": (
        "class Scale(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x): return x.clone()\n"
        "    @staticmethod\n    def backward(ctx, g): return g * 0.5\n"
        + OPTION.format("return self.linear(Scale.apply(x))")
    ),
    "sideways parameters": (
        "class A(Layer):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.linear.weight = nn.Parameter(torch.randn(W, W).t())\nbuild = between(A)"
    ),
    "files that are taken along": (
        "from pathlib import Path\n"
        "HERE = Path(__file__).parent\n"
        "GAIN = len((HERE / 'text.txt').read_text())\n"
        + OPTION.format("return self.linear(x) * (GAIN % 7)")
    ),
    "a variable that is taken along": (
        "import os\nGAIN = len(os.environ.get('HOSTNAME', '')) + int(os.environ.get('RANK', '0'))\n"
        + OPTION.format("return self.linear(x) * (1 + GAIN)")
    ),
    "time for a log": (
        "import os, time\n"
        + OPTION.format("self.took = time.time(); self.pid = os.getpid(); return self.linear(x)")
    ),
}
LOSSES = {
    "label smoothing": (
        "F.cross_entropy(o.flatten(0, -2), t.flatten(), reduction='sum', label_smoothing=0.1)"
    ),
    "of the squares": "(o ** 2).sum() + 0 * t.sum()",
    "with a penalty": "token_loss(o, t) + 1e-4 * o.logsumexp(-1).square().sum()",
    "flattened": "F.cross_entropy(o.view(-1, 256), t.view(-1), reduction='sum')",
    "of the last token": "token_loss(o[:, -1:], t[:, -1:])",
}


@pytest.fixture(autouse=True)
def _no_more_often_than_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who keeps nothing gives the same the hundredth time as the eighth."""
    monkeypatch.setattr("bamboo.runtime.check.timing.REPEATS_S", 0.0)
    monkeypatch.setattr("bamboo.runtime.check.loss_contract.REPEATS_S", 0.0)


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST)
def test_ordinary_layers_pass(tmp_path: Path, alone: Alone, source: str) -> None:
    (tmp_path / "mine.py").write_text(HEAD + source, encoding="utf-8")
    assert preflight(tiny_job(tmp_path, ["model.model=mine.py:build"]), alone)["layers"]


def test_what_a_model_writes_by_a_relative_path_stays_where_it_was_launched(
    tmp_path: Path, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    makes = "import os\nos.makedirs('bamboo_test_aside', exist_ok=True)\n"
    (tmp_path / "mine.py").write_text(HEAD + makes + OPTION.format("return self.linear(x)"))
    assert preflight(tiny_job(tmp_path, ["model.model=mine.py:build"]), alone)["layers"]
    assert (tmp_path / "bamboo_test_aside").is_dir()
    assert not Path("/bamboo_test_aside").exists()


@pytest.mark.parametrize("microbatch", [1, 2])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_ordinary_losses_pass(tmp_path: Path, alone: Alone, loss: str, microbatch: int) -> None:
    source = (
        f"{HEAD}def loss(o, t): return {loss}\n"
        "def build(job): return Workload(layers=(embed, Layer, head), loss=loss)\n"
    )
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    overrides = ["model.model=mine.py:build", f"train.microbatch={microbatch}"]
    assert preflight(tiny_job(tmp_path, overrides), alone)["layers"]


def test_a_loss_over_sequences_in_the_second_dimension(tmp_path: Path, alone: Alone) -> None:
    source = (
        f"{HEAD}"
        "class Turn(nn.Module):\n    def forward(self, x): return x.transpose(0, 1)\n"
        "def loss(o, t): return token_loss(o.transpose(0, 1), t)\n"
        "def build(job): return Workload(layers=(embed, Turn, head), loss=loss)\n"
    )
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    assert preflight(tiny_job(tmp_path, ["model.model=mine.py:build"]), alone)["layers"]


def test_two_threads(tmp_path: Path, alone: Alone) -> None:
    """A fork after a sum over two threads would wait for the second one for ever."""
    source = HEAD + "BIG = torch.ones(512, 512) @ torch.ones(512, 512)\nbuild = between(Layer)\n"
    (tmp_path / "mine.py").write_text(source, encoding="utf-8")
    overrides = ["model.model=mine.py:build", "cluster.threads=2"]
    assert preflight(tiny_job(tmp_path, overrides), alone)["layers"]


def test_a_set_of_names_has_one_order_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(HEAD + NAMES, encoding="utf-8")
    job = tiny_job(tmp_path, ["model.model=mine.py:build"])
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    assert len(run_preflight(job)["layers"]) == 4
