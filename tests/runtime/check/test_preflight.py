"""Preflight: the profile of a good model, and bad layers refused by name in one line."""

import io
import json
import shutil
from pathlib import Path

import pytest

from bamboo.config.load import job_to_json
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.runtime.check.alone import Alone
from bamboo.runtime.check.preflight import main, of_data, preflight
from tests.jobs import tiny_job
from tests.warm import ran

SORTS = Path(__file__).parents[1] / "sorts_layers.py"
GOOD = """
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

class Good(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
    def forward(self, x):
        return F.dropout(self.linear(x), 0.5, self.training)
"""
BUILD = """
def build(job):
    return [lambda: nn.Embedding(256, 16), Good, Odd, Good, lambda: nn.Linear(16, 256)]
"""

ODD = {
    "own generator": (
        """
class Odd(Good):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)
    def forward(self, x):
        return x * torch.rand(x.shape, generator=self.generator) + self.linear(x)
""",
        "layer 2 (Odd) gives another output when it is built alone in another process",
    ),
    "python's random": (
        """
class Odd(Good):
    def forward(self, x):
        return self.linear(x) * random.random()
""",
        "gives another output when it is built alone in another process",
    ),
    "numpy's random": (
        """
class Odd(Good):
    def forward(self, x):
        return self.linear(x) * float(np.random.rand())
""",
        "gives another output when it is built alone in another process",
    ),
    "randomness in the gradient only": (
        """
class Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        return g * random.random()
class Odd(Good):
    def forward(self, x):
        return self.linear(Noise.apply(x))
""",
        "layer 2 (Odd) gives another gradient of 'its input'",
    ),
    "counting calls": (
        """
class Odd(Good):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls
""",
        "layer 2 (Odd) gives another output",
    ),
    "statistics of another norm": (
        """
class Odd(Good):
    def __init__(self):
        super().__init__()
        self.norm = nn.InstanceNorm1d(16, track_running_stats=True)
    def forward(self, x):
        return self.linear(self.norm(x.transpose(1, 2)).transpose(1, 2))
""",
        "layer 2 (Odd) changes its buffer 'norm.running_mean' while it runs; keep nothing from "
        "call to call; of all buffers only the running statistics of torch's own batch norms",
    ),
    "writing into its input": (
        """
class Odd(Good):
    def forward(self, x):
        y = self.linear(x)
        x.data.mul_(2)
        return y
""",
        "layer 2 (Odd) writes into its input",
    ),
    "in place on its input": (
        """
class Odd(Good):
    def forward(self, x):
        return self.linear(x.relu_())
""",
        "layer 2 (Odd) writes into its input",
    ),
    "in place on one of several": (
        """
class Odd(Good):
    def forward(self, x):
        return self.linear(x), x

class Good(Good):
    def forward(self, x):
        if type(x) is tuple:
            return self.linear(x[0]) * x[1].mul_(2)
        return self.linear(x)
""",
        "layer 3 (Good) writes into its input; compute out of place",
    ),
    "a parameter left out": (
        """
class Odd(Good):
    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.zeros(3))
""",
        "layer 2 (Odd) has a parameter 'spare' that takes no part",
    ),
    "a frozen parameter in half precision": (
        """
class Odd(Good):
    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.zeros(3).half(), requires_grad=False)
""",
        "layer 2 (Odd) has a frozen parameter 'spare' that is not torch.float32 or torch.bfloat16 "
        "on the CPU (torch.float16)",
    ),
    "double precision": (
        """
class Odd(Good):
    def __init__(self):
        super().__init__()
        self.double()
""",
        "has a trained parameter 'linear.weight' that is not torch.float32 on the CPU "
        "(torch.float64)",
    ),
    "private initial values": (
        """
class Odd(Good):
    def __init__(self):
        super().__init__()
        self.linear.bias.data.fill_(random.SystemRandom().random())
""",
        "has other initial values of 'linear.bias' each time that it is built; draw them in",
    ),
    "a wrong shape": (
        """
class Odd(Good):
    def forward(self, x):
        return self.linear(x)[..., :3]
""",
        "layer 3 (Good) fails in its forward: RuntimeError",
    ),
    "a list": (
        """
class Odd(Good):
    def forward(self, x):
        return [self.linear(x), x]
""",
        "layer 2 (Odd) returns list, neither a tensor nor a tuple; return one tensor, or a flat",
    ),
    "nothing": (
        """
class Odd(Good):
    def forward(self, x):
        self.linear(x)
""",
        "layer 2 (Odd) returns NoneType, neither a tensor nor a tuple; return one tensor, or a",
    ),
    "a dict": (
        """
class Odd(Good):
    def forward(self, x):
        return {"x": self.linear(x)}
""",
        "layer 2 (Odd) returns dict, neither a tensor nor a tuple; return one tensor, or a flat",
    ),
    "a tuple of one": (
        """
class Odd(Good):
    def forward(self, x):
        return (self.linear(x),)
""",
        "layer 2 (Odd) returns a tuple of 1; return the tensor by itself",
    ),
    "a tuple in a tuple": (
        """
class Odd(Good):
    def forward(self, x):
        return self.linear(x), (x, x)
""",
        "layer 2 (Odd) returns a tuple whose item 1 is tuple, no tensor; return one tensor, or a",
    ),
    "no gradient at all": (
        """
class Odd(Good):
    def forward(self, x):
        return self.linear(x).detach()
""",
        "layer 2 (Odd) returns nothing in floating numbers that depends on what is trained",
    ),
    "no gradient for the layer before": (
        """
class Odd(Good):
    def forward(self, x):
        return self.linear(x.detach())
""",
        "layer 2 (Odd) passes no gradient to its input",
    ),
    "cannot be built": (
        """
class Odd(Good):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(None, 3)
""",
        "layer 2 cannot be built: TypeError",
    ),
    "not finite": (
        """
class Odd(Good):
    def forward(self, x):
        return self.linear(x) * float("inf")
""",
        "it must be one finite float32 number",
    ),
}


def _job(folder: Path, odd: str, *overrides: str) -> JobConfig:
    (folder / "mine.py").write_text(GOOD + odd + BUILD, encoding="utf-8")
    return tiny_job(folder, ["model.model=mine.py:build", *overrides])


@pytest.mark.parametrize("case", ODD)
def test_a_layer_whose_bits_would_vary_is_refused_by_name(
    tmp_path: Path, alone: Alone, case: str
) -> None:
    odd, message = ODD[case]
    with pytest.raises(InputError) as caught:
        preflight(_job(tmp_path, odd), alone)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_layer_that_cannot_read_text_says_what_it_was_given(tmp_path: Path, alone: Alone) -> None:
    table = "def build(job): return nn.Sequential(*[nn.Linear(6, 6) for _ in range(4)])\n"
    (tmp_path / "mine.py").write_text("from torch import nn\n" + table, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        preflight(tiny_job(tmp_path, ["model.model=mine.py:build"]), alone)
    assert "layer 0 (Linear) fails in its forward: RuntimeError" in str(caught.value)
    assert ", the tokens of a text, as the model has no data of its own" in str(caught.value)


NORMED = """
class Odd(Good):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
    def forward(self, x):
        return self.norm(super().forward(x).transpose(1, 2)).transpose(1, 2)
"""


def test_keyed_randomness_and_batch_norms_pass(tmp_path: Path, alone: Alone) -> None:
    layers = preflight(_job(tmp_path, NORMED), alone)["layers"]
    assert [layer["name"] for layer in layers] == ["Embedding", "Good", "Odd", "Good", "Linear"]
    # A mean and a variance of each channel move by sums; the count of steps is a buffer alone.
    assert [layer["statistics"] for layer in layers] == [0, 0, 2 * 16, 0, 0]
    assert [layer["frozen_bytes"] for layer in layers] == [0, 0, 4 * 2 * 16 + 8, 0, 0]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cluster.stages=6", "cluster.stages = 6: goes past the model's 5 layers"),
        ("cluster.cut=[0,5]", "cluster.cut = [0, 5]: goes past the model's 5 layers"),
    ],
)
def test_more_stages_than_layers_of_ones_own(
    tmp_path: Path, alone: Alone, override: str, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        preflight(_job(tmp_path, "\nOdd = Good\n", override), alone)
    assert message in str(caught.value)


def test_a_head_that_does_not_fit_the_tokens(tmp_path: Path, alone: Alone) -> None:
    job = _job(tmp_path, "\nOdd = Good\n")
    text = (tmp_path / "mine.py").read_text(encoding="utf-8").replace("(16, 256)]", "(16, 9)]")
    (tmp_path / "mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"layer 4 gives an output of shape \(2, 8, 9\)"):
        preflight(job, alone)


def test_data_alone_is_looked_at_for_the_same_training(tmp_path: Path, alone: Alone) -> None:
    job = tiny_job(tmp_path, [])
    whole, data = preflight(job, alone), of_data(job)
    assert whole.keys() == data.keys()
    assert data["layers"] == []
    for name in ("data", "data_digest", "numerics", "samples", "unigram_entropy_nats"):
        assert data[name] == whole[name]


def test_the_profile_of_the_built_in_model(tmp_path: Path, alone: Alone) -> None:
    result = preflight(tiny_job(tmp_path, ["model.tied=true"]), alone)
    assert json.loads(json.dumps(result)) == result
    assert [layer["index"] for layer in result["layers"]] == [0, 1, 2, 3]
    embedding, block, _, head = result["layers"]
    assert embedding["parameters"] == 256 * 16 + 8 * 16
    assert block["parameters"] == 12 * 16 * 16 + 13 * 16
    assert block["parameter_bytes"] == 4 * block["parameters"]
    assert block["output_bytes"] == 2 * 8 * 16 * 4
    assert head["output_bytes"] == 2 * 8 * 256 * 4
    assert block["activation_bytes"] > 4 * block["output_bytes"]
    for figure in ("forward_ms", "backward_ms", "optimizer_ms"):
        assert all(layer[figure] > 0 for layer in result["layers"])
        assert block[figure] == result["layers"][2][figure], "those that are alike, together"
    assert result["tied"] == [[0, "tokens.weight", 3, "vocabulary.weight"]]
    assert set(result["numerics"]) == {"torch", "device", "cpu_capability", "threads", "optimizer"}
    assert len(result["data_digest"]) == 64
    assert result["samples"] > 100


def test_the_profile_of_parameters_of_all_sorts(tmp_path: Path, alone: Alone) -> None:
    shutil.copy(SORTS, tmp_path / "mine.py")
    job = tiny_job(tmp_path, ["model.model=mine.py:build"])
    still = preflight(job, alone)["layers"][2]
    assert (still["parameters"], still["frozen_bytes"]) == (0, 4 * (8 * 8 + 8))


NOISE = """
import os
print("loaded")
os.write(1, b"{}")
"""


def test_the_command_answers_whatever_the_users_file_prints(tmp_path: Path) -> None:
    odd = NOISE + "class Odd(Good):\n    def forward(self, x): print('in'); return self.linear(x)\n"
    done = ran("bamboo.runtime.check.preflight", told=job_to_json(_job(tmp_path, odd)))
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["layers"]) == 5
    assert "loaded" in done.stderr
    assert json.dumps({"step": 20, "steps": 20}) in done.stderr, "how far it is"
    works = [line[9:-1] for line in done.stderr.splitlines() if line.startswith('{"work"')]
    # The second one stands behind what the file wrote.
    assert [work.strip(' "').split()[0] for work in works] == [
        *("importing", "making", "making", "running", "comparing", "evaluating")
    ], "what is worked on"


def test_the_command_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("nothing"))
    assert main(["data"]) == 2
    assert "is not JSON" in json.loads(capfd.readouterr().out)["error"]


def test_an_exception_of_the_layers_own_is_refused_by_name(tmp_path: Path, alone: Alone) -> None:
    odd = "class Own(Exception): pass\nclass Odd(Good):\n    def __init__(self): raise Own('no')\n"
    with pytest.raises(
        InputError, match=r"layer 2 cannot be built: Own: no, at mine\.py, line 16, in"
    ):
        preflight(_job(tmp_path, odd), alone)
